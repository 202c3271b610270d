"""Closing a schema: an object gets the properties that its schema lists, and no others.

In JSON Schema, an object may have any further property, and a small model invents some until its tokens run out.
vLLM's usual backend (xgrammar, in its strict mode) forbids those that the schema does not mention, and clients of
`structured_outputs` are written for that. A schema that says what it wants (`additionalProperties`) is left alone.
"""

import json
from typing import Any

OPEN = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
"""Keywords that already say which other properties an object may have."""

JOINED = frozenset({"allOf", "if", "then", "else", "not", "dependentSchemas", "dependencies", "$dynamicRef"})
"""Keywords by which several schemas describe one object. Closing one of them would forbid the others' properties, so a
schema with any of them stays as it is."""

BRANCHES = frozenset({"anyOf", "oneOf", "$ref"})
MAPS = frozenset({"properties", "$defs", "definitions"})
"""Keywords that hold schemas by name."""

LISTS = frozenset({"prefixItems", "anyOf", "oneOf"})


def closed(schema: Any) -> Any:
    """Return the schema, an object or its JSON, with `additionalProperties: false` where it lists properties only.

    Anything that is no schema is returned unchanged: it is checked later.
    """
    if isinstance(schema, str):
        try:
            found = json.loads(schema)
        except (ValueError, RecursionError):
            return schema
        return json.dumps(closed(found)) if isinstance(found, dict) else schema
    try:
        return _closed(schema) if isinstance(schema, dict) and not _joins(schema) else schema
    except RecursionError:
        return schema


def _joins(schema: Any) -> bool:
    """Whether JOINED keywords occur anywhere, or `properties` next to branches that may list more of them.

    A property of such a name counts as well, which leaves the schema open.
    """
    if isinstance(schema, list):
        return any(_joins(each) for each in schema)
    if not isinstance(schema, dict):
        return False
    beside = "properties" in schema and BRANCHES & schema.keys()
    return bool(JOINED & schema.keys() or beside) or any(_joins(each) for each in schema.values())


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for name, value in schema.items():
        if name in MAPS and isinstance(value, dict):
            made[name] = {key: _closed(each) for key, each in value.items()}
        elif name in LISTS and isinstance(value, list):
            made[name] = [_closed(each) for each in value]
        else:
            made[name] = _closed(value) if name == "items" else value
    if isinstance(schema.get("properties"), dict) and not OPEN & schema.keys():
        made["additionalProperties"] = False
    return made
