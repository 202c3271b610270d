"""The grammars of answers, compiled as the engine does it: they accept a family's calls, and nothing else."""

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.structured import Grammars
from gradus.text.tools.events import Answer
from gradus.text.tools.tool import read_tools
from tests.text.tools.builders import FAMILIES, TOOLS, events_of, family, tokens_of

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "now": {"type": "boolean"},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TWO = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}},
    {
        "type": "function",
        "function": {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}},
    },
]
RIGHT = [
    {"city": "Oslo"},
    {"city": "Oslo", "days": -3, "unit": "F", "now": True},
    {"city": '"quoted"\n é', "now": False},
    {"city": "", "unit": "C"},
]
WRONG = [{}, {"city": 5}, {"city": "Oslo", "days": 1.5}, {"city": "Oslo", "unit": "K"}, {"city": "x", "more": 1}]


@cache
def grammars(name, by_text):
    made = family(name, by_text=by_text).tokenizer
    return Grammars(made.to_json, made.vocab_size, made.eos_token_ids)


def accepts(dialect, constraint, text):
    """Whether a constraint accepts these tokens, and lets the answer end there. text: or tokens."""
    made = dialect.tokenizer
    tokens = tokens_of(dialect, text) if isinstance(text, str) else text
    found = grammars(dialect.format.name, not dialect.markers)
    return found.matcher(constraint).accept([*tokens, made.eos_token_ids[0]])


def grammar_of(dialect, choice, tools=TWO, prompt=(), **options):
    return dialect.turn(tools, choice, **options).constraint(prompt)


def is_text_or_refused(dialect, constraint, text):
    """Whether a text is no call: calls whose syntax begins with a name are none where it is not declared."""
    read = Answer.of(events_of(dialect, text))
    return not accepts(dialect, constraint, text) or not read.calls


def write(dialect, *calls):
    return dialect.format.layout.write(calls)


# a marker is a token of the vocabulary, or text
BOTH = [(name, by_text) for name in FAMILIES for by_text in (False, True)]


@pytest.mark.parametrize(("name", "by_text"), BOTH)
def test_a_forced_call_is_a_call_with_arguments_that_obey_the_schema(name, by_text):
    dialect = family(name, by_text=by_text)
    for choice in ("required", {"type": "tool", "name": "weather"}):
        grammar = grammar_of(dialect, choice)
        for arguments in RIGHT:
            assert accepts(dialect, grammar, write(dialect, ("weather", arguments))), arguments
        for arguments in WRONG:
            refused = name == "qwen3-coder" and arguments == {"city": 5}  # raw text has no type to get wrong
            assert accepts(dialect, grammar, write(dialect, ("weather", arguments))) == refused, arguments
        assert not accepts(dialect, grammar, write(dialect, ("nope", {})))
        assert not accepts(dialect, grammar, "I would rather talk.")
    assert accepts(dialect, grammar_of(dialect, "required"), write(dialect, ("clock", {})))
    assert not accepts(dialect, grammar, write(dialect, ("clock", {}))), "another one was named"


@pytest.mark.parametrize("name", [name for name in FAMILIES if family(name).format.layout.between is not None])
def test_several_calls_are_allowed_unless_the_request_wants_one(name):
    dialect = family(name)
    two = write(dialect, ("weather", RIGHT[0]), ("clock", {}))
    assert accepts(dialect, grammar_of(dialect, "required"), two)
    assert not accepts(dialect, grammar_of(dialect, "required", parallel=False), two)
    assert not accepts(dialect, grammar_of(dialect, {"type": "tool", "name": "weather"}), two)


@pytest.mark.parametrize("name", [name for name in FAMILIES if family(name).format.free])
@pytest.mark.parametrize("by_text", [False, True], ids=["tokens", "text"])
def test_a_free_answer_is_text_or_calls_and_a_strict_tools_calls_obey_its_schema(name, by_text):
    dialect = family(name, by_text=by_text)
    grammar = grammar_of(dialect, "auto")
    right, wrong = (write(dialect, ("weather", arguments)) for arguments in (RIGHT[1], WRONG[3]))
    assert accepts(dialect, grammar, "Just a text: <b>1</b>, naïve 👍.")
    assert accepts(dialect, grammar, right) and not accepts(dialect, grammar, wrong)
    assert accepts(dialect, grammar, write(dialect, ("clock", {})))
    assert is_text_or_refused(dialect, grammar, write(dialect, ("nope", {})))
    if dialect.format.layout.trigger not in "[{":
        assert accepts(dialect, grammar, "Let me look.\n" + right)
        assert not accepts(dialect, grammar, "Let me look.\n" + wrong)


