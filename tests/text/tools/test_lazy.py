"""Calls of a model that is free to call: those that have begun name a declared tool, and obey its schema."""

import json
import random
from functools import cache

import numpy as np
import pytest

from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.structured import Grammars
from gradus.structured.vocabulary import row_words
from gradus.text.tools.dialect import Dialect
from gradus.text.tools.events import Answer
from tests.pairwise import pairwise
from tests.text.tools.builders import FAMILIES, family, tokens_of

FREE = [name for name in FAMILIES if family(name).format.free]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Ulm"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMES = ("weather", "clock")
DRAWN = 40  # answers for each combination
SAID = [
    "Hello. ", "\n", " ", "{", "[", '{"answer": 4}', "[1, 2]", '{"name"', '{"name": "weather", "arguments": ',
    '{"name":"clock","parameters":{"city":', '{{"name": "weather", "arguments": {"city": "Ulm"}}}',
    '{\n  "name": "nope"',
    '```json\n{"name": "weather", ', "```\n", '```python\n{"name": ', '{"type": "function", "name": "clock", ',
    '{"arguments": {"city": "Oslo"}, "name": "', '{"parameters": 5', '"{\\"city\\": \\"Ulm\\"}"',
    '; {"name": "weather"',
    "<tool_call>", '<tool_call>\n{"name": "weather", "arguments": "x"', "</tool_call>", "[TOOL_CALLS]", "[ARGS]",
    '[TOOL_CALLS] [{"name": "nope"', "[TOOL_CALLS]weather", "<|python_tag|>", "[weather(", '[clock(city="Ulm")]',
    "[ weather(days=1", "\n[weather(", "see [1]\n", "```tool_code\n", "```tool_code\n[nope()", "<function=weather>",
    "<think>", "</think>", "<think>[TOOL_CALLS]<tool_call>{</think>",
]  # fmt: skip


OWN = {  # pieces that mean something to one format
    "gemma4": [
        "<|tool_call>", "<|tool_call>call:weather{city:", "<|tool_call>call:nope{", '<|"|>', "<tool_call|>", "days:x",
        "<|channel>", "<channel|>", "<|tool_response>",
    ],
    "olmo3": [
        "<function_calls>", '<function_calls>\nclock(city="Ulm", days=', "<function_calls>[", "</function_calls>",
    ],
    "phi4": [
        "<|tool_call|>", '<|tool_call|>[{"name": "weather", "arguments": 5', "<|/tool_call|>", "functools",
        "functools[", "functools is", 'functools [{"name": "clock", ',
    ],
    "harmony": [
        "<|channel|>", "<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>", "<|start|>user",
        "<|channel|>analysis<|message|>", "<|start|>assistant", "<|channel|>commentary to=functions.",
        " to=functions.weather", "to=functions.nope",
        "<|start|>assistant to=functions.clock<|channel|>commentary json<|message|>", "<|channel|>final",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>", "<|channel|>analysis to=python code",
    ],
    "granite3": ["<|tool_call|>", '<|tool_call|>[{"name": "nope"', '<tool_call>[{"name": "nope"', "<tool_call>\n["],
}  # fmt: skip


def tools(strict: bool) -> list[dict]:
    function = {"parameters": SCHEMA, "strict": strict}
    return [{"type": "function", "function": function | {"name": name}} for name in NAMES]


@cache
def grammars(name: str, by_text: bool) -> Grammars:
    made = family(name, by_text=by_text).tokenizer
    return Grammars(made.to_json, made.vocab_size, made.eos_token_ids)


def dialect_of(name: str, by_text: bool = False) -> Dialect:
    made = family(name, by_text=by_text)
    return Dialect(made.tokenizer, name, compiles=grammars(name, by_text).check)


def drawn(dialect: Dialect, constraint: Structured, seed: int, most: int = 160) -> list[int]:
    """Draw the answer of a model that says pieces of calls. A token that is not legal is replaced by one that is."""
    chance, made, found = random.Random(seed), dialect.tokenizer, list[int]()
    matcher = grammars(dialect.format.name, not dialect.markers).matcher(constraint)
    pieces = SAID + OWN.get(dialect.format.name, [])
    row, said = np.zeros(row_words(made.vocab_size), np.int32), list[int]()
    while len(found) < most:
        said = said or tokens_of(dialect, chance.choice(pieces))
        token = said.pop(0)
        if matcher.masks:
            matcher.fill(row)
            legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
            assert legal, matcher.fault
            if token not in legal:
                closing = [each for each in legal if each in list(b'"}])\n')]
                token, said = chance.choice(closing if closing and chance.random() < 0.7 else legal), []
        if token in made.eos_token_ids:
            break
        assert matcher.accept([token]), matcher.fault
        found.append(token)
    return found


def is_valid(arguments: str) -> bool:
    read = json.loads(arguments)
    return set(read) <= {"city", "days"} and read.get("city") in ("Oslo", "Ulm") and type(read.get("days", 0)) is int


@pytest.mark.parametrize("name, strict, parallel", pairwise(FREE, [True, False], [True, False]))
def test_a_call_that_has_begun_is_valid(name, strict, parallel):
    dialect, count = dialect_of(name), 0
    turn = dialect.turn(tools(strict), "auto", parallel=parallel)
    constraint = turn.constraint(())
    for seed in range(DRAWN):
        tokens = drawn(dialect, constraint, seed)
        stream = turn.stream((), seed="x")
        calls = Answer.of([*stream.push(tokens), *stream.finish()]).calls
        whole = [call for call in calls if call.complete]
        assert len(calls) - len(whole) <= (calls[-1:] != whole[-1:]), "only the end of the answer breaks a call off"
        assert parallel or len(calls) <= 1
        for call in whole:
            assert call.name in NAMES and is_valid(call.arguments), dialect.tokenizer.decode(tokens, skip_special=False)
        count += len(whole)
    assert count > DRAWN / 6


@pytest.mark.parametrize("name", FREE)
def test_text_and_json_that_are_no_call_stay_possible(name):
    dialect = dialect_of(name)
    for text in ('{"answer": 4}', "[1, 2]", "See [weather] and {x}.", "```python\nprint(1)\n```", "naïve 👍", ""):
        matcher = grammars(name, False).matcher(dialect.turn(tools(False)).constraint(()))
        for token in [*tokens_of(dialect, text), *dialect.tokenizer.eos_token_ids]:
            assert not matcher.masks and matcher.accept([token])


def test_a_schema_that_cannot_be_kept_leaves_its_tool_any_arguments_and_refuses_a_strict_one():
    dialect = dialect_of("hermes")
    odd = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}
    given = [*tools(False), {"name": "odd", "input_schema": odd}]
    constraint = dialect.turn(given).constraint(())
    assert '"enum": ["Oslo", "Ulm"]' in constraint.grammar and "(?=x)y" not in constraint.grammar
    given[-1] = {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}
    with pytest.raises(RequestError):
        dialect.turn(given).constraint(())


def test_tools_too_large_for_a_grammar_keep_their_envelope():
    large = {f"p{number}": {"type": "string"} for number in range(1000)}
    given = [{"name": f"f{number}", "input_schema": {"properties": large}} for number in range(12)]
    constraint = dialect_of("hermes").turn(given).constraint(())
    assert "f11" in constraint.grammar and "p999" not in constraint.grammar


def test_128_tools_have_a_grammar_in_every_format():
    given = [{"name": f"f{number}", "input_schema": SCHEMA} for number in range(128)]
    for name in FREE:
        assert dialect_of(name).turn(given).constraint(()) is not None, name
