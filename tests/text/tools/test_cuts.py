"""Streamed equals whole: whatever an answer is, and however its tokens are cut, the joined events are the same."""

import json
from cProfile import Profile
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradus.text.tools.answer import AnswerParser
from gradus.text.tools.events import Answer, Reasoning, Text, ToolArguments, ToolEnd, ToolStart, call_ids, joined
from gradus.text.tools.reader import Mark, Reader
from gradus.text.tools.tool import read_tools
from tests.text.tools.builders import CONTROLS, FAMILIES, TOOLS, events_of, family, stream_of, tokens_of
from tests.text.tools.loose import LOOSE

ARGUMENTS = [
    {},
    {"text": "é\n  x\n", "count": 3},
    {"list": [1, "a", None], "map": {"k": True}},
    {"maybe": {"city": "Oslo"}},
]
FRAGMENTS = [
    "Hello", " ", "\n", "\n\n", "naïve 👍", "<", "[", "{", "`", "<think>", "</think>", "hm\n", "<tool_call>",
    "</tool_call>", "<tool_call>\n{", '{"name": "f", "arguments": {"count": ', '{"name": "nope", "arguments": {}}', '"',
    "}", "]", "```", "<function=f>", "<function=f", "<parameter=text>\n", "</parameter>\n", "</function>", "</param",
    "[TOOL_CALLS]", "[ARGS]", "[f(text='", "f(", "g()", "[g()]",
    '{"name": "f", "arguments": "', '{\\"text\\": \\"\\d\\"}', "\\.", "\\ud83d", "f(text=x",
    "```tool_code\n", "\\", "\\u00", "<|python_tag|>",
    "<|tool_call>call:f{", "<|tool_call>", "call:g{}", "text:", '<|"|>', ",count:1", "list:[", "map:{a:",
    "<tool_call|>", "<|tool_response>", "<|channel>", "thought\n", "thoughtful", "<channel|>", "<function_calls>",
    "</function_calls>", "f(count=1)\n", "<|tool_call|>", "<|/tool_call|>", "functools",
    '[{"name": "f", "arguments": {"text": ',
    "; ", ", ", "{{", "}}", "'", '{"type": "function", "function": ', '{"name": "f", "arguments": {{"text": ',
]  # fmt: skip


def answers(name):
    """Texts of calls, right and wrong, among fragments."""
    layout = family(name).format.layout
    calls = st.lists(st.tuples(st.just("f"), st.sampled_from(ARGUMENTS)), min_size=1, max_size=2).map(layout.write)
    in_strings = st.sampled_from(ARGUMENTS).map(lambda each: in_string(name, each))
    loose = st.sampled_from(LOOSE).map(lambda each: each.within(name).replace('"weather"', '"f"'))
    return st.lists(st.one_of(calls, in_strings, loose, st.sampled_from(FRAGMENTS)), max_size=8).map("".join)


def in_string(name, arguments):
    """Write a call with its arguments as a JSON string, if the format writes JSON at all."""
    layout = family(name).format.layout
    written = json.dumps(json.dumps(arguments, ensure_ascii=False))
    return layout.write([("f", {"here": 0})]).replace('{"here": 0}', written)


@pytest.mark.parametrize("by_text", [False, True], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
def test_every_cut_of_the_tokens_gives_the_same_answer(name, by_text, data):
    dialect = family(name, by_text=by_text)
    text = data.draw(answers(name))
    tokens = tokens_of(dialect, text)
    end = data.draw(st.integers(0, len(tokens)))  # an answer may break off anywhere, even inside a character
    sizes = data.draw(st.lists(st.integers(1, 9), max_size=20))
    whole = stream_of(dialect)
    expected = joined([*whole.push(tokens[:end]), *whole.finish()])
    stream, rest, events = stream_of(dialect), tokens[:end], []
    for size in sizes:
        events += stream.push(rest[:size])
        rest = rest[size:]
    assert joined([*events, *stream.push(rest), *stream.finish()]) == expected


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
def test_every_cut_of_the_text_gives_the_same_answer(name, data):
    """The parser by itself: here the pieces have nothing to do with tokens, and may be as long as the answer."""
    text = data.draw(answers(name))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    assert parsed(name, pieces(text, places)) == parsed(name, [text]) == parsed(name, list(text))


def pieces(text, places):
    edges = [0, *places, len(text)]
    return [text[start:end] for start, end in pairwise(edges) if start < end]


def parsed(name, cut):
    dialect = family(name, by_text=True)
    parser = AnswerParser(
        dialect.format.triggers,
        {tool.name: tool for tool in read_tools(TOOLS)},
        call_ids("x"),
        dialect.thoughts_after([]),
    )
    return joined([event for piece in cut for event in parser.feed([piece])] + parser.finish())


def test_a_parser_that_looks_at_its_pieces_is_caught(monkeypatch):
    """The same check, with a reader that drops the blanks around each piece."""
    assert parsed("hermes", ["a ", "b"]) == parsed("hermes", ["a b"])
    feed = Reader.feed
    monkeypatch.setattr(Reader, "feed", lambda self, piece: feed(self, piece.strip()))
    assert parsed("hermes", ["a ", "b"]) != parsed("hermes", ["a b"])


# -- what is read is what was written ----------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
TYPED = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(),
        "count": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "list": st.lists(VALUES, max_size=3),
        "map": st.dictionaries(st.text(), VALUES, max_size=3),
        "maybe": st.one_of(st.none(), st.fixed_dictionaries({"city": st.text()})),
    },
)


