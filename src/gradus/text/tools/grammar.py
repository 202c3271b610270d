"""The grammar of tool calls, in llguidance's dialect of Lark.

`%json` takes a tool's schema as it was given. A marker that is a token is written as one, <tool_call>. Where a model is
free to call, the grammar is of the calls alone (`lazy_grammar`), unless they begin with a text anywhere in the answer:
such a text ends a lazy lexeme: everything up to it is free, and the call behind it is not.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gradus.engine.structured import Lazy, Structured
from gradus.structured.lark import lark_literal, lark_regex
from gradus.text.tools import channel_grammar
from gradus.text.tools.answer import Thoughts
from gradus.text.tools.gemma_grammar import GemmaValues
from gradus.text.tools.layout import Layout
from gradus.text.tools.syntaxes.typed import is_text, kinds_of, properties
from gradus.text.tools.tool import Tool

ANYTHING = "/(?s:.*)/"
ANY_OBJECT: dict[str, Any] = {"type": "object"}

CERTAIN = {"json": r'"(name|arguments|parameters)"\s*:', "python": r"\("}
"""A text that may become a bare call is one from where this matches; by kind."""

# models write JSON as Python's json.dumps does, because their templates show it so
_ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def answer_grammar(
    layout: Layout,
    tools: Sequence[Tool],
    markers: Mapping[str, int],
    *,
    several: bool,
    exact: Callable[[Tool], bool],
    thoughts: Thoughts | None = None,
    text: Structured | None = None,
) -> str:
    """Write the grammar of an answer that begins with a call, or (text) is either calls or of this form.

    markers: token ids by text. several: more than one call. exact: whether a tool's arguments must obey its schema, or
    may be any object. thoughts: reasoning that may come first, or that the prompt has begun. text: what an answer
    without calls must be; the calls' trigger is a token then.
    """
    lark = Lark(markers)
    if layout.channels:
        return channel_grammar.answer(lark, tools, exact, thoughts, text)
    thought = lark.thought(thoughts, optional=True)
    if text is None:
        return lark.written(f"{thought} {lark.forced(layout, tools, several, exact)}")
    return lark.written(f"{thought} ({lark.calls(layout, tools, several, exact)} | {lark.constrained(text)})")


def lazy_grammar(
    layout: Layout,
    tools: Sequence[Tool],
    markers: Mapping[str, int],
    *,
    several: bool,
    exact: Callable[[Tool], bool],
    thoughts: Thoughts | None = None,
) -> tuple[str, Lazy]:
    """Write the grammar of the calls in an answer that is free otherwise, and where in the answer they begin.

    Calls that begin with a text, anywhere in an answer, need a grammar of the whole answer: see `Lazy.whole`.
    """
    lark = Lark(markers)
    if layout.channels:
        return channel_grammar.lazy(lark, tools, exact)
    tokens = tuple(text for text in (layout.trigger, *layout.also) if text in markers)
    if layout.trigger not in markers and layout.trigger not in ("{", "["):
        return lark.whole(layout, tools, several, exact, thoughts), Lazy(whole=True)
    found, certain = list[str](), list[str]()
    if layout.trigger in markers:
        found += lark.beginnings(layout, tools, several and not layout.trigger_in_call, exact)
        certain += [rf"{re.escape(text)}\s*\[" for text in layout.spelled]
    if layout.bare:
        bare = lark.rule("bare", lark.bare(layout, tools, several, exact))
        found += [bare, *(f"{lark.text(text)} BLANKS {bare}" for text in layout.also if text in markers)]
    shown = () if thoughts is None else (thoughts.opening, thoughts.closing)
    inside = thoughts is not None and thoughts.inside
    if layout.bare:
        certain.append(CERTAIN[layout.bare])
    return lark.written(" | ".join(found)), Lazy(tokens, "|".join(certain) or None, several, shown, inside)


def text_grammar(layout: Layout, text: Structured, markers: Mapping[str, int], thoughts: Thoughts) -> str:
    """Write the grammar of an answer without calls, behind its reasoning."""
    lark = Lark(markers)
    if layout.channels:
        return channel_grammar.answer(lark, (), lambda tool: False, thoughts, text)
    thought = lark.thought(thoughts, optional=True)
    return lark.written(f"{thought} {lark.constrained(text)}")


class Lark:
    """Rules in the order of their making. markers: those that are tokens."""

    def __init__(self, markers: Mapping[str, int]) -> None:
        self.markers = markers
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
        return " ".join(_token(part) if part in self.markers else lark_literal(part) for part in parts if part)

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

    # -- calls ---------------------------------------------------------------------------------------------------------

    def calls(self, layout: Layout, tools: Sequence[Tool], several: bool, exact: Callable[[Tool], bool]) -> str:
        """One or more calls, from their trigger to their end."""
        trigger, behind, more = self.text(layout.trigger), *self._behind(layout, tools, several, exact)
        return f"{trigger} {behind}{more}"

    def beginnings(
        self, layout: Layout, tools: Sequence[Tool], several: bool, exact: Callable[[Tool], bool]
    ) -> list[str]:
        """Calls behind each text that may begin them: the trigger, and others in its place."""
        behind, more = self._behind(layout, tools, several, exact)
        if layout.spelled:
            self.once("BLANKS", lambda: r"/[ \t\r\n]*/")
        others = [f"BLANKS {self.text(text)} BLANKS {behind}" for text in layout.spelled]
        return [f"{self.text(layout.trigger)} {behind}{more}", *others]

    def forced(self, layout: Layout, tools: Sequence[Tool], several: bool, exact: Callable[[Tool], bool]) -> str:
        """A call, and behind it any text, with further calls in it, if several may begin with the trigger.

        Under a mask that left only the next call or the end, models would call on and on. The reader ends the answer
        where other text begins (`AnswerParser`).
        """
        trigger, behind, more = self.text(layout.trigger), *self._behind(layout, tools, several, exact)
        if not more:
            return f"{trigger} {behind}"
        if layout.trigger in self.markers:
            self.rule("text", ANYTHING)
            return f"{trigger} {behind} text ({trigger} {behind} text)*"
        self.rule("head[lazy]", f"{ANYTHING} {trigger}")
        return f"{trigger} {behind} (head {behind})* {ANYTHING}"

    def whole(
        self,
        layout: Layout,
        tools: Sequence[Tool],
        several: bool,
        exact: Callable[[Tool], bool],
        thoughts: Thoughts | None,
    ) -> str:
        """An answer that is any text, and calls where it begins one."""
        behind, _ = self._behind(layout, tools, several, exact)
        self.rule("head[lazy]", f"{ANYTHING} {self.text(layout.trigger)}")
        found = [f"head {behind}"]
        if layout.lines:
            call = f" ({self.text(layout.between or '')} call)*" if several else ""
            found += [f'{line} ")"{call} "]"' for line in self._lines(tools, exact)]
        thought = self.thought(thoughts, optional=False)
        return self.written(f"{thought} ({' | '.join(found)})" + ("*" if several else "?") + f" {ANYTHING}")

    def _lines(self, tools: Sequence[Tool], exact: Callable[[Tool], bool]) -> list[str]:
        """The first calls of lists that begin a line, up to their ends. Tools with any arguments share a rule."""
        groups = [([tool.name], f"arguments_{number}") for number, tool in enumerate(tools) if exact(tool)]
        loose = [(tool.name, f"arguments_{number}") for number, tool in enumerate(tools) if not exact(tool)]
        if loose:
            groups.append(([name for name, _ in loose], loose[0][1]))
        found = []
        for number, (names, arguments) in enumerate(groups):
            beginning = r"((?s:.*)\n)?\[[ \t\r\n]*(" + "|".join(map(re.escape, names)) + r")\("
            found.append(f"{self.rule(f'line_{number}[lazy]', f'/{beginning}/')} {arguments}")
        return found

    def _behind(
        self, layout: Layout, tools: Sequence[Tool], several: bool, exact: Callable[[Tool], bool]
    ) -> tuple[str, str]:
        """Write the first call behind the trigger, or all of them if something is around them, and further calls."""
        several = several and layout.between is not None
        between = self.text(layout.between or "")
        call = self.rule(
            "call", " | ".join(self.call(layout, number, tool, exact) for number, tool in enumerate(tools))
        )
        if layout.trigger_in_call:
            return call, f" ({between} {self.text(layout.trigger)} {call})*" if several else ""
        opening = self.text(layout.opening.removeprefix(layout.trigger))
        return f"{opening} {call}{f' ({between} {call})*' if several else ''} {self.text(layout.closing)}", ""

    def bare(self, layout: Layout, tools: Sequence[Tool], several: bool, exact: Callable[[Tool], bool]) -> str:
        """Calls that begin the answer without a marker, as models write them; see `Layout.bare`.

        Up to where they are certain, all that the reader takes for the beginning of a call is one here, too.
        """
        self.once("BLANKS", lambda: r"/[ \t\r\n]*/")
        if layout.bare == "python":
            calls = " | ".join(
                f'{lark_literal(tool.name + "(")} {self.arguments(number, tool, "python", exact)} ")"'
                for number, tool in enumerate(tools)
            )
            call = self.rule("bare_call", calls)
            more = f' (", " {call})*' if several else ""
            return f'BLANKS "[" BLANKS {call}{more} "]"'
        self.rule("GAP", r"/[ \t\r\n]{0,16}/")
        self.rule("ASIDE", r'/"(type|id|call_id)"[ \t\r\n]*:[ \t\r\n]*("[^"\\\n]*"|[-a-z0-9.]+)[ \t\r\n]*,/')
        self.rule("KEY", r'/"(arguments|parameters)"/')
        members = []
        for number, tool in enumerate(tools):
            name, values = lark_literal(json.dumps(tool.name)), self.arguments(number, tool, "json", exact)
            named = f'"\\"name\\"" BLANKS ":" GAP {name} GAP "," GAP KEY GAP ":" GAP {values}'
            turned = f'KEY BLANKS ":" GAP {values} GAP "," GAP "\\"name\\"" GAP ":" GAP {name}'
            members.append(self.rule(f"members_{number}", f"{named} | {turned}"))
        inside = self.rule("members", f"(ASIDE BLANKS)* ({' | '.join(members)})")
        call = self.rule(
            "object", f'"{{" BLANKS {inside} GAP "}}" | "{{" BLANKS "{{" BLANKS {inside} GAP "}}" GAP "}}"'
        )
        found = f"BLANKS SEPARATOR? BLANKS {call}"
        self.rule("SEPARATOR", "/[;,]/")
        if layout.fenced:
            self.rule("FENCE", r"/```[^\n`{\[]*\n/")
            more = f" (GAP {call})*" if several else ""
            found += f' | BLANKS FENCE BLANKS {call}{more} GAP "```"'
        return found

    # -- one call ------------------------------------------------------------------------------------------------------

    def call(self, layout: Layout, number: int, tool: Tool, exact: Callable[[Tool], bool]) -> str:
        """Write the rules of a call behind its trigger. Returns the name of the first."""
        template = layout.call.removeprefix(layout.trigger) if layout.trigger_in_call else layout.call
        before, kind, after = re.split(r"\$(json|xml|python|keywords|gemma)", template.replace("$name", tool.name))
        arguments = self.arguments(number, tool, kind, exact)
        return self.rule(f"call_{number}", f"{self.text(before)} {arguments} {self.text(after)}".strip())

    def arguments(self, number: int, tool: Tool, kind: str, exact: Callable[[Tool], bool]) -> str:
        """Write the rules of a tool's arguments once, for all calls of it. Returns the name of the first."""
        writers: dict[str, Callable[[int, Tool, bool], str]] = {
            "json": self._json_arguments,
            "xml": self._xml_arguments,
            "python": partial(self._keywords, value=self._python_value),
            "keywords": partial(self._keywords, value=self.inner),
            "gemma": self._gemma_arguments,
        }
        self.once(f"arguments_{number}", lambda: writers[kind](number, tool, exact(tool)) or '""')
        return f"arguments_{number}"

    def _json_arguments(self, number: int, tool: Tool, exact: bool) -> str:
        return self.json(tool.schema if exact else ANY_OBJECT)

    def _xml_arguments(self, number: int, tool: Tool, exact: bool) -> str:
        """Parameters in the schema's order. A text is free up to its closing tag, whatever pattern or length it has."""
        self.once("raw[lazy]", lambda: f'{ANYTHING} "\\n</parameter>\\n"')
        if not exact:
            return '("<parameter=" /[^<>\\n]+/ ">\\n" raw)*'
        found = []
        for key, schema, required in properties(tool.schema, re.compile(r"[^<>\n]+"), tool.name):
            value = self._xml_value(schema, tool.schema)
            found.append(f"({lark_literal(f'<parameter={key}>' + chr(10))} {value})" + ("" if required else "?"))
        return " ".join(found)

    def _xml_value(self, schema: Any, root: Mapping[str, Any]) -> str:
        end = lark_literal("\n</parameter>\n")
        words = schema.get("enum") if isinstance(schema, Mapping) else None
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            return f"({' | '.join(lark_literal(word) for word in words)}) {end}"
        kinds = kinds_of(schema, root)
        return "raw" if is_text(kinds) or "string" in kinds else f"{self.inner(schema, root)} {end}"

    def _keywords(self, number: int, tool: Tool, exact: bool, value: Callable[[Any, Mapping[str, Any]], str]) -> str:
        """Keyword arguments in the schema's order. value: writes the rule of one."""
        if not exact:
            self.once("keyword", lambda: f'/[A-Za-z_][A-Za-z0-9_]*/ "=" {self.inner({}, {})}')
            return '(keyword (", " keyword)*)?'
        found = properties(tool.schema, re.compile(r"[A-Za-z_]\w*", re.ASCII), tool.name)
        members = [
            (f"{lark_literal(key + '=')} {value(schema, tool.schema)}", required) for key, schema, required in found
        ]
        return self.members(str(number), members, ", ")

    def members(self, name: str, members: Sequence[tuple[str, bool]], between: str) -> str:
        """Write members in their order, each with whether it is required, and what is between those that are there."""
        first = rest = '""'  # the members from here on: none came before; some did
        for index in reversed(range(len(members))):
            body, required = members[index]
            value = self.rule(f"value_{name}_{index}", body)
            behind = self.rule(f"rest_{name}_{index + 1}", rest)
            rest = f"{lark_literal(between)} {value} {behind}" + ("" if required else f" | {behind}")
            first = f"{value} {behind}" + ("" if required else f" | {self.rule(f'first_{name}_{index + 1}', first)}")
        return first

    def _gemma_arguments(self, number: int, tool: Tool, exact: bool) -> str:
        return GemmaValues(self, number, tool).arguments(exact)

    def _python_value(self, schema: Any, root: Mapping[str, Any]) -> str:
        literal = isinstance(schema, Mapping) and ("enum" in schema or "const" in schema)
        if not literal and kinds_of(schema, root) == {"boolean"}:
            return '("True" | "False")'
        return self.inner(schema, root)

    def inner(self, schema: Any, root: Mapping[str, Any]) -> str:
        """A part of a schema, with the definitions that it may refer to. A rule of its own: `%json` takes the line."""
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        given = {**schema, **shared} if isinstance(schema, Mapping) else schema
        return self.rule(f"json_{len(self._rules)}", self.json(given))

    def once(self, name: str, body: Callable[[], str]) -> None:
        """Write a rule that several tools share."""
        if name not in self._shared:
            self._shared.add(name)
            self.rule(name, body())

    # -- reasoning -----------------------------------------------------------------------------------------------------

    def thought(self, thoughts: Thoughts | None, optional: bool) -> str:
        """Write the reasoning before the answer: the rest of one that the prompt began, or a whole, optional one."""
        if thoughts is None or not (thoughts.inside or optional):
            return ""
        if thoughts.closing in self.markers:
            rest = f"{ANYTHING} {self.text(thoughts.closing)} /[ \\n]*/"
        else:
            rest = self.rule("thought[lazy]", f"{ANYTHING} {self.text(thoughts.closing)}") + " /[ \\n]*/"
        return rest if thoughts.inside else f"({self.text(thoughts.opening)} {rest})?"


def _token(marker: str) -> str:
    """Name a token by its spelling, in angle brackets: gradus.structured puts its number in the name's place."""
    return marker if re.fullmatch(r"<[^<>\s]+>", marker) else f"<{marker}>"
