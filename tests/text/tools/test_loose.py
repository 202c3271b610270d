"""Calls that are not written as they were taught: read where they have one reading, and text where they have none."""

import json

import pytest

from gradus.text.tools.events import Answer, ToolStart
from tests.text.tools.builders import FAMILIES, family, tokens_of
from tests.text.tools.loose import JSON, LOOSE, WEATHER

CASES = [pytest.param(loose, name, id=f"{loose.what}-{name}") for loose in LOOSE for name in loose.formats]


def events_of(name, text, size=None, tools=WEATHER):
    """Read a text, `size` tokens at a time, or in one piece."""
    dialect = family(name)
    stream = dialect.turn(tools, "auto" if dialect.format.free else "required").stream([], seed="tests")
    tokens = tokens_of(dialect, text)
    size = size or len(tokens)
    events = [event for at in range(0, len(tokens), size) for event in stream.push(tokens[at : at + size])]
    return [*events, *stream.finish()]


def test_the_page_has_a_table():
    assert len(LOOSE) > 10 and {name for loose in LOOSE for name in loose.formats} == set(JSON)
    assert all(name in FAMILIES for loose in LOOSE for name in loose.formats)


@pytest.mark.parametrize(("loose", "name"), CASES)
def test_a_row_of_the_page_is_a_call_and_nothing_of_it_is_text(loose, name):
    for size in (None, 1, 3):
        answer = Answer.of(events_of(name, loose.within(name), size))
        assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("weather", loose.arguments)]
        assert answer.calls[0].complete and answer.text == ""


@pytest.mark.parametrize(
    "written",
    [
        '{{"name": "weather", "arguments": {"city": "Ulm"}}',
        '{{"name": "weather", "arguments": {{"city": "Ulm"}}}}',
        '{"name": "weather", "arguments": {{"city": "Ulm"}}}',
        '{{"name": "weather", "arguments": "{{\\"city\\": \\"Ulm\\"}}"}}',
        '{"name": "weather", "arguments": \'{"city": "Ulm"}\'}',
        '{"name": "weather", "arguments": "{\'city\': \'Ulm\'}"}',
        '{"type": "function", "id": "1", "function": {"name": "weather", "args": {"city": "Ulm"}}',
        '{"arguments": {"city": "Ulm",}, "function": "weather"}',
    ],
)
def test_what_goes_together_is_read_together(written):
    for size in (None, 1):
        answer = Answer.of(events_of("hermes", f"<tool_call>\n{written}\n</tool_call>", size))
        assert [(call.name, call.arguments) for call in answer.calls] == [("weather", '{"city": "Ulm"}')]
        assert answer.text == ""


@pytest.mark.parametrize(
    "written",
    [
        '{"name": "weather", "arguments": {{"city": "Ulm"}, "id": 1}',  # the inner braces are not closed
        '{"name": "weather", "arguments": {city: "Ulm"}}',
        '{"name": "weather", "arguments": {5: "Ulm"}}',
        '{"name": "weather", "arguments": {',
        '{"name": "weather", "arguments": \'{"city": "it\'s"}\'}',
        '{"name": "weather", "arguments": ["Ulm"]}',
        '{"name": "weather", "arguments": "Ulm"}',
        '{"name": "weather", "description": "Tells it.", "parameters": {"type": "object"}}',  # the tool itself
        '{"weather": {"city": "Ulm"}}',
        '{"function": {"function": {"name": "weather", "arguments": {}}}}',
        "weather(city='Ulm')",
    ],
)
def test_what_has_no_reading_or_several_is_text_or_ends_incomplete(written):
    """Only the first of them has begun as a call before it goes wrong."""
    for text in (f"<tool_call>{written}</tool_call>", f"<tool_call>{written}"):
        for size in (None, 1):
            answer = Answer.of(events_of("hermes", text, size))
            if "{{" in written:
                assert [call.complete for call in answer.calls] == [False]
            else:
                assert answer.calls == () and answer.text == text


def test_a_call_is_announced_no_earlier_than_its_first_argument():
    dialect = family("hermes")
    stream = dialect.turn(WEATHER).stream([], seed="tests")
    assert not stream.push(tokens_of(dialect, '<tool_call>{"name": "weather", "arguments": {'))
    assert [type(event) for event in stream.push(tokens_of(dialect, '"'))][:1] == [ToolStart]


def test_code_in_a_fence_is_text():
    text = "```python\nweather(city='Ulm')\n```"
    answer = Answer.of(events_of("qwen2.5-coder", text))
    assert answer.calls == () and answer.text == text
