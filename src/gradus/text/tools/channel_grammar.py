"""The grammar of answers in channels: see `channels.py`.

Where a model is free to call, every message's header is a sentence: of a channel without a recipient, whose text is
free again, or of a call, whose sentence ends with its arguments. So a call can neither name another function nor have
other arguments, and text needs no masks.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gradus.engine.structured import Lazy, Structured
from gradus.structured.lark import lark_literal
from gradus.text.tools.answer import Thoughts
from gradus.text.tools.channels import (
    ADDRESS,
    ASSISTANT,
    CALL,
    CHANNEL,
    CHANNELS,
    CONSTRAIN,
    END_MESSAGE,
    MESSAGE,
    START,
)
from gradus.text.tools.tool import Tool

if TYPE_CHECKING:
    from gradus.text.tools.grammar import Lark

Exact = Callable[[Tool], bool]


def answer(
    lark: "Lark", tools: Sequence[Tool], exact: Exact, thoughts: Thoughts | None, text: Structured | None
) -> str:
    """Write the grammar of an answer that is a call or, if there is one, a text: either may follow reasoning."""
    found = [lark.rule("call", " | ".join(_calls(lark, tools, exact)))] if tools else []
    if text is not None:
        found.append(f"{lark.text(f'{CHANNEL}final{MESSAGE}')} {lark.constrained(text)}")
    return lark.written(f"{_thought(lark, thoughts)} ({' | '.join(found)})")


def lazy(lark: "Lark", tools: Sequence[Tool], exact: Exact) -> tuple[str, Lazy]:
    """Write the grammar of headers, and of calls behind them; and where they begin in an answer."""
    kinds = " | ".join(map(lark_literal, CHANNELS))
    plain = f"{lark.text(CHANNEL)} ({kinds}) {lark.text(MESSAGE)}"
    message = lark.rule("message", " | ".join([plain, *_calls(lark, tools, exact)]))
    start = f"{message} | {lark.text(START + ASSISTANT)} {message}"
    return lark.written(start), Lazy((START, CHANNEL), rf"\A{ADDRESS.replace('.', '[.]')}")


def _calls(lark: "Lark", tools: Sequence[Tool], exact: Exact) -> list[str]:
    """List calls of each tool, named behind the channel, or before it as in the model's own template."""
    form = lark.rule("form", f'(" "? {lark.text(CONSTRAIN)}? "json")?')
    channel, message, end = (lark.text(marker) for marker in (CHANNEL, MESSAGE, CALL))
    found = []
    for number, tool in enumerate(tools):
        name, arguments = lark_literal(ADDRESS + tool.name), lark.arguments(number, tool, "json", exact)
        behind = lark.rule(f"behind_{number}", f"{form} {message} {arguments} ({end})?")
        found.append(f'{channel} ("commentary" | "analysis") " " {name} {behind}')
        found.append(f'" "? {name} {channel} "commentary" {behind}')
    return found


def _thought(lark: "Lark", thoughts: Thoughts | None) -> str:
    """Reasoning before the answer, which the prompt may have begun."""
    if thoughts is None:
        return ""
    rest = f"/(?s:.*)/ {lark.text(END_MESSAGE + START + ASSISTANT)}"
    return rest if thoughts.inside else f"({lark.text(thoughts.opening)} {rest})?"
