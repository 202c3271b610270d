"""A JSON schema in the words that the library keeps exactly, and the keywords that are left out.

A schema that needs no other words stays as it was written. What changes:

    pattern         loses U+0000 where the library would be loose (patterns.py)
    propertyNames   becomes properties or patternProperties, where that means the same
    uniqueItems     is left out: only an array that may have two items is then not kept
    format          is left out if the library does not know it, as JSON Schema 2020-12 asks of a validator

The rest is the library's: it keeps it, or refuses it by name.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradus.engine.structured import MAX_GRAMMAR_BYTES
from gradus.structured.bounds import resolve
from gradus.structured.library import refusal
from gradus.structured.patterns import exact_pattern

FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"])
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LITERALS = ("enum", "const", "default", "examples")
ANNOTATIONS = {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"}
MOST_REFERENCES = 16  # from one place to the next


@dataclass(frozen=True, slots=True)
class Kept:
    """A schema for the library. text: its JSON. unkept: the keywords that answers need not obey, for its user."""

    schema: Any
    text: str
    unkept: tuple[str, ...] = ()


def kept(schema: Any, text: str) -> Kept:
    """Rewrite a schema. text: its JSON as given. Raises RequestError for what can't be kept, nor left out."""
    rewriting = _Rewriting(schema)
    try:
        made = rewriting.schema(schema)
        rewriting.check_references()
        if not rewriting.changed:
            return Kept(schema, text)
        return Kept(made, json.dumps(made, ensure_ascii=False, allow_nan=False), tuple(rewriting.unkept))
    except (ValueError, RecursionError):
        raise refusal("the schema nests too deep, or has a number that JSON can't write") from None


class _Rewriting:
    """One pass over a schema. unkept: in order of appearance."""

    def __init__(self, root: Any) -> None:
        self.changed = False
        self.unkept: dict[str, None] = {}
        self._root = root
        self._seen: set[int] = set()
        self._references: list[str] = []

    def schema(self, node: Any) -> Any:
        """Rewrite a value in a place where JSON Schema, or a reference to an unknown keyword, may have a schema."""
        if isinstance(node, list):
            return [self.schema(each) for each in node]
        if not isinstance(node, Mapping):
            return node
        self._seen.add(id(node))
        made = {key: self._value(key, value) for key, value in node.items()}
        if isinstance(reference := node.get("$ref"), str):
            self._references.append(reference)
        for rewrite in (self._pattern, self._names, self._unique, self._format):
            rewrite(made)
        return made

    def _value(self, keyword: str, value: Any) -> Any:
        if keyword in LITERALS:
            return value
        if keyword in MAPS and isinstance(value, Mapping):
            return {name: self.schema(each) for name, each in value.items()}
        return self.schema(value)

    def check_references(self) -> None:
        """Refuse a reference to what was not read as a schema, and so not rewritten."""
        for reference in self._references:
            target = resolve(self._root, reference)
            if isinstance(target, Mapping) and id(target) not in self._seen:
                raise refusal(f"the schema refers to {reference[:60]}, which is in no place for a schema")

    # -- keywords ------------------------------------------------------------------------------------------------------

    def _pattern(self, node: dict[str, Any]) -> None:
        if isinstance(pattern := node.get("pattern"), str):
            node["pattern"] = self._exact(pattern)
        names = node.get("patternProperties")
        if not isinstance(names, Mapping):
            return
        made = {self._exact(pattern): schema for pattern, schema in names.items()}
        if list(made) != list(names) and node.get("additionalProperties") is not False:
            made[r"\x00"] = False  # such a name may match a pattern as it was written, so it is no additional one
        node["patternProperties"] = made

    def _exact(self, pattern: str) -> str:
        made = exact_pattern(pattern)
        self.changed |= made != pattern
        return made

    def _format(self, node: dict[str, Any]) -> None:
        if isinstance(name := node.get("format"), str) and name not in FORMATS:
            del node["format"]
            self._leave_out(f"format={re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:40]}")

    def _unique(self, node: dict[str, Any]) -> None:
        if not isinstance(unique := node.get("uniqueItems"), bool):
            return
        del node["uniqueItems"]
        most = node.get("maxItems")
        self._leave_out("uniqueItems" if unique and not (isinstance(most, int) and most < 2) else None)

    def _names(self, node: dict[str, Any]) -> None:
        if "propertyNames" not in node:
            return
        names = self._followed(node.pop("propertyNames"))
        self._leave_out(None if names is True or self._replaced(node, names) else "propertyNames")

    def _replaced(self, node: dict[str, Any], names: Any) -> bool:
        """Say what names properties may have in other words, if there are any that mean the same."""
        if not isinstance(names, Mapping) or names.get("type", "string") != "string":
            return False
        rest = set(names) - ANNOTATIONS - {"type"}
        if not rest:
            return True
        value = node.get("additionalProperties", {})
        if node.get("patternProperties"):
            return False
        if rest <= {"enum", "const"}:
            self._listed(node, names, value)
        elif not node.get("properties") and rest == {"pattern"} and isinstance(names["pattern"], str):
            node |= {"patternProperties": {names["pattern"]: value}, "additionalProperties": False}
            self._pattern(node)
        else:
            return False
        return True

    def _listed(self, node: dict[str, Any], names: Mapping[str, Any], value: Any) -> None:
        """Write the allowed names as properties."""
        listed = names["enum"] if isinstance(names.get("enum"), list) else [names.get("const")]
        allowed = [name for name in listed if isinstance(name, str) and names.get("const", name) == name]
        if len(allowed) * len(json.dumps(value)) > MAX_GRAMMAR_BYTES:
            raise refusal(f"propertyNames lists {len(allowed)} names: too many for a schema of their values this large")
        own = node.get("properties", {})
        node |= {"properties": {name: own.get(name, value) for name in allowed}, "additionalProperties": False}

    def _followed(self, schema: Any) -> Any:
        """Follow a schema that is only a reference."""
        for _ in range(MOST_REFERENCES):
            if not isinstance(schema, Mapping) or set(schema) - ANNOTATIONS != {"$ref"}:
                break
            schema = resolve(self._root, schema["$ref"])
        return schema

    def _leave_out(self, name: str | None) -> None:
        self.changed = True
        if name is not None:
            self.unkept[name] = None
