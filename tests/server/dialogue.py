"""What the tests of OpenAI's chats and responses share: a core with an answer for each question, and clients.

The clients join a stream as the SDKs do, and insist on what the SDKs take for granted.
"""

import json
import re
from dataclasses import replace

from gradus.engine.logprobs import PAIR, Logprobs
from tests.server.conftest import events
from tests.server.saying import CALL, THOUGHT, SayingCore

BROKEN = "\x18"  # in an answer: here the sample fails

SECOND = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
ANSWERS = {
    "plain": "Ulm is a city, naïve 👍.",
    "blank": "",
    "call": CALL,
    "talk_and_call": f"Let me look.\n{CALL}",
    "two_calls": f"{CALL}\n{SECOND}",
    "think": f"{THOUGHT}On the Danube.",
    "think_and_call": f"{THOUGHT}Let me look.\n{CALL}\n{SECOND}",
    "only_thought": THOUGHT,
    "repeats": f"Let me look.\n{CALL}\n{CALL}\n{CALL} and so on",
    "call_and_talk": f"{CALL}\n{SECOND}\nI have called both.\n{CALL}",
    "calls_on": "\n".join(CALL.replace('"place": "Ulm", "days": [1, 2]', f'"days": [{day}]') for day in range(20)),
    "malformed": 'Well.\n<tool_call>\n{"name": "look_up", "arguments": {"place": oops}}\n</tool_call>',
    "unknown": '<tool_call>\n{"name": "nope", "arguments": {}}\n</tool_call>',
    "json": '{"city": "Ulm", "people": 128928}',
    "turns": "Ulm.\n<|im_start|>user\nMore?",
    "lines": "a\u2028b\u2029c\u0085d\r\ne",
    "several": ["Ulm.", f"{THOUGHT}On the Danube.", CALL],
    "breaks": f"{THOUGHT}Half an ans{BROKEN}wer",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a place up.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
                "required": ["place"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "description": "Tells the time."}},
]
FLAT_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]


def asked(name):
    """A question whose answer is the one of that name."""
    return f"answer:{name}"


class Answering(SayingCore):
    """Answers `asked(name)` with ANSWERS[name]; sample i with the i-th one, if it is a list.

    Each token's log-probability is -0.5, and its alternatives' are those of the impossible.
    """

    def __init__(self, **options):
        super().__init__(self._first, **options)
        self._named_by = {}  # request id → the answer of that name, or the answers of its samples

    def submit(self, request):
        super().submit(request)
        self._named_by[request.id] = self._named(self.prompts[-1])

    def _named(self, prompt):
        names = re.findall(r"answer:(\w+)", prompt)
        return ANSWERS[names[-1]] if names else "Hello."

    def _first(self, prompt):
        answer = self._named(prompt)
        return answer[0] if isinstance(answer, list) else answer

    def _advance(self, sample):
        request = sample.request
        answer = self._named_by[request.id]
        if isinstance(answer, list):
            said = self.tokenizer.encode(answer[sample.index % len(answer)], special_tokens=False)
            self._answers[request.id] = [*said, self.limits.eos_token_ids[0]]
        at = len(sample.tokens)
        if ord(BROKEN) in self._answers[request.id][at : at + self.size]:
            return self._end(sample, (), "error")
        output = super()._advance(sample)
        if request.params.logprobs is None:
            return output
        others = b"".join(PAIR.pack(token, float("-inf")) for token in range(65, 65 + request.params.logprobs))
        return replace(output, logprobs=Logprobs(tuple(PAIR.pack(token, -0.5) + others for token in output.tokens)))


# -- a client of chats -------------------------------------------------------------------------------------------------


def chat(server, name="plain", **body):
    """Ask a question and return the HTTP response."""
    messages = body.pop("messages", None) or [{"role": "user", "content": asked(name)}]
    return server.http.post("/v1/chat/completions", json={"model": "m", "messages": messages, **body})