@pytest.mark.parametrize("name", FAMILIES)
@given(arguments=st.lists(TYPED, min_size=1, max_size=3), data=st.data())
def test_arguments_arrive_as_they_were_written(name, arguments, data):
    dialect = family(name)
    if dialect.format.layout.between is None:
        arguments = arguments[:1]
    if name == "gemma4":
        arguments = [with_bare_keys(each) for each in arguments]
    canonical = [json.dumps(each, sort_keys=True) for each in arguments]
    assume(all(one != other for one, other in pairwise(canonical)))  # a repeated call ends the answer
    text = dialect.format.layout.write(("f", each) for each in arguments)
    # `events_of` would write a marker's spelling, or a control token's, as the token, which is what it spells anywhere
    spelled = json.dumps(arguments, ensure_ascii=False)
    assume(not any(token in spelled for token in (*dialect.markers, *CONTROLS)))
    sizes = data.draw(st.lists(st.integers(1, 9), max_size=9))
    answer = Answer.of(events_of(dialect, text, sizes))
    assert [json.loads(call.arguments) for call in answer.calls] == arguments
    assert all(call.complete for call in answer.calls) and answer.text == ""


def with_bare_keys(value, depth=0):
    """Rename the keys inside an argument: Gemma 4 writes them without quotes, so few characters can be in them."""
    if isinstance(value, dict):
        return {
            f"k{at}" if depth > 1 or (depth and key != "city") else key: with_bare_keys(each, depth + 1)
            for at, (key, each) in enumerate(value.items())
        }
    return [with_bare_keys(each, depth + 1) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", FAMILIES)
def test_arguments_arrive_while_the_call_is_written(name):
    dialect = family(name)
    text = dialect.format.layout.write([("f", {"text": "one two three four five"})])
    cut = text.index("three")
    stream = stream_of(dialect)
    before = stream.push(tokens_of(dialect, text[:cut]))
    assert [type(event) for event in before] == [ToolStart, ToolArguments]
    assert before[1].delta == '{"text": "one two '


def test_the_whole_sequence_of_events_by_hand():
    text = '<think>\nhm\n</think>\n\nOk.\n<tool_call>\n{"name": "f", "arguments": {"count": 1}}\n</tool_call>\n'
    call = next(call_ids("tests"))
    assert events_of(family("hermes"), text) == [
        Reasoning("hm"),
        Text("Ok."),
        ToolStart(0, call, "f"),
        ToolArguments(0, '{"count": 1}'),
        ToolEnd(0, True),
    ]


# -- bounds ------------------------------------------------------------------------------------------------------------

HOSTILE = {
    "hermes": [
        "<tool_call>",
        "<",
        '<tool_call>{"name":"f","arguments":{"list":[',
        " ",
        '<tool_call>{"arguments":{"a":"',
    ],
    "qwen3-coder": ["<tool_call><function=f><parameter=text>", "</param", "<tool_call><function=f><parameter=list>["],
    "mistral-v3": ["[TOOL_CALLS]", '[TOOL_CALLS][{"name":"f","arguments":{"text":"\\u'],
    "llama3-pythonic": ["[f(", "[f(list=[", "\\'"],
    "gemma3": ["\n[", "\n```tool_code\n[f(text='''", "`"],
    "grammar": ["{", '{"name":'],
}


@pytest.mark.parametrize(("name", "unit"), [(name, unit) for name, units in HOSTILE.items() for unit in units])
def test_hostile_answers_take_linear_time(name, unit):
    """Counts calls of functions, which a busy machine does not change. A long unit is repeated less often; the second
    and the third text let one beginning grow."""
    dialect = family(name)
    for text in (lambda n: unit * max(n // len(unit), n // 4), lambda n: unit + "[" * n, lambda n: unit + "x" * n):
        small, large = (work(dialect, tokens_of(dialect, text(size))) for size in (100, 400))
        assert large < 4.4 * small + 2000


def work(dialect, tokens):
    """Count the calls that reading these tokens, one by one, takes."""
    stream, profile = stream_of(dialect), Profile()
    with profile:
        for token in tokens:
            stream.push((token,))
        stream.finish()
    return sum(each.callcount for each in profile.getstats())


def test_text_that_cannot_be_shown_yet_is_bounded():
    parser_input = '<tool_call>{"arguments": {"text": "' + "x" * 3_000_000
    events = parsed("hermes", [parser_input])
    assert events == [Text(parser_input)]


def test_a_mark_is_no_text_even_if_it_is_spelled_alike():
    """A model that writes the marker's letters writes letters: only the token itself opens a call."""
    dialect = family("hermes")
    spelled = [*b"<tool_call>", *tokens_of(dialect, '{"name": "g"}')]
    stream = stream_of(dialect)
    assert Answer.of([*stream.push(spelled), *stream.finish()]).text == '<tool_call>{"name": "g"}'
    assert dialect.marks[dialect.markers["<tool_call>"]] == Mark("<tool_call>", "<tool_call>")
