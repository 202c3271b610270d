"""Schemas of structured_outputs: an object has the properties that its schema lists, as in vLLM."""

import json

import pytest

from gradus.server.api.closing import closed
from gradus.server.api.fields import Fields
from gradus.server.api.openai import constraint

NAME = {"properties": {"name": {"type": "string"}}}
SHUT = {**NAME, "additionalProperties": False}


def test_objects_are_closed_wherever_they_are():
    schema = {
        "type": "object",
        "properties": {"a": NAME, "items": {"items": NAME}, "c": {"anyOf": [NAME, {"type": "null"}]}},
        "$defs": {"d": NAME},
        "required": ["a"],
    }
    assert closed(schema) == {
        "type": "object",
        "properties": {"a": SHUT, "items": {"items": SHUT}, "c": {"anyOf": [SHUT, {"type": "null"}]}},
        "$defs": {"d": SHUT},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert json.loads(closed(json.dumps(schema))) == closed(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {**NAME, "additionalProperties": True},
        {**NAME, "additionalProperties": {"type": "integer"}},
        {**NAME, "patternProperties": {"^x": {}}},
        {"type": "object"},  # says nothing of properties
        {"allOf": [NAME, {"properties": {"age": {"type": "integer"}}}]},  # one object, described twice
        {"properties": {"a": {"if": NAME, "then": NAME}}},
        {**NAME, "anyOf": [{"properties": {"age": {}}}]},
        {"$ref": "#/$defs/a", **NAME, "$defs": {"a": NAME}},
        {"enum": [{"properties": {}}]},
        {"const": {"properties": {}}},
        {},
        True,
        7,
        "no JSON",
        "[1]",
    ],
    ids=str,
)
def test_what_says_otherwise_or_joins_schemas_stays_as_it_is(schema):
    assert closed(schema) == schema


def test_the_depth_of_a_schema_ends_no_request():
    deep = {}
    for _ in range(100_000):
        deep = {"items": deep}
    assert closed(deep) is deep
    assert isinstance(closed("[" * 100_000), str)


def test_only_structured_outputs_and_its_older_names_close_a_schema():
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": NAME}}
    assert json.loads(constraint(Fields({"response_format": asked})).text) == NAME
    for fields in (
        {"structured_outputs": {"json": NAME}},
        {"structured_outputs": {"json": NAME, "disable_additional_properties": True}},
        {"guided_json": NAME},
    ):
        assert json.loads(constraint(Fields(fields)).text) == SHUT
