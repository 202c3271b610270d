"""Values that no field of a body expects, and what must come of them: an answer, or a refusal in one line."""

import json

DEEP: object = "x"
for _ in range(50):
    DEEP = {"a": [DEEP]}

ODD = {
    "negative": -1,
    "huge": 10**30,
    "infinite": float("inf"),
    "true": True,
    "empty text": "",
    "text": "\u2028<|im_end|>",
    "empty list": [],
    "list of null": [None],
    "list of lists": [[[]]],
    "empty object": {},
    "object": {"type": "x", "a": None},
    "deep": DEEP,
    "list of objects": [{"type": 5}, {"type": ["function"]}, {"name": {}}],
}


def send_odd(server, path, body):
    """Send a body that no client should, and check that it is answered or refused in one line."""
    text = json.dumps(body).replace("Infinity", "1e999")  # which is JSON
    response = server.http.post(path, content=text, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400), (body, response.text)
    assert response.status_code == 200 or "\n" not in response.json()["error"]["message"]