def chat_chunks(server, name="plain", **body):
    response = chat(server, name, stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks, done = events(response)
    assert done
    return chunks


def joined_chat(chunks):
    """Join chunks to a whole answer, as the SDK does: texts are added up, whatever they are."""
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    choices, usage = [], None
    for chunk in chunks:
        usage = chunk.get("usage")  # a later chunk without it resets it
        for new in chunk["choices"]:
            if new["index"] == len(choices):
                choices.append({"index": new["index"], "message": {}, "finish_reason": None, "logprobs": None})
            choice = choices[new["index"]]  # an IndexError where the choices are not begun in order
            assert choice["finish_reason"] is None, "nothing comes behind the reason"
            _add(choice["message"], new["delta"])
            for field in ("finish_reason", "stop_reason"):
                choice[field] = new.get(field)
            if new["logprobs"] is not None:
                choice["logprobs"] = choice["logprobs"] or {"content": [], "refusal": None}
                choice["logprobs"]["content"] += new["logprobs"]["content"]
            if "token_ids" in new:
                choice.setdefault("token_ids", []).extend(new["token_ids"])
    return {"choices": choices, "usage": usage}


def _add(message, delta):
    for key, value in delta.items():
        if key == "tool_calls":
            for new in value:
                calls = message.setdefault("tool_calls", [])
                if new["index"] == len(calls):
                    calls.append({"function": {}})
                _add(calls[new["index"]], {name: new[name] for name in new if name not in ("index", "function")})
                _add(calls[new["index"]]["function"], new["function"])
        else:
            message[key] = message.get(key, "") + value


def comparable(answer):
    """An answer without what is drawn for each: ids. Empty texts and null are the same."""
    found = json.loads(json.dumps({"choices": answer["choices"], "usage": answer["usage"]}))
    for choice in found["choices"]:
        choice["message"] = {key: value for key, value in choice["message"].items() if value}
        for call in choice["message"].get("tool_calls", ()):
            assert len(call.pop("id")) == 9 and call["type"] == "function"
    return found


# -- a client of responses ---------------------------------------------------------------------------------------------


def respond(server, name="plain", **body):
    return server.http.post("/v1/responses", json={"model": "m", "input": asked(name), **body})


def response_events(server, name="plain", **body):
    response = respond(server, name, stream=True, **body)
    assert response.status_code == 200, response.text
    names = [line.removeprefix("event: ") for line in response.iter_lines() if line.startswith("event: ")]
    found, done = events(response)
    assert not done, "this protocol has no [DONE]"
    assert names == [each["type"] for each in found]
    return found


ENDINGS = ("response.completed", "response.incomplete", "response.failed")
PARTS = {"message": ("content_part", "output_text"), "reasoning": ("reasoning_part", "reasoning_text")}


def joined_response(found):
    """Check the life of a response and of each of its items, and return the response."""
    kinds = [each["type"] for each in found]
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] in ENDINGS
    assert all(each["response"]["status"] == "in_progress" and not each["response"]["output"] for each in found[:2])
    last = found[-1]["response"]
    assert last["status"] == kinds[-1].removeprefix("response.")
    assert len({each["response"]["id"] for each in (*found[:2], found[-1])}) == 1
    items, rest = [], found[2:-1]
    while rest:
        done = next((at for at, each in enumerate(rest) if each["type"] == "response.output_item.done"), None)
        if done is None:
            assert last["status"] == "failed", "every item ends"
            break
        items.append(_checked_item(rest[: done + 1], len(items)))
        rest = rest[done + 1 :]
    assert last["output"] == items
    return last


def _checked_item(found, index):
    """Check the events of one item, from `added` to `done`; the item."""
    added, *inner, done = found
    assert added["type"] == "response.output_item.added" and added["item"]["status"] == "in_progress"
    item = done["item"]
    assert all(each["output_index"] == index for each in found)
    assert all(each["item_id"] == item["id"] == added["item"]["id"] for each in inner)
    kinds = [each["type"].removeprefix("response.") for each in inner]
    deltas = "".join(each["delta"] for each in inner if each["type"].endswith(".delta"))
    if item["type"] == "function_call":
        assert set(kinds[:-1]) <= {"function_call_arguments.delta"} and kinds[-1] == "function_call_arguments.done"
        assert deltas == inner[-1]["arguments"] == item["arguments"] and added["item"]["arguments"] == ""
        assert {key: item[key] for key in ("call_id", "name")} == {
            key: added["item"][key] for key in ("call_id", "name")
        }
        return item
    part, text = PARTS[item["type"]]
    assert kinds[0] == f"{part}.added" and kinds[-2:] == [f"{text}.done", f"{part}.done"]
    assert set(kinds[1:-2]) <= {f"{text}.delta"} and all(each["content_index"] == 0 for each in inner)
    assert deltas == inner[-2]["text"] == inner[-1]["part"]["text"] == item["content"][0]["text"]
    assert added["item"]["content"] == [] and inner[0]["part"]["text"] == ""
    return item


def comparable_response(response):
    """A response without ids and times."""
    found = json.loads(json.dumps(response))
    for each in (found, *found["output"]):
        assert each.pop("id")
        each.pop("call_id", None)
    return {key: value for key, value in found.items() if key not in ("created_at", "completed_at")}