@pytest.mark.parametrize("name", [name for name in FAMILIES if family(name).format.free])
def test_tools_that_are_not_strict_leave_a_free_answer_free_but_for_its_envelope_if_asked(name):
    dialect = family(name)
    loose = [TWO[1], {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
    assert grammar_of(dialect, "auto", loose) is None and grammar_of(dialect, "none") is None
    grammar = grammar_of(dialect, "auto", loose, envelope=True)
    assert accepts(dialect, grammar, write(dialect, ("weather", {"more": "x"})))
    assert is_text_or_refused(dialect, grammar, write(dialect, ("nope", {"more": "x"})))


def test_reasoning_may_come_before_a_forced_call():
    dialect = family("hermes")
    call = write(dialect, ("weather", RIGHT[0]))
    chat = [{"role": "user", "content": "x"}]
    grammar = grammar_of(dialect, "required", prompt=dialect.tokenizer.chat(chat))
    assert accepts(dialect, grammar, call) and accepts(dialect, grammar, f"<think>\nhm\n</think>\n\n{call}")
    assert not accepts(dialect, grammar, f"<think>\nhm {call}")
    opened = [*dialect.tokenizer.chat(chat), *dialect.tokenizer.encode("<think>\n")]
    grammar = grammar_of(dialect, "required", prompt=opened)
    assert accepts(dialect, grammar, f"hm\n</think>\n\n{call}") and not accepts(dialect, grammar, call)


CONSTRAINTS = [
    (Structured(json_schema=WEATHER), '{"city": "Oslo"}', '{"city": 5}'),
    (Structured(json_schema=True, whitespace="compact"), '{"a":1}', '{"a" : 1}'),
    (Structured(json=True), "[1, 2]", "[1, 2"),
    (Structured(regex="a/b\\|c\nd"), "a/b|c\nd", "a/b"),
    (Structured(choice=["yes", 'a "no"']), 'a "no"', "no"),
    (Structured(choice=["a\x7f\u2028😀", "\\x7f"]), "a\x7f\u2028😀", "a\\u007f"),
    (Structured(regex="a\x7f[\x7fb]/\\\\"), "a\x7fb/\\", "a\x7f7/\\"),
]


@pytest.mark.parametrize(("text", "right", "wrong"), CONSTRAINTS, ids=lambda each: getattr(each, "kind", None))
def test_an_answer_is_of_the_form_that_was_asked_for_or_calls(text, right, wrong):
    dialect = family("hermes")
    call = write(dialect, ("weather", RIGHT[0]))
    turn = dialect.turn(TWO, "auto")
    grammar = turn.constraint((), text)
    for answer in (right, call, f"<think>hm</think>\n{right}", f"<think>hm</think>\n{call}"):
        assert accepts(dialect, grammar, answer), answer
    for answer in (wrong, "Just a text.", f"{right}{call}", write(dialect, ("weather", WRONG[3]))):
        assert not accepts(dialect, grammar, answer), answer


@pytest.mark.parametrize(("text", "right", "wrong"), CONSTRAINTS, ids=lambda each: getattr(each, "kind", None))
def test_the_constrained_part_of_an_answer_is_what_follows_its_reasoning(text, right, wrong):
    dialect = family("hermes")
    free, opened = (dialect.turn().constraint(prompt, text) for prompt in ((), dialect.tokenizer.encode("<think>\n")))
    assert accepts(dialect, free, right) and not accepts(dialect, free, wrong)
    assert accepts(dialect, free, f"<think>hm</think>{right}")
    assert accepts(dialect, opened, f"{wrong}</think>\n\n{right}")
    assert not accepts(dialect, opened, right), "this would be reasoning"


def test_a_marker_that_is_a_token_is_one_in_the_grammar():
    dialect = family("hermes")
    grammar = grammar_of(dialect, "auto")
    assert "start: <tool_call> " in grammar.grammar and '"<tool_call>"' not in grammar.grammar
    assert accepts(dialect, grammar, [*b"<tool_call>nothing of the kind"]), "the marker's letters are text"
    assert not accepts(dialect, grammar, "<tool_call>nothing of the kind")
    assert "<[TOOL_CALLS]> " in grammar_of(family("mistral-v3"), "required").grammar


@pytest.mark.parametrize("name", FAMILIES)
@given(arguments=st.fixed_dictionaries({"city": st.text()}, optional={"days": st.integers(), "now": st.booleans()}))
def test_what_a_grammar_accepts_is_read_as_it_was_meant(name, arguments):
    """Grammar and parser agree; in JSON, llguidance wants control characters escaped, and so do we."""
    dialect = family(name)
    ordered = {key: arguments[key] for key in WEATHER["properties"] if key in arguments}
    turn = dialect.turn(TWO, "required")
    text = write(dialect, ("weather", ordered))
    tokens = tokens_of(dialect, text)
    stream = turn.stream([], seed="x")
    (call,) = Answer.of([*stream.push(tokens), *stream.finish()]).calls
    assert json.loads(call.arguments) == ordered


def test_schemas_with_definitions_and_true_are_compiled_in_every_format():
    for name in FAMILIES:
        dialect = family(name)
        schema = {
            "type": "object",
            "properties": {"maybe": {"$ref": "#/$defs/place"}, "any": True, "text": {"type": ["string", "null"]}},
            "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
        }
        grammar = grammar_of(dialect, "required", [{"name": "f", "input_schema": schema}])
        assert accepts(dialect, grammar, write(dialect, ("f", {"maybe": {"city": "Oslo"}}))), name


@pytest.mark.parametrize(("name", "key"), [("gemma3", "not a name"), ("qwen3-coder", "a>b")])
def test_a_property_that_the_format_cannot_write_is_refused(name, key):
    tools = [{"name": "f", "input_schema": {"properties": {key: {}}}}]
    with pytest.raises(RequestError, match="cannot write a property named"):
        grammar_of(family(name), "required", tools)


def test_a_grammar_that_is_too_large_is_refused_with_its_size():
    tools = [
        {"name": f"f{n}", "input_schema": {"properties": {f"p{m}": {"type": "string"} for m in range(1000)}}}
        for n in range(12)
    ]
    with pytest.raises(RequestError, match="at most 262144 bytes, got") as error:
        grammar_of(family("hermes"), "required", tools)
    assert error.value.param == "tools"


def test_the_tests_own_tools_compile_too():
    for name in FAMILIES:
        dialect = family(name)
        text = write(dialect, ("f", {"text": "x", "list": [1], "map": {"k": 2}}))
        assert accepts(dialect, grammar_of(dialect, "required", TOOLS), text), name
        assert len(Answer.of(events_of(dialect, text)).calls) == 1
    assert read_tools(TOOLS)
