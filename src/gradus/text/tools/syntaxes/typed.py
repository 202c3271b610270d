"""Raw text typed by a schema: for formats that write values without quotes."""

import json
import re
from collections.abc import Mapping
from typing import Any

from gradus.errors import RequestError
from gradus.structured.bounds import resolve
from gradus.text.tools.reader import read_all
from gradus.text.tools.syntaxes.json_text import copy_value
from gradus.text.tools.syntaxes.python_text import copy_literal

DEEPEST_SCHEMA = 8

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0+)?", re.ASCII)
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null", "nil": "null"}
_CONSTANTS = {"true": "boolean", "false": "boolean", "null": "null", "none": "null"}
_KINDS: tuple[tuple[type, str], ...] = (
    (str, "string"), (bool, "boolean"), (int, "integer"), (float, "number"), (type(None), "null"), (list, "array"),
    (dict, "object"),
)  # fmt: skip


def property_schema(schema: Mapping[str, Any], name: str) -> Any:
    """Return the schema of a property, or one that says nothing."""
    properties = schema.get("properties")
    return properties.get(name, {}) if isinstance(properties, Mapping) else {}


def properties(schema: Mapping[str, Any], allowed: re.Pattern[str], name: str) -> list[tuple[str, Any, bool]]:
    """List name, schema and whether it is required, of each property. Raises RequestError for a name that the format
    cannot write."""
    required = schema.get("required", ())
    found = [(key, each, key in required) for key, each in schema.get("properties", {}).items()]
    wrong = next((key for key, _, _ in found if not allowed.fullmatch(key)), None)
    if wrong is not None:
        raise RequestError(
            f"tools[{name}].parameters: this model's format cannot write a property named {ascii(wrong)[:60]}",
            param="tools",
            limit="property names that the model's format can write",
        )
    return found


def kinds_of(schema: Any, root: Mapping[str, Any], depth: int = DEEPEST_SCHEMA) -> frozenset[str]:
    """Collect the JSON types that a schema allows. Empty: it does not say, or only in ways not followed here."""
    if not isinstance(schema, Mapping) or depth == 0:
        return frozenset()
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset((kinds,))
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    literals = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(literals, list):
        return frozenset(next(name for kind, name in _KINDS if isinstance(value, kind)) for value in literals)
    if isinstance(reference := schema.get("$ref"), str):
        return kinds_of(resolve(root, reference) if reference.startswith("#/") else None, root, depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(branches := schema.get(key), list):
            return frozenset().union(*(kinds_of(branch, root, depth - 1) for branch in branches))
    return frozenset()


def followed(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a schema's references, and its alternatives to the first with members: {} where that leads nowhere."""
    for _ in range(DEEPEST_SCHEMA):
        if not isinstance(schema, Mapping):
            return {}
        branches = next(
            (found for key in ("anyOf", "oneOf", "allOf") if isinstance(found := schema.get(key), list)), ()
        )
        if isinstance(reference := schema.get("$ref"), str):
            schema = resolve(root, reference) if reference.startswith("#/") else None
        elif branches and "properties" not in schema:
            schema = next((each for each in branches if kinds_of(each, root) & {"object", "array"}), None)
        else:
            return schema
    return {}


def is_text(kinds: frozenset[str]) -> bool:
    """Whether a raw value can only be a string, and may be sent before it ends."""
    return kinds <= {"string"}


def typed(text: str, kinds: frozenset[str]) -> str | None:
    """Write a raw value as JSON of an allowed type; None if it can only be a string.

    A text that is allowed to be a number is one if it reads as one, and so on: quotes would have made it a string.
    """
    word = text.strip()
    if (constant := _CONSTANTS.get(word.lower())) in kinds:
        return "null" if constant == "null" else word.lower()
    if "integer" in kinds and (whole := _WHOLE.fullmatch(word)):
        return whole[1]
    if "number" in kinds and _NUMBER.fullmatch(word):
        return word
    for kind, bracket in (("object", "{"), ("array", "[")):
        if kind in kinds and word.startswith(bracket):
            written = read_all(word, copy_value)
            return written if written is not None else read_all(word, copy_literal)
    return None


def scalar(text: str, kinds: frozenset[str]) -> str:
    """Write a bare value as JSON of an allowed type, or else of the type that it looks like."""
    word = text.strip()
    if (found := typed(word, kinds)) is not None:
        return found
    if "string" not in kinds:
        if _NUMBER.fullmatch(word):
            return word
        if (constant := _WORDS.get(word.lower())) is not None:
            return constant
    return json.dumps(word, ensure_ascii=False)
