"""The form an answer must have: JSON of a schema, a regular expression's match, a grammar's sentence. No torch here.

`Structured` checks what needs neither a tokenizer nor a grammar library: kinds, types, sizes, nesting.
`gradus.structured` compiles it. The text is kept here as it was given.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradus.engine.meaning import documented, param
from gradus.errors import RequestError

_refuse = partial(RequestError.of, bare=True)

MAX_GRAMMAR_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 4096
KINDS = ("json_schema", "json", "regex", "grammar", "choice")
WHITESPACE = ("bounded", "compact")

FAULT = "structured: "
"""Begins the error of an answer that its constraint lets no token continue, as one whose stop tokens it needs."""


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a grammar's sentences begin in an answer that is free otherwise, as calls do in a text.

    tokens: control tokens, by their spelling. Each begins a sentence wherever it is drawn.
    certain: a regular expression, for sentences that begin without such a token: at the beginning of the answer, or
    right behind a sentence. A text that agrees with the grammar is one from where this matches. None: there are none.
    several: whether further sentences may follow the first; otherwise none of `tokens` may come again.
    thoughts: the markers around reasoning, in which nothing begins; () without reasoning. inside: the prompt has
    opened it.
    whole: the grammar is of the whole answer instead, its free text included. A sentence is under way where it may not
    end; the other fields are left out.
    """

    tokens: tuple[str, ...] = ()
    certain: str | None = None
    several: bool = True
    thoughts: tuple[str, ...] = ()
    inside: bool = False
    whole: bool = False


@documented
@dataclass(frozen=True, slots=True)
class Structured:
    """A constraint that every answer of a request obeys. Exactly one kind is given.

    Raises RequestError naming the field, its limit and what was given.
    """

    json_schema: Mapping[str, Any] | str | bool | None = param(
        "a JSON schema, as an object or as its JSON text; the answer is an instance of it.", default=None
    )
    json: bool = param("the answer is any JSON value.", default=False)
    regex: str | None = param("a regular expression that the whole answer matches.", default=None)
    grammar: str | None = param("a grammar in llguidance's dialect of Lark, from the rule `start`.", default=None)
    choice: Sequence[str] | None = param("the answer is one of these texts.", default=None)
    whitespace: str = param(
        'between the tokens of JSON: "bounded" allows a line break and a few blanks at each place, "compact" none.',
        default="bounded",
    )
    lazy: Lazy | None = param(
        "where the grammar's sentences begin in an answer that is free otherwise; None: the whole answer is one.",
        default=None,
    )

    def __post_init__(self) -> None:
        if not isinstance(self.json, bool):
            raise _refuse("json", "true or false", self.json)
        given = [kind for kind in KINDS if self._given(kind)]
        if len(given) != 1:
            raise _refuse("structured", f"exactly one of {', '.join(KINDS)}", ", ".join(given) or "none of them")
        if self.whitespace not in WHITESPACE:
            raise _refuse("structured.whitespace", " or ".join(f'"{each}"' for each in WHITESPACE), self.whitespace)
        if given == ["json_schema"]:
            object.__setattr__(self, "json_schema", _schema(self.json_schema))
        if given == ["choice"]:
            object.__setattr__(self, "choice", _choices(self.choice))
        for name in ("regex", "grammar"):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name))

    def _given(self, kind: str) -> bool:
        """`json=False` is a kind that is not given; the schema `false`, which nothing satisfies, is one."""
        value = getattr(self, kind)
        return value is not None and not (kind == "json" and value is False)

    @classmethod
    def of(cls, given: Any) -> "Structured":
        """Read the field of a request: a Structured, or an object with its fields."""
        if isinstance(given, cls):
            return given
        fields = (*KINDS, "whitespace")
        if not isinstance(given, Mapping):
            raise _refuse("structured", f"an object with one of {', '.join(KINDS)}", given)
        unknown = [str(key) for key in given if key not in fields]
        if unknown:
            raise _refuse("structured", f"an object of {', '.join(fields)}", unknown[0])
        return cls(**{key: value for key, value in given.items() if value is not None})

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if self._given(kind))

    @property
    def text(self) -> str:
        """The constraint's own text: a schema's JSON, a regular expression, a grammar, or the choices as JSON."""
        value = getattr(self, self.kind)
        return json.dumps(value, ensure_ascii=False) if self.kind == "choice" else "" if value is True else value


def _schema(value: Any) -> str:
    """Return the schema's JSON text: as given, or written from objects with their keys in their order."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise _refuse("structured.json_schema", "a JSON schema (an object, true or false)", value) from None
    _text("json_schema", text)
    if deeper_than(text.encode(), MAX_SCHEMA_DEPTH):
        raise _refuse("structured.json_schema", f"nested at most {MAX_SCHEMA_DEPTH} deep", text)
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise _refuse("structured.json_schema", f"JSON ({error})", text) from None
    if not isinstance(parsed, dict | bool):
        raise _refuse("structured.json_schema", "a JSON schema (an object, true or false)", text)
    return text


def _choices(value: Any) -> tuple[str, ...]:
    limit = f"a list of 1 to {MAX_CHOICES} texts"
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_CHOICES:
        raise _refuse("structured.choice", limit, value)
    for each in value:
        if not isinstance(each, str) or not each:
            raise _refuse("structured.choice", limit + ", none of them empty", each)
    _text("choice", "".join(value))
    return tuple(value)


def _text(name: str, value: Any) -> None:
    limit = f"a text of 1 to {MAX_GRAMMAR_BYTES} bytes"
    if not isinstance(value, str) or not value:
        raise _refuse(f"structured.{name}", limit, value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise _refuse(f"structured.{name}", "text without lone surrogates", ascii(value)) from None
    if size > MAX_GRAMMAR_BYTES:
        raise _refuse(f"structured.{name}", limit, f"{size} bytes")


# -- nesting -----------------------------------------------------------------------------------------------------------

# A string up to its closing quote, or to the end of the text: because it always matches, the scan stays linear.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_KEEP_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def deeper_than(text: bytes, depth: int) -> bool:
    """Whether JSON nests deeper, without parsing it: parsers recurse, and a hostile text would exhaust their stack.

    It peels off the innermost brackets once per level: if any remain after `depth` rounds, the text is nested deeper.
    Each round is one pass in C, so a hostile text costs milliseconds. A Python loop over it would block
    every other request on a server's event loop.
    """
    if text.count(b"[") + text.count(b"{") <= depth:
        return False
    brackets = _STRING.sub(b"", text).translate(_KEEP_BRACKETS, _NOT_BRACKETS)
    for _ in range(depth):
        peeled = brackets.replace(b"[]", b"")
        if len(peeled) == len(brackets):
            break
        brackets = peeled
    return b"[" in brackets
