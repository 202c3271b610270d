"""gpt-oss behind OpenAI's protocols: channels become reasoning, text and calls, streamed and whole alike."""

import pytest

from tests.server.conftest import running
from tests.server.dialogue import (
    FLAT_TOOLS,
    TOOLS,
    chat,
    chat_chunks,
    comparable,
    comparable_response,
    joined_chat,
    joined_response,
    respond,
    response_events,
)
from tests.server.saying import SayingCore
from tests.text.templates import GPT_OSS

THOUGHT = "<|channel|>analysis<|message|>Where is Ulm?<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{"place": "Ulm"}<|call|>'
FINAL = "<|channel|>final<|message|>On the Danube."


def said(prompt: str) -> str:
    """The first answer is a call; behind its result comes a text."""
    return THOUGHT + (FINAL if "functions.look_up to=assistant" in prompt else CALL)


@pytest.fixture(scope="module")
def server():
    with running(lambda: SayingCore(said, family="harmony", template=GPT_OSS)) as made:
        yield made


def test_a_chat_calls_and_goes_on_with_the_result(server):
    whole = chat(server, tools=TOOLS).json()
    assert comparable(
        joined_chat(chat_chunks(server, tools=TOOLS, stream_options={"include_usage": True}))
    ) == comparable(whole)
    (choice,) = whole["choices"]
    message = choice["message"]
    (call,) = message["tool_calls"]
    assert (choice["finish_reason"], message["content"], message["reasoning"]) == ("tool_calls", None, "Where is Ulm?")
    assert call["function"] == {"name": "look_up", "arguments": '{"place": "Ulm"}'}
    history = [
        {"role": "user", "content": "Where?"},
        {key: message[key] for key in ("role", "content", "reasoning", "tool_calls")},
        {"role": "tool", "tool_call_id": call["id"], "content": "A river."},
    ]
    answer = chat(server, messages=history, tools=TOOLS).json()["choices"][0]
    assert (answer["finish_reason"], answer["message"]["content"]) == ("stop", "On the Danube.")
    prompt = server.engine.prompts[-1]
    assert "<|channel|>analysis<|message|>Where is Ulm?<|end|><|start|>assistant to=functions.look_up" in prompt
    assert '<|channel|>commentary<|message|>"A river."<|end|>' in prompt


def test_a_response_has_items_of_each_kind(server):
    whole = respond(server, tools=FLAT_TOOLS).json()
    assert [item["type"] for item in whole["output"]] == ["reasoning", "function_call"]
    assert comparable_response(joined_response(response_events(server, tools=FLAT_TOOLS))) == comparable_response(whole)
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == len("Where is Ulm?") + 2


def test_a_message_of_anthropics_has_blocks_of_each_kind(server):
    tools = [{"name": "look_up", "input_schema": TOOLS[0]["function"]["parameters"]}]
    body = {"model": "m", "max_tokens": 400, "tools": tools, "messages": [{"role": "user", "content": "Where?"}]}
    blocks = server.http.post("/v1/messages", json=body).json()["content"]
    assert [block["type"] for block in blocks] == ["thinking", "tool_use"] and blocks[1]["input"] == {"place": "Ulm"}
