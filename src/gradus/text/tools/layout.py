"""The layout of tool calls: one template for the grammar, for examples in prompts, and for calls of earlier turns."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from string import Template
from typing import Any


@dataclass(frozen=True, slots=True)
class Layout:
    """How calls are written.

    call: one call, with $name and its arguments as $json, $xml, $python, $keywords (Python's, with values in JSON) or
    $gemma. opening, closing: around all calls. between: between two of them; None if an answer has one call at most.
    trigger: the beginning of `opening` or of `call`, which begins nothing else.

    Where models are free to call, they may also write calls in other ways. bare: "json" or "python": without a marker,
    at the beginning of the answer or right behind a call. fenced: bare calls may be in a fence of Markdown. also: other
    tokens that may come before bare calls. lines: a list of calls may begin any line. spelled: texts that may
    come in the trigger's place, where bare calls may.

    channels: the answer is messages in channels, and a call is one of them (`channels.py`).
    """

    call: str
    trigger: str
    opening: str = ""
    closing: str = ""
    between: str | None = None
    bare: str = ""
    fenced: bool = False
    also: tuple[str, ...] = ()
    lines: bool = False
    spelled: tuple[str, ...] = ()
    channels: bool = False

    @property
    def trigger_in_call(self) -> bool:
        """Whether every call begins with the trigger, rather than all of them together."""
        return not self.opening

    @property
    def in_words(self) -> "Layout":
        """The layout without tokens, where `spelled` has one: a list of calls that its bracket closes."""
        if not self.spelled:
            return self
        opening = self.spelled[0] + self.opening.removeprefix(self.trigger)
        return replace(self, trigger=self.spelled[0], opening=opening, closing=self.closing[:1])

    def write(self, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
        """Write calls, each a name and its arguments."""
        template = Template(self.call)
        written = [
            template.substitute(
                name=name,
                json=json.dumps(arguments, ensure_ascii=False),
                xml="".join(f"<parameter={key}>\n{_raw(value)}\n</parameter>\n" for key, value in arguments.items()),
                python=", ".join(f"{key}={_python(value)}" for key, value in arguments.items()),
                keywords=", ".join(
                    f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items()
                ),
                gemma=gemma_text(arguments)[1:-1],
            )
            for name, arguments in calls
        ]
        return self.opening + ("\n" if self.between is None else self.between).join(written) + self.closing

    @property
    def example(self) -> str:
        """A call as a prompt explains it."""
        return (
            self.opening
            + Template(self.call).substitute(
                name="FUNCTION",
                json='{"PARAMETER": VALUE, …}',
                xml="<parameter=PARAMETER>\nVALUE\n</parameter>\n…\n",
                python="PARAMETER=VALUE, …",
                keywords="PARAMETER=VALUE, …",
                gemma="PARAMETER:VALUE,…",
            )
            + self.closing
        )


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _python(value: Any) -> str:
    """Write a JSON value as a Python literal, with double quotes, as the grammar has it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {_python(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_python, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def gemma_text(value: Any) -> str:
    """Write a JSON value as Gemma 4 does: its template sorts the keys."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{gemma_text(value[key])}" for key in sorted(value, key=str.lower)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma_text, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)
