"""Anthropic's SDK: streams put together, tools run in a loop, answers parsed, errors by their classes."""

import os

import anthropic
from anthropic import Anthropic, beta_tool
from pydantic import BaseModel

client = Anthropic(base_url=os.environ["GRADUS"], api_key="none", max_retries=0)
MODEL = "served"
WEATHER = {
    "name": "weather",
    "description": "Looks up the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKED = [{"role": "user", "content": "What is the weather in Ulm?"}]


class Person(BaseModel):
    name: str
    age: int


def same(streamed, whole):
    """The two answers, apart from their ids."""
    one, other = streamed.to_dict(exclude_none=True), whole.to_dict(exclude_none=True)
    for message in (one, other):
        message.pop("id")
        for block in message["content"]:
            block.pop("id", None)
    assert one == other, (one, other)


def test_a_stream_is_put_together_to_the_whole_message():
    for fields in (
        {},
        {"tools": [WEATHER]},
        {"system": "Be brief.", "thinking": {"type": "enabled", "budget_tokens": 1024}},
    ):
        with client.messages.stream(model=MODEL, max_tokens=2000, messages=ASKED, **fields) as stream:
            kinds = {event.type for event in stream}
            streamed = stream.get_final_message()
        assert kinds >= {"message_start", "content_block_stop", "message_delta", "message_stop"}
        same(streamed, client.messages.create(model=MODEL, max_tokens=2000, messages=ASKED, **fields))


def test_a_tool_is_called_and_its_result_answered():
    called = []

    @beta_tool
    def weather(city: str) -> str:
        """Looks up the weather.

        Args:
            city: where
        """
        called.append(city)
        return f"sunny in {city}"

    for stream in (False, True):
        runner = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=2000, messages=ASKED, tools=[weather], stream=stream
        )
        last = runner.until_done()
        assert "sunny in Ulm" in last.content[0].text and last.stop_reason == "end_turn"
    assert called == ["Ulm", "Ulm"]


def test_an_answer_of_a_schema_is_parsed():
    asked = [{"role": "user", "content": "Write a person as JSON"}]
    message = client.messages.parse(model=MODEL, max_tokens=2000, messages=asked, output_format=Person)
    assert message.parsed_output == Person(name="Ada", age=36)
    with client.messages.stream(model=MODEL, max_tokens=2000, messages=asked, output_format=Person) as stream:
        assert stream.get_final_message().parsed_output.age == 36


def test_tokens_are_counted():
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED, tools=[WEATHER]).input_tokens
    assert (
        counted == client.messages.create(model=MODEL, max_tokens=9, messages=ASKED, tools=[WEATHER]).usage.input_tokens
    )


def test_errors_have_their_classes():
    long = [{"role": "user", "content": "a" * 1_100_000}]
    for fields, error, words in (
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        ({"messages": long}, anthropic.BadRequestError, "prompt is too long: "),
        ({"tools": [{"name": "?", "input_schema": {}}]}, anthropic.BadRequestError, "tools.name"),
    ):
        try:
            client.messages.create(**{"model": MODEL, "max_tokens": 9, "messages": ASKED, **fields})
        except error as caught:
            assert words in caught.body["error"]["message"], caught
        else:
            raise AssertionError(f"{fields} was accepted")


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(name.removeprefix("test_").replace("_", " "))
