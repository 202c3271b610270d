"""The grammar of Gemma 4's arguments: key:<|"|>text<|"|>,list:[1,true],object:{key:null}."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gradus.structured.bounds import resolve
from gradus.structured.lark import lark_literal, lark_regex
from gradus.text.tools.layout import gemma_text
from gradus.text.tools.syntaxes.gemma_calls import KEY, QUOTE
from gradus.text.tools.syntaxes.typed import kinds_of, properties
from gradus.text.tools.tool import Tool

_SIGNS = {"object": "properties", "array": "items"}  # of a schema's type, where it names none


class Rules(Protocol):
    """The rules of a grammar, as grammar.py writes them."""

    markers: Mapping[str, int]

    def rule(self, name: str, body: str) -> str: ...
    def once(self, name: str, body: Callable[[], str]) -> None: ...
    def text(self, text: str) -> str: ...
    def inner(self, schema: Any, root: Mapping[str, Any]) -> str: ...
    def members(self, name: str, members: Sequence[tuple[str, bool]], between: str) -> str: ...


class GemmaValues:
    """The rules of one tool's arguments as Gemma 4 writes them. Strings are free, whatever pattern or length they have.

    Its template sorts keys, in the tools that it shows as in calls, so these rules do too.
    """

    def __init__(self, rules: Rules, number: int, tool: Tool) -> None:
        self._rules, self._number, self._tool, self._root = rules, number, tool, tool.schema
        self._references: dict[str, str] = {}  # each with its rule
        self._objects = 0

    def arguments(self, exact: bool) -> str:
        any_value = self._any()
        return self._members(self._root) if exact else f'({any_value}_pair ("," {any_value}_pair)*)?'

    def value(self, schema: Any) -> str:
        """Write a value that a schema allows, as an expression or the name of a rule."""
        if not isinstance(schema, Mapping):
            return self._any()
        if isinstance(reference := schema.get("$ref"), str):
            return self._referred(reference)
        if isinstance(words := [schema["const"]] if "const" in schema else schema.get("enum"), list):
            return f"({' | '.join(self._rules.text(gemma_text(word)) for word in words)})"
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(branches := schema.get(key), list) and (key != "allOf" or len(branches) == 1):
                return f"({' | '.join(map(self.value, branches))})"
        kinds = kinds_of(schema, self._root) or {key for key, sign in _SIGNS.items() if sign in schema}
        return f"({' | '.join(self._of_kind(kind, schema) for kind in sorted(kinds))})" if kinds else self._any()

    def _of_kind(self, kind: str, schema: Mapping[str, Any]) -> str:
        match kind:
            case "string":
                return self._string()
            case "array":
                item = self.value(schema.get("items"))
                return f'"[" ({item} ("," {item})*)? "]"'
            case "object" if isinstance(schema.get("properties"), Mapping):
                return f'"{{" ({self._members(schema)}) "}}"'
            case "object":
                return f'"{{" ({self._any()}_pair ("," {self._any()}_pair)*)? "}}"'
        return self._rules.inner({**schema, "type": kind}, self._root)

    def _members(self, schema: Mapping[str, Any]) -> str:
        found = sorted(properties(schema, KEY, self._tool.name), key=lambda each: each[0].lower())
        self._objects += 1
        name = f"{self._number}_{self._objects}"
        members = [(f"{lark_literal(key + ':')} {self.value(each)}", required) for key, each, required in found]
        return self._rules.members(name, members, ",")

    def _referred(self, reference: str) -> str:
        if not reference.startswith("#/"):
            return self._any()
        if reference not in self._references:
            name = self._references[reference] = f"reference_{self._number}_{len(self._references)}"
            self._rules.rule(name, self.value(resolve(self._root, reference)))
        return self._references[reference]

    def _string(self) -> str:
        """Write the rule of a string. Between tokens it may have no others; letters that spell them end it."""
        quote, markers = self._rules.text(QUOTE), self._rules.markers
        if QUOTE in markers:
            self._rules.once("string", lambda: f"{quote} /(?s:.*)/ {quote}")
        else:
            self._rules.once("string", lambda: f"{quote} quoted")
            self._rules.once("quoted[lazy]", lambda: f"/(?s:.*)/ {quote}")
        return "string"

    def _any(self) -> str:
        """Write the rules of any value, and of a pair of any key and value. Returns the first one's name."""
        lists, objects = '"[" (anything ("," anything)*)? "]"', '"{" (anything_pair ("," anything_pair)*)? "}"'
        scalar = {"type": ["number", "boolean", "null"]}
        self._rules.once(
            "anything", lambda: f"{self._string()} | {self._rules.inner(scalar, {})} | {lists} | {objects}"
        )
        self._rules.once("anything_pair", lambda: f'{lark_regex(KEY.pattern)} ":" anything')
        return "anything"
