"""Random schemas: an answer that follows the rows is an instance, and every instance can be an answer."""

import json
import random
import re

import jsonschema
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.structured import Matcher
from tests.structured.schemas import document, written
from tests.structured.vocabularies import EOS, encode, legal, legal_behind, matcher, text_of

CLOSING = set(encode('"]},0'))
LONGEST = 300
SEEDS = st.integers(0, 2**32)
FORMATS = jsonschema.FormatChecker(["ipv4", "uuid", "email"])  # Python knows no year 0, which is a valid date


def walk(made: Matcher, r: random.Random) -> list[int] | None:
    """Answer at random, with a liking for what ends things. Returns the tokens, or None if it did not end in time."""
    tokens: list[int] = []
    while len(tokens) < LONGEST:
        allowed = legal(made)
        assert allowed, made.fault
        ends = [token for token in allowed if token in EOS]
        closing = [token for token in allowed if token in CLOSING]
        token = r.choice(ends if ends and r.random() < 0.7 else closing if closing and r.random() < 0.6 else allowed)
        assert made.accept([token]), made.fault
        if token in EOS:
            assert legal(made) == sorted(EOS)
            return tokens
        tokens.append(token)
    return None


@given(SEEDS, st.booleans())
def test_answers_are_instances(seed, compact):
    schema, _ = document(seed)
    structured = Structured(json_schema=json.dumps(schema), whitespace="compact" if compact else "bounded")
    answer = walk(matcher(structured), random.Random(seed))
    event(f"ended: {answer is not None}")
    if answer is not None:
        text = text_of(answer)
        jsonschema.validate(json.loads(text), schema, format_checker=FORMATS)
        if compact:
            outside = re.sub(r'"(?:\\.|[^"\\])*"', "", text)
            assert not re.search(r"\s", outside)


def test_most_random_answers_end():
    """The property above says nothing of those that don't."""
    ended = [
        walk(matcher(Structured(json_schema=json.dumps(document(seed)[0]))), random.Random(1)) for seed in range(40)
    ]
    assert sum(answer is not None for answer in ended) > 30


@given(SEEDS)
def test_instances_are_answers(seed):
    schema, valid = document(seed)
    made = matcher(Structured(json_schema=json.dumps(schema)))
    r = random.Random(seed)
    instance = valid(r)
    jsonschema.validate(instance, schema)  # of the generator
    text = written(instance, r)
    assert made.accept(encode(text)), (schema, text, made.fault)
    assert made.accepting, (schema, text)


@given(SEEDS)
def test_rows_of_drafts_are_the_rows_of_single_steps(seed):
    r = random.Random(seed)
    schema, valid = document(seed)
    structured = Structured(json_schema=json.dumps(schema))
    made = matcher(structured)
    tokens = [*encode(written(valid(r), r)), *EOS]
    place = 0
    while place < len(tokens):
        drafts = tokens[place : place + r.randint(1, 6)]
        if r.random() < 0.5:
            drafts[r.randrange(len(drafts))] = r.choice([-1, 1, 2, 5, 60, 300, 10**9])
        alone = matcher(structured)
        assert alone.accept(tokens[:place])
        expected, ahead = [], legal(alone)
        for number, token in enumerate([*drafts, None]):
            expected.append(ahead)
            if token is None or token not in ahead:
                expected += [ahead] * (len(drafts) - number)
                break
            alone.accept([token])
            ahead = legal(alone)
        assert legal_behind(made, drafts) == expected, (schema, drafts)
        assert made.accept([tokens[place]])
        place += 1
    assert made.fault is None


@given(SEEDS)
def test_forced_tokens_are_the_only_legal_ones(seed):
    r = random.Random(seed)
    schema, _ = document(seed)
    made = matcher(Structured(json_schema=json.dumps(schema), whitespace="compact"))
    for _ in range(40):
        for token in made.forced(8):
            assert legal(made) == [token], schema
            assert made.accept([token])
        allowed = [token for token in legal(made) if token not in EOS]
        if not allowed:
            break
        made.accept([r.choice(allowed)])


LOOSE = [  # what others ignore, or satisfy by chance (vLLM #56556, #30730): exact, or refused
    {"not": {"type": "string"}},
    {"type": "array", "contains": {"const": 1}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"if": {"type": "string"}, "then": {"minLength": 3}},
    {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]},
    {"type": "string", "pattern": "(?=a)b"},
    {"type": "string", "pattern": "(a)\\1"},
    {"type": "string", "pattern": "\\bfoo\\b"},
    {"type": "object", "unevaluatedProperties": False},
    {"$ref": "https://example.org/schema.json"},
    {"type": "text"},
]


@pytest.mark.parametrize("schema", LOOSE, ids=lambda schema: json.dumps(schema)[:40])
def test_what_can_not_be_kept_exactly_is_refused(schema):
    with pytest.raises(RequestError, match="structured: ") as caught:
        matcher(Structured(json_schema=json.dumps(schema)))
    assert "\n" not in str(caught.value) and caught.value.param == "structured"


def test_every_branch_of_all_of_holds():
    schema = {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["b"]},
        ],
        "additionalProperties": True,
    }
    structured = Structured(json_schema=schema, whitespace="compact")
    assert matcher(structured).accept([*encode('{"a":1,"b":"x"}'), *EOS])
    for wrong in ('{"a":1}', '{"a":"1"', '{"a":1,"b":2', '{"b":"x"'):
        assert not matcher(structured).accept([*encode(wrong), *EOS])


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07", "2019-09", "2020-12"])
def test_every_draft_is_read(draft):
    new = draft.startswith("2")
    name = f"https://json-schema.org/draft/{draft}/schema" if new else f"http://json-schema.org/{draft}/schema#"
    keyword = "$defs" if new else "definitions"
    schema = {"$schema": name, keyword: {"n": {"type": "integer", "minimum": 3}}, "$ref": f"#/{keyword}/n"}
    assert matcher(Structured(json_schema=schema)).accept([*encode("12"), 2])
    assert not matcher(Structured(json_schema=schema)).accept([*encode("2"), 2])
