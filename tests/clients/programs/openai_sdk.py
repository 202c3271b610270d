"""OpenAI's SDK: chats, responses and completions, streams put together by its own helpers, errors by their classes."""

import asyncio
import json
import os

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

client = OpenAI(base_url=os.environ["GRADUS"] + "/v1", api_key="none", max_retries=0)
MODEL = "served"
ASKED = [{"role": "user", "content": "What is the weather in Ulm?"}]
AS_JSON = [{"role": "user", "content": "Write a person as JSON"}]


class Weather(BaseModel):
    """Looks up the weather."""

    city: str
    days: int = Field(description="how many")


class Person(BaseModel):
    name: str
    age: int


def test_a_chats_stream_is_put_together_to_the_whole_answer():
    for fields in ({}, {"tools": [openai.pydantic_function_tool(Weather)]}, {"logprobs": True, "top_logprobs": 2}):
        with client.chat.completions.stream(model=MODEL, messages=ASKED, **fields) as stream:
            kinds = {event.type for event in stream}
            streamed = stream.get_final_completion().choices[0]
        whole = client.chat.completions.create(model=MODEL, messages=ASKED, **fields).choices[0]
        assert "chunk" in kinds
        assert streamed.finish_reason == whole.finish_reason
        assert (streamed.message.content or "") == (whole.message.content or "")
        calls = [[call.function.arguments for call in choice.message.tool_calls or []] for choice in (streamed, whole)]
        assert calls[0] == calls[1] and bool(calls[0]) == ("tools" in fields)


def test_a_tool_is_called_and_its_result_answered():
    tools = [openai.pydantic_function_tool(Weather)]
    answer = client.chat.completions.parse(model=MODEL, messages=ASKED, tools=tools).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and call.function.parsed_arguments == Weather(city="Ulm", days=1)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    answer = client.chat.completions.create(model=MODEL, messages=[*ASKED, answer.message, result], tools=tools)
    assert "sunny" in answer.choices[0].message.content


def test_an_answer_of_a_schema_is_parsed():
    answer = client.chat.completions.parse(model=MODEL, messages=AS_JSON, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)
    response = client.responses.parse(model=MODEL, input=AS_JSON, text_format=Person)
    assert response.output_parsed == Person(name="Ada", age=36)


def test_usage_comes_last_and_once():
    *chunks, last = client.chat.completions.create(
        model=MODEL, messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == [] and last.usage.completion_tokens > 0
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_a_responses_stream_is_put_together_to_the_whole_response():
    tool = {"type": "function", "name": "weather", "parameters": Weather.model_json_schema(), "strict": False}
    for fields in ({}, {"tools": [tool, {"type": "web_search"}]}, {"instructions": "Be brief."}):
        with client.responses.stream(model=MODEL, input=ASKED, **fields) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_response()
        whole = client.responses.create(model=MODEL, input=ASKED, **fields)
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        assert streamed.output_text == whole.output_text
        assert [item.type for item in streamed.output] == [item.type for item in whole.output]
        assert streamed.usage.output_tokens == whole.usage.output_tokens > 0


def test_a_response_calls_a_tool_and_reads_its_result():
    tools = [openai.pydantic_function_tool(Weather)["function"] | {"type": "function"}]
    response = client.responses.create(model=MODEL, input=ASKED, tools=tools)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Ulm", "days": 1}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    response = client.responses.create(model=MODEL, input=[*ASKED, *response.output, result], tools=tools)
    assert "sunny" in response.output_text


def test_completions_stream_and_count():
    whole = client.completions.create(model=MODEL, prompt=["def", "class"], max_tokens=5, temperature=0)
    assert [choice.index for choice in whole.choices] == [0, 1] and whole.usage.completion_tokens == 10
    pieces = {0: "", 1: ""}
    for chunk in client.completions.create(
        model=MODEL, prompt=["def", "class"], max_tokens=5, temperature=0, stream=True
    ):
        for choice in chunk.choices:
            pieces[choice.index] += choice.text
    assert list(pieces.values()) == [choice.text for choice in whole.choices]


def test_the_model_is_listed():
    (model,) = client.models.list()
    assert client.models.retrieve(model.id).id == model.id


def test_errors_have_their_classes():
    removed = {"guided_whitespace_pattern": " "}
    for call, error in (
        (lambda: client.chat.completions.create(model=MODEL, messages=[]), openai.BadRequestError),
        (lambda: client.responses.create(model=MODEL, input="a" * 2_000_000), openai.BadRequestError),
        (lambda: client.models.retrieve("another"), openai.NotFoundError),
        (lambda: client.completions.create(model=MODEL, prompt="a", extra_body=removed), openai.BadRequestError),
    ):
        try:
            call()
        except error as caught:
            assert caught.body["message"]
        else:
            raise AssertionError("it was accepted")


def test_many_at_once():
    async def all_of_them():
        many = AsyncOpenAI(base_url=os.environ["GRADUS"] + "/v1", api_key="none")
        return await asyncio.gather(*(many.chat.completions.create(model=MODEL, messages=ASKED) for _ in range(20)))

    assert len({answer.choices[0].message.content for answer in asyncio.run(all_of_them())}) == 1


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(name.removeprefix("test_").replace("_", " "))
