"""The grammar of an answer with tool calls, in llguidance's dialect of Lark.

`%json` takes a tool's schema as it was given. A marker that is a token is written as one, <tool_call>: text never
matches such a token, so free text needs no rule that keeps markers out of it. A marker that is text ends a lazy lexeme:
everything up to it is free, and the call behind it is not.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.structured.lark import lark_literal, lark_regex
from gradus.text.tools.answer import Thoughts
from gradus.text.tools.layout import Layout
from gradus.text.tools.tool import Tool
from gradus.text.tools.typed import is_text, kinds_of

ANYTHING = "/(?s:.*)/"
ANY_OBJECT: dict[str, Any] = {"type": "object"}

# models write JSON as Python's json.dumps does, because their templates show it so
_ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def answer_grammar(
    layout: Layout,
    tools: Sequence[Tool],
    markers: Mapping[str, int],
    *,
    forced: bool,
    several: bool,
    exact: Callable[[Tool], bool],
    thoughts: Thoughts | None = None,
    text: Structured | None = None,
) -> str:
    """Write the grammar of an answer with calls.

    markers: token ids by text. forced: the answer begins with a call; otherwise it is any text, and calls where it
    begins one. several: more than one call. exact: whether a tool's arguments must obey its schema, or may be any
    object. thoughts: reasoning that may come first, or that the prompt has begun. text: what an answer without calls
    must be; the calls' trigger is a token then.

    Text behind the first call of a forced answer is free: under a mask that left only the next call or the end, models
    would call on and on. The reader ends such an answer where text begins (`AnswerParser`).
    """
    lark = _Lark(markers)
    several = several and layout.between is not None
    trigger = lark.text(layout.trigger)
    call = lark.rule("call", " | ".join(lark.call(layout, number, tool, exact) for number, tool in enumerate(tools)))
    if layout.trigger_in_call:
        behind, more = call, f" ({lark.text(layout.between or '')} {trigger} {call})*"
    else:
        opening = lark.text(layout.opening.removeprefix(layout.trigger))
        more = f" ({lark.text(layout.between or '')} {call})*" if several else ""
        behind, more = f"{opening} {call}{more} {lark.text(layout.closing)}", ""
    thought = lark.thought(thoughts, optional=forced or layout.trigger in markers)
    if forced:
        answer = f"{trigger} {behind}{_further(lark, layout, markers, behind) if several else ''}"
    elif text is not None:
        answer = f"({trigger} {behind}{more if several else ''} | {lark.constrained(text)})"
    elif layout.at_start:
        first = re.escape(layout.trigger[0])
        answer = f"({trigger} {behind}{more if several else ''} | /([^{first}\\s](?s:.*))?/)"
    elif layout.trigger in markers:
        answer = f"text ({trigger} {behind} text)" + ("*" if several else "?")
        lark.rule("text", ANYTHING)
    else:
        lark.rule("head[lazy]", f"{ANYTHING} {trigger}")
        answer = f"(head {behind})" + ("*" if several else "?") + f" {ANYTHING}"
    return lark.written(f"{thought} {answer}")


def _further(lark: "_Lark", layout: Layout, markers: Mapping[str, int], behind: str) -> str:
    """Write free text with further calls in it; nothing if one trigger begins all calls of an answer."""
    if not layout.trigger_in_call:
        return ""
    if layout.trigger in markers:
        lark.rule("text", ANYTHING)
        return f" text ({lark.text(layout.trigger)} {behind} text)*"
    lark.rule("head[lazy]", f"{ANYTHING} {lark.text(layout.trigger)}")
    return f" (head {behind})* {ANYTHING}"


def text_grammar(text: Structured, markers: Mapping[str, int], thoughts: Thoughts) -> str:
    """Write the grammar of an answer without calls, behind its reasoning."""
    lark = _Lark(markers)
    thought = lark.thought(thoughts, optional=True)
    return lark.written(f"{thought} {lark.constrained(text)}")


class _Lark:
    """Rules in the order of their making."""

    def __init__(self, markers: Mapping[str, int]) -> None:
        self._markers = markers
        self._rules: list[str] = []
        self._shared: set[str] = set()
        self._split = re.compile("(" + "|".join(map(re.escape, markers)) + ")") if markers else None

    def rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return name.split("[")[0]

    def written(self, start: str) -> str:
        return "\n".join([f"start: {' '.join(start.split(' '))}".rstrip(), *self._rules]) + "\n"

    def text(self, text: str) -> str:
        """A text as literals and marker tokens."""
        parts = self._split.split(text) if self._split else [text]
        return " ".join(_token(part) if part in self._markers else lark_literal(part) for part in parts if part)

    def json(self, schema: Any) -> str:
        given = dict(schema) if isinstance(schema, Mapping) else {} if schema is True else {"allOf": [schema]}
        return "%json " + json.dumps(given | {"x-guidance": _ON_ONE_LINE})

    def constrained(self, text: Structured) -> str:
        """Write a constraint that is no grammar itself. A schema without options gets the whitespace of the request."""
        match text.kind:
            case "json_schema":
                return self.rule("answer", "%json " + ("{}" if text.text == "true" else text.text))
            case "json":
                return self.rule("answer", "%json {}")
            case "choice":
                return self.rule("answer", " | ".join(lark_literal(each) for each in text.choice or ()))
        return self.rule("answer", lark_regex(text.text))

    # -- one call ------------------------------------------------------------------------------------------------------

    def call(self, layout: Layout, number: int, tool: Tool, exact: Callable[[Tool], bool]) -> str:
        """Write the rules of a call behind its trigger. Returns the name of the first."""
        template = layout.call.removeprefix(layout.trigger) if layout.trigger_in_call else layout.call
        before, kind, after = re.split(r"\$(json|xml|python)", template.replace("$name", tool.name))
        make = {"json": self._json_arguments, "xml": self._xml_arguments, "python": self._python_arguments}[kind]
        arguments = self.rule(f"arguments_{number}", make(number, tool, exact(tool)) or '""')
        return self.rule(f"call_{number}", f"{self.text(before)} {arguments} {self.text(after)}".strip())

    def _json_arguments(self, number: int, tool: Tool, exact: bool) -> str:
        return self.json(tool.schema if exact else ANY_OBJECT)

    def _xml_arguments(self, number: int, tool: Tool, exact: bool) -> str:
        """Parameters in the schema's order. A text is free up to its closing tag, whatever pattern or length it has."""
        self._once("raw[lazy]", lambda: f'{ANYTHING} "\\n</parameter>\\n"')
        if not exact:
            return '("<parameter=" /[^<>\\n]+/ ">\\n" raw)*'
        found = []
        for key, schema, required in _properties(tool, re.compile(r"[^<>\n]+")):
            value = self._xml_value(schema, tool.schema)
            found.append(f"({lark_literal(f'<parameter={key}>' + chr(10))} {value})" + ("" if required else "?"))
        return " ".join(found)

    def _xml_value(self, schema: Any, root: Mapping[str, Any]) -> str:
        end = lark_literal("\n</parameter>\n")
        words = schema.get("enum") if isinstance(schema, Mapping) else None
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            return f"({' | '.join(lark_literal(word) for word in words)}) {end}"
        kinds = kinds_of(schema, root)
        return "raw" if is_text(kinds) or "string" in kinds else f"{self._inner(schema, root)} {end}"

    def _python_arguments(self, number: int, tool: Tool, exact: bool) -> str:
        """Keyword arguments in the schema's order, with commas between those that are there."""
        if not exact:
            self._once("keyword", lambda: f'/[A-Za-z_][A-Za-z0-9_]*/ "=" {self._inner({}, {})}')
            return '(keyword (", " keyword)*)?'
        properties = _properties(tool, re.compile(r"[A-Za-z_]\w*", re.ASCII))
        first = rest = '""'  # the arguments from here on: none came before; some did
        for index in reversed(range(len(properties))):
            key, schema, required = properties[index]
            value = self.rule(
                f"value_{number}_{index}", f"{lark_literal(key + '=')} {self._python_value(schema, tool.schema)}"
            )
            behind = self.rule(f"rest_{number}_{index + 1}", rest)
            rest = f'", " {value} {behind}' + ("" if required else f" | {behind}")
            first = f"{value} {behind}" + ("" if required else f" | {self.rule(f'first_{number}_{index + 1}', first)}")
        return first

    def _python_value(self, schema: Any, root: Mapping[str, Any]) -> str:
        literal = isinstance(schema, Mapping) and ("enum" in schema or "const" in schema)
        if not literal and kinds_of(schema, root) == {"boolean"}:
            return '("True" | "False")'
        return self._inner(schema, root)

    def _inner(self, schema: Any, root: Mapping[str, Any]) -> str:
        """A part of a schema, with the definitions that it may refer to. A rule of its own: `%json` takes the line."""
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        given = {**schema, **shared} if isinstance(schema, Mapping) else schema
        return self.rule(f"json_{len(self._rules)}", self.json(given))

    def _once(self, name: str, body: Callable[[], str]) -> None:
        """Write a rule that several tools share."""
        if name not in self._shared:
            self._shared.add(name)
            self.rule(name, body())

    # -- reasoning -----------------------------------------------------------------------------------------------------

    def thought(self, thoughts: Thoughts | None, optional: bool) -> str:
        """Write the reasoning before the answer: the rest of one that the prompt began, or a whole, optional one."""
        if thoughts is None or not (thoughts.inside or optional):
            return ""
        if thoughts.closing in self._markers:
            rest = f"{ANYTHING} {self.text(thoughts.closing)} /[ \\n]*/"
        else:
            rest = self.rule("thought[lazy]", f"{ANYTHING} {self.text(thoughts.closing)}") + " /[ \\n]*/"
        return rest if thoughts.inside else f"({self.text(thoughts.opening)} {rest})?"


def _token(marker: str) -> str:
    """Name a token by its spelling, in angle brackets: gradus.structured puts its number in the name's place."""
    return marker if re.fullmatch(r"<[^<>\s]+>", marker) else f"<{marker}>"


def _properties(tool: Tool, allowed: re.Pattern[str]) -> list[tuple[str, Any, bool]]:
    """List name, schema and whether it is required, of each property. Raises RequestError for a name that the format
    cannot write."""
    required = tool.schema.get("required", ())
    found = [(key, schema, key in required) for key, schema in tool.schema.get("properties", {}).items()]
    wrong = next((key for key, _, _ in found if not allowed.fullmatch(key)), None)
    if wrong is not None:
        raise RequestError(
            f"tools[{tool.name}].parameters: this model's format cannot write a property named {ascii(wrong)[:60]}",
            param="tools",
            limit="property names that the model's format can write",
        )
    return found
