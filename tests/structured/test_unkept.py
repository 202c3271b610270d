"""Keywords that the library lacks are put in other words that mean the same, or left out and named."""

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.engine.structured import Structured
from gradus.errors import RequestError
from tests.structured.vocabularies import EOS, GRAMMARS, encode, matcher


def unkept(schema) -> tuple[str, ...]:
    structured = Structured(json_schema=schema)
    GRAMMARS.check(structured)
    assert GRAMMARS.unkept(structured) == GRAMMARS.unkept(Structured(json_schema=f" {json.dumps(schema)}"))
    return GRAMMARS.unkept(structured)


def accepts(schema, value) -> bool:
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return matcher(Structured(json_schema=schema, whitespace="compact")).accept([*encode(written), EOS[0]])


STRINGS = {"$defs": {"c": {"type": "string", "enum": ["red", 'gr"een'], "title": "Color"}}}
INTEGER, MAP = {"type": "integer"}, {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(("schema", "names"), [
    ({"type": "string", "format": "date"}, ()),
    ({"type": "string", "format": "path"}, ("format=path",)),
    ({"type": "integer", "format": "uint32", "minimum": 0}, ("format=uint32",)),
    ({"type": "string", "format": "a b\r\nx: é"}, ("format=a_b__x___",)),
    ({"properties": {"format": {"type": "string"}, "uniqueItems": {}, "propertyNames": {}}}, ()),
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, ("uniqueItems",)),
    ({"type": "array", "items": INTEGER, "uniqueItems": False}, ()),
    ({"type": "array", "items": INTEGER, "uniqueItems": True, "maxItems": 1}, ()),
    ({"anyOf": [{"format": "path"}, {"format": "binary"}, {"format": "path"}]}, ("format=path", "format=binary")),
    ({**MAP, "propertyNames": {}}, ()),
    ({**MAP, "propertyNames": True}, ()),
    ({**MAP, "propertyNames": {"type": "string"}}, ()),
    ({**MAP, "propertyNames": {"$ref": "#/$defs/c"}, **STRINGS}, ()),
    ({**MAP, "propertyNames": {"pattern": "^[^\"]$"}}, ()),
    ({**MAP, "propertyNames": False}, ("propertyNames",)),
    ({**MAP, "propertyNames": {"$ref": "#/$defs/nowhere"}}, ("propertyNames",)),
    ({**MAP, "propertyNames": {"maxLength": 3}}, ("propertyNames",)),
    ({**MAP, "propertyNames": {"format": "uuid"}}, ("propertyNames",)),
    ({**MAP, "propertyNames": {"pattern": "^a"}, "properties": {"b": {}}}, ("propertyNames",)),
    ({**MAP, "propertyNames": {"enum": ["a"]}, "patternProperties": {"^b": {}}}, ("propertyNames",)),
])  # fmt: skip
def test_what_is_left_out_is_named(schema, names):
    assert unkept(schema) == names


def test_schemas_inside_a_grammar_are_read_too():
    structured = Structured(grammar='start: %json {"type": "string", "format": "path"} %json {"uniqueItems": true}')
    GRAMMARS.check(structured)
    assert GRAMMARS.unkept(structured) == ("format=path", "uniqueItems")
    assert GRAMMARS.unkept(Structured(regex="a")) == ()


NAMES = ["red", 'gr"een', "a", "a\\", "b", ""]
OBJECTS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([1, "x"]), max_size=3)


@pytest.mark.parametrize("schema", [
    {**MAP, "propertyNames": {"enum": NAMES[:2]}},
    {**MAP, "propertyNames": {"$ref": "#/$defs/c"}, **STRINGS},
    {**MAP, "propertyNames": {"const": "red"}},
    {**MAP, "propertyNames": {"enum": NAMES[:2], "const": "a"}},
    {**MAP, "propertyNames": {"pattern": '^[^"]{1,3}$'}},
    {"type": "object", "propertyNames": {"enum": ["red", "a"]}, "properties": {"a": INTEGER, "b": {}}},
    {"type": "object", "propertyNames": {"enum": ["red", 1]}, "required": ["red"]},
    {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"propertyNames": {"enum": ["red"]}}},
])  # fmt: skip
@given(value=OBJECTS)
def test_names_in_other_words_mean_the_same(schema, value):
    """Properties that are listed come in that order."""
    assert unkept(schema) == ()
    value = dict(sorted(value.items(), key=lambda item: NAMES.index(item[0])))
    assert accepts(schema, value) == jsonschema.Draft202012Validator(schema).is_valid(value)


def test_many_names_with_a_large_schema_of_their_values_are_refused():
    names, value = [f"n{number}" for number in range(400)], {"enum": ["x" * 100] * 20}
    with pytest.raises(RequestError, match="propertyNames lists 400 names: too many"):
        GRAMMARS.check(Structured(json_schema={"propertyNames": {"enum": names}, "additionalProperties": value}))
