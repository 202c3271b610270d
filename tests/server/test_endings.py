"""Answers with calls end where their calls do: whole and streamed, in each protocol, and in the engine."""

import json
from functools import partial

import pytest

from tests.server.conftest import eventually, running
from tests.server.dialogue import (
    ANSWERS,
    FLAT_TOOLS,
    SECOND,
    TOOLS,
    Answering,
    asked,
    chat,
    chat_chunks,
    comparable,
    joined_chat,
    joined_response,
    respond,
    response_events,
)
from tests.server.saying import CALL
from tests.server.test_messages_api import frames, put_together

ONE, BOTH = ["look_up"], ["look_up", "clock"]
CASES = [  # an answer, whether calls are required, whether several are wanted, and the names of its calls
    ("repeats", False, True, ONE),
    ("calls_on", False, True, ["look_up"] * 16),
    ("two_calls", False, False, ONE),
    ("two_calls", False, True, BOTH),
    ("call_and_talk", True, True, BOTH),
    ("call_and_talk", False, True, [*BOTH, "look_up"]),
    ("call_and_talk", True, False, ONE),
]


@pytest.fixture(scope="module", params=[1, 7, 1000], ids="{} tokens a step".format)
def server(request):
    with running(lambda: Answering(size=request.param)) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left_behind(server):
    server.engine.cancelled.clear()
    yield
    assert eventually(server.idle)


def as_chat(server, name, required, several):
    body = {"tools": TOOLS, "tool_choice": "required" if required else "auto", "parallel_tool_calls": several}
    whole = chat(server, name, **body).json()
    options = {"stream_options": {"include_usage": True}}
    assert comparable(joined_chat(chat_chunks(server, name, **options, **body))) == comparable(whole)
    (choice,) = whole["choices"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
    assert choice["finish_reason"] == "tool_calls"
    return calls, choice["message"]["content"] or "", whole["usage"]["completion_tokens"]


def as_response(server, name, required, several):
    body = {"tools": FLAT_TOOLS, "tool_choice": "required" if required else "auto", "parallel_tool_calls": several}
    whole = respond(server, name, **body).json()
    streamed = joined_response(response_events(server, name, **body))
    for response in (whole, streamed):
        assert response["status"] == "completed"
    calls, streamed_calls = (
        [(item["name"], item["arguments"]) for item in response["output"] if item["type"] == "function_call"]
        for response in (whole, streamed)
    )
    assert calls == streamed_calls
    texts = [item["content"][0]["text"] for item in whole["output"] if item["type"] == "message"]
    assert whole["usage"] == streamed["usage"]
    return calls, "".join(texts), whole["usage"]["output_tokens"]


def as_message(server, name, required, several):
    tools = [
        {
            "name": tool["function"]["name"],
            "input_schema": tool["function"].get("parameters", {"type": "object", "properties": {}}),
        }
        for tool in TOOLS
    ]
    choice = {"type": "any" if required else "auto", "disable_parallel_tool_use": not several}
    body = {"model": "m", "max_tokens": 2000, "messages": [{"role": "user", "content": asked(name)}]}
    post = partial(server.http.post, "/v1/messages")
    whole = post(json={**body, "tools": tools, "tool_choice": choice}).json()
    streamed = put_together(frames(post(json={**body, "tools": tools, "tool_choice": choice, "stream": True})))
    for message in (whole, streamed):
        assert message.pop("id") and message["stop_reason"] == "tool_use"
        assert all(block.pop("id", None) or block["type"] == "text" for block in message["content"])
    assert streamed["content"] == whole["content"]
    calls = [(block["name"], json.dumps(block["input"])) for block in whole["content"] if block["type"] == "tool_use"]
    texts = [block["text"] for block in whole["content"] if block["type"] == "text"]
    return calls, "".join(texts), whole["usage"]["output_tokens"]


@pytest.mark.parametrize(("name", "required", "several", "names"), CASES)
def test_the_protocols_agree_on_the_calls_and_the_tokens_of_an_answer(server, name, required, several, names):
    calls, text, tokens = as_chat(server, name, required, several)
    assert [each for each, _ in calls] == names
    assert as_response(server, name, required, several) == (calls, text, tokens)
    assert as_message(server, name, required, several) == (calls, text, tokens)
    said = server.engine.tokenizer.encode(ANSWERS[name])
    over = tokens <= len(said)
    assert over == (name != "two_calls" or not several) or name == "call_and_talk"
    reasons = {reason for _, _, reason in server.engine.cancelled}
    assert reasons <= {"stop"}, "as a stop string ends a sample"


@pytest.mark.parametrize(("name", "last"), [("repeats", CALL), ("two_calls", CALL)])
def test_tokens_are_counted_up_to_the_end_of_the_last_call(server, name, last):
    """A repeated call counts, although it is not reported: its tokens were generated."""
    _, _, tokens = as_chat(server, name, False, name == "repeats")
    text = ANSWERS[name]
    count = 2 if name == "repeats" else 1
    end = [at for at in range(len(text)) if text.startswith(last, at)][count - 1] + last.rindex("}") + 1
    assert tokens == len(server.engine.tokenizer.encode(text[:end]))


def test_each_sample_ends_by_itself(server):
    body = {"n": 3, "tools": TOOLS, "parallel_tool_calls": False}
    whole = chat(server, "several", **body).json()
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop", "stop", "tool_calls"]
    assert comparable(joined_chat(chat_chunks(server, "several", stream_options={"include_usage": True}, **body))) == (
        comparable(whole)
    )


def test_an_answer_that_is_cut_in_a_call_says_so(server):
    choice = chat(server, "repeats", tools=TOOLS, max_tokens=40).json()["choices"][0]
    assert choice["finish_reason"] == "length"


def test_the_most_calls_are_configured(serving):
    server = serving(lambda: Answering(), max_tool_calls=2)
    (choice,) = chat(server, "calls_on", tools=TOOLS).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 2 and choice["finish_reason"] == "tool_calls"
    assert SECOND not in (choice["message"]["content"] or "")
