"""OpenAI's own SDK against a real socket: it joins our streams to whole answers. Skipped where it is not installed."""

import json

import pytest

from tests.server.conftest import running
from tests.server.dialogue import ANSWERS, FLAT_TOOLS, TOOLS, Answering, asked

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module", params=[1, 7], ids=["token by token", "seven tokens a step"])
def server(request):
    with running(lambda: Answering(size=request.param, context_length=2000)) as made:
        yield made


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def messages(name):
    return [{"role": "user", "content": asked(name)}]


STRICT_TOOLS = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS[:1]]


@pytest.mark.parametrize("name", ["plain", "think_and_call", "two_calls", "blank", "lines"])
def test_the_sdk_joins_a_chat(client, name):
    asks = {"model": "m", "messages": messages(name), "tools": TOOLS}
    with client.chat.completions.create(**asks, stream=True, stream_options={"include_usage": True}) as chunks:
        from openai.lib.streaming.chat import ChatCompletionStreamState

        state = ChatCompletionStreamState()
        for chunk in chunks:
            state.handle_chunk(chunk)
    joined, whole = state.get_final_completion(), client.chat.completions.create(**asks)
    first, second = joined.choices[0], whole.choices[0]
    assert (first.message.content or "") == (second.message.content or "") and first.message.role == "assistant"
    assert first.finish_reason == second.finish_reason and joined.usage == whole.usage
    calls = [[(call.function.name, call.function.arguments) for call in each.message.tool_calls or ()]
             for each in (first, second)]  # fmt: skip
    assert calls[0] == calls[1] and all(json.loads(arguments) is not None for _, arguments in calls[0])
    assert getattr(first.message, "reasoning", None) == getattr(second.message, "reasoning", None)


def test_the_sdk_parses_calls_of_strict_tools_and_forms(client):
    with client.chat.completions.stream(model="m", messages=messages("call"), tools=STRICT_TOOLS) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert call.function.parsed_arguments == {"place": "Ulm", "days": [1, 2]}

    class City(openai.BaseModel):
        city: str
        people: int

    parsed = client.chat.completions.parse(model="m", messages=messages("json"), response_format=City)
    assert parsed.choices[0].message.parsed == City(city="Ulm", people=128928)
    response = client.responses.parse(model="m", input=asked("json"), text_format=City)
    assert response.output_parsed == City(city="Ulm", people=128928)


def test_the_sdk_joins_samples_and_log_probabilities(client):
    asks = {"model": "m", "messages": messages("several"), "n": 3, "logprobs": True, "top_logprobs": 2, "tools": TOOLS}
    with client.chat.completions.stream(**{**asks, "tools": STRICT_TOOLS}) as stream:
        joined = stream.get_final_completion()
    whole = client.chat.completions.create(**asks)
    for first, second in zip(joined.choices, whole.choices, strict=True):
        assert first.logprobs.content == second.logprobs.content and len(first.logprobs.content) > 3
        assert (first.message.content or "") == (second.message.content or "")


@pytest.mark.parametrize("name", ["plain", "think_and_call", "two_calls", "blank", "only_thought"])
def test_the_sdk_joins_a_response(client, name):
    asks = {"model": "m", "input": asked(name), "tools": FLAT_TOOLS}
    with client.responses.stream(**asks) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        joined = stream.get_final_response()
    whole = client.responses.create(**asks)
    assert joined.output_text == whole.output_text and [item.type for item in joined.output] == [
        item.type for item in whole.output
    ]
    assert (snapshots[-1] if snapshots else "") == joined.output_text
    assert joined.usage == whole.usage and joined.status == "completed"
    arguments = [item.arguments for item in joined.output if item.type == "function_call"]
    assert arguments == [item.arguments for item in whole.output if item.type == "function_call"]


def test_the_sdk_sees_a_response_that_was_cut(client):
    with client.responses.stream(model="m", input=asked("plain"), max_output_tokens=5) as stream:
        last = list(stream)[-1]
    assert last.type == "response.incomplete" and last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output[0].status == "incomplete"


def test_the_sdk_raises_our_errors(client):
    with pytest.raises(openai.BadRequestError, match="previous_response_id is not supported") as error:
        client.responses.create(model="m", input="x", previous_response_id="resp_1")
    assert error.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 5000}])
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIError, match="the engine could not finish"):
        list(client.chat.completions.create(model="m", messages=messages("breaks"), stream=True))
    assert ANSWERS["breaks"]
