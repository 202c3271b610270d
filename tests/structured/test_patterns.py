"""A pattern of a JSON schema says what the string may be, not how JSON writes it."""

import json
import re
import time

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.structured.bounds import MAX_REGEX
from gradus.structured.patterns import exact_pattern
from tests.structured.vocabularies import EOS, encode, matcher

SPECIAL = ['"', "\\", "/", "a", "z", " ", "-", "\t", "\n", "\x01", "\x1f", "\x7f", "é", "日", "😀"]
TEXTS = [*SPECIAL, "", 'say "hi"', "a\\b", "line\nbreak", 'é"']


def accepts(schema, text: str) -> bool:
    return matcher(Structured(json_schema=schema, whitespace="compact")).accept([*encode(text), *EOS[:1]])


def spelled(value) -> str:
    """Write JSON as the library has it: the control characters escaped, all others as they are."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def matches(pattern: str, text: str) -> bool:
    """Search as JSON Schema does: `$` is the end alone, and classes such as \\w hold ASCII."""
    return re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None


def check(pattern: str, as_python: str | None = None) -> None:
    schema = {"type": "string", "pattern": pattern}
    for text in TEXTS:
        expected = matches(as_python or pattern, text)
        assert accepts(schema, spelled(text)) == expected, (pattern, text)


@pytest.mark.parametrize("pattern", [
    r'^[^"]*$', r'^[^"\\]+$', r"^[^\\]*$", r'^[^"<>]{1,9}$', r'^[^\\/:*?"<>|]+$', r'[^"]', r'^[^"]?"$', r'(^|a)[^"]$',
    r'^[^"\n]$', r'^[^\x00-\x1f"]*$', r'^[^\u0000-\u001f\\]*$', r"^[\x01-!#-~]*$", r'^[^\s"]+$', r'^[^\d"]+$',
    r'^(?:[\x01-\x0f]|[^"\x01-\x0f])*$', r'^(?:[^"]|\\)$', r'^(?:\s|[^"\s])*$', r'^[^]"]$', r'^[^\]\\]+$', r'^[^-"]+$',
    r"^\S+$", r"^.$", r"^\D$", r"^\W*$", r"^[\s\S]*$", r"^(?s:.)$", r"^[\w\W]+$", r"^[a-z ]*$", r"^[^a]$",
    r'^a[^"]{0,3}', r'(?i)^[^A"]$',
])  # fmt: skip
def test_a_class_holds_what_it_says(pattern):
    check(pattern)


@pytest.mark.parametrize(("pattern", "as_python"), [
    (r"^\p{Cc}$", "^[\x01-\x1f\x7f]$"), (r"^\P{Cc}$", "^[^\x01-\x1f\x7f]$"), (r"^\p{L}+$", r"^[azé日]+$"),
    (r'^[^"\p{L}]$', r'^[^"a-zé日]$'), (r"^[[:cntrl:]é]$", "^[\x01-\x1f\x7fé]$"), (r'^[^"&&[^a]]$', r'^[^"]$'),
    (r'^[[^"]--a]$', r'^[^"a]$'), (r'^[^"\u{e9}]$', r'^[^"é]$'), (r"^[\x{1}-!#-~]$", r"^[\x01-!#-~]$"),
])  # fmt: skip
def test_a_class_in_words_of_its_own_holds_what_it_says(pattern, as_python):
    check(pattern, as_python)


ITEMS = st.sampled_from(['"', r"\\", "a", "/", r"\x01-\x1f", r"\x00-\x20", "!-~", r"\s", r"\S", r"\d", r"\D", r"\w",
                         r"\W", "é", r"\n", r"\x01", r"\u0000-\u00ff", "日-😀", " ", "#-z"])  # fmt: skip
CLASSES = st.builds(
    lambda no, items: f"[{no}{''.join(items)}]", st.sampled_from(["", "^"]), st.lists(ITEMS, min_size=1)
)
PARTS = st.one_of(CLASSES, st.sampled_from(['"', r"\\", ".", r"\S", r"\W", "a"]))


@given(st.lists(PARTS, min_size=1, max_size=3), st.sampled_from(["*", "", "+", "{0,2}"]))
def test_alternatives_of_classes_hold_what_they_say(parts, repeats):
    """The library makes one class of them."""
    pattern = f"^(?:{'|'.join(parts)}){repeats}$"
    schema = {"type": "string", "pattern": pattern}
    try:
        matcher(Structured(json_schema=schema))
    except RequestError as error:
        assert "Unsatisfiable" in str(error) or "satisfies" in str(error)
        return
    for text in TEXTS:
        assert accepts(schema, spelled(text)) == matches(pattern, text), (pattern, text)


@pytest.mark.parametrize("rest", [{}, {"additionalProperties": False}, {"additionalProperties": {"type": "null"}}])
def test_names_hold_what_their_pattern_says(rest):
    schema = {"type": "object", "patternProperties": {'^[^"]*$': {"type": "integer"}}, **rest}
    for name in ("a", '"', "\\", "a\\", 'a"b', ""):
        for value in (1, None):
            text = spelled({name: value}).replace(" ", "")
            assert accepts(schema, text) == jsonschema.Draft202012Validator(schema).is_valid({name: value}), text
    for value in ("1", "null"):
        assert not accepts(schema, f'{{"\\u0000":{value}}}')


@pytest.mark.parametrize("schema", [
    {"$defs": {"s": {"type": "string", "pattern": '^[^"]$'}}, "$ref": "#/$defs/s"},
    {"components": {"s": {"type": "string", "pattern": '^[^"]$'}}, "$ref": "#/components/s"},
    {"anyOf": [{"type": "string", "pattern": '^[^"]$'}, {"type": "null"}]},
    {"type": "string", "allOf": [{"pattern": '^[^"]$'}, {"maxLength": 3}]},
    {"type": "string", "pattern": '^[^"]$', "default": 1.50, "title": 'a "quoted" title'},
])  # fmt: skip
def test_a_pattern_is_read_wherever_it_is(schema):
    assert accepts(schema, '"a"') and not accepts(schema, r'"\""') and accepts(schema, r'"\\"')


def test_what_looks_like_a_pattern_in_a_literal_is_data():
    value = {"pattern": '^[^"]$', "format": "path", "uniqueItems": True}
    assert accepts({"const": value, "properties": {"pattern": {"type": "string"}}}, spelled(value).replace(" ", ""))


@pytest.mark.parametrize(("schema", "reason"), [
    ({"pattern": r'^(?:\x00|[^"\x00])$'}, "names U+0000 and has alternatives"),
    ({"pattern": r"(?x) [^\x22] # a comment"}, "the flag x"),
    ({"$ref": "#/enum/0", "enum": [{"pattern": "a"}]}, "in no place for a schema"),
    ({"pattern": '^[^"]$', "maximum": float("1e999")}, "a number that JSON can't write"),
])  # fmt: skip
def test_what_has_no_exact_form_is_refused(schema, reason):
    written = json.dumps({"type": "string", **schema}).replace("Infinity", "1e999")
    with pytest.raises(RequestError, match=re.escape(reason)) as caught:
        matcher(Structured(json_schema=written))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("unit", ["[", "[^", r"\p{", "(?", r"\x{", "[]", "[^a]", "a-", "[a-", r"[\d"])
def test_reading_a_long_pattern_takes_time_in_proportion(unit):
    began = time.process_time()
    exact_pattern(unit * (MAX_REGEX // len(unit)))
    assert time.process_time() - began < 0.5


def test_rewriting_twice_changes_nothing_more():
    once = exact_pattern(r'^[^"]\p{L}[a-z]$')
    assert once != r'^[^"]\p{L}[a-z]$' and exact_pattern(once) == once
