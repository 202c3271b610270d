"""Prompts and answers as attributes of a span, for `--otlp-capture-content` alone.

The conventions' form of messages: {"role": …, "parts": [{"type": "text", "content": …}]}, written as JSON. All texts of
an attribute together are cut to LARGEST characters, so the queue of spans stays small.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from gradus.server.exchange import Ask, Chat

LARGEST = 32_768
CUT = "…"


def prompts(asks: Iterable[Ask]) -> str:
    """Write the prompts of a body. One that came as token ids has its length alone."""
    found: list[tuple[str, str]] = []
    for ask in asks:
        if isinstance(ask.prompt, Chat):
            found += [(str(one.get("role", "user")), _text(one.get("content"))) for one in ask.prompt.messages]
        else:
            inner = getattr(ask.prompt, "prompt", ask.prompt)  # a protocol's own form keeps it there
            found.append(("user", _text(inner)))
    return _messages({"role": role, "text": text} for role, text in found)


def answers(texts: Iterable[tuple[str, str]]) -> str:
    """Write the answers. texts: each sample's text and its finish reason."""
    return _messages({"role": "assistant", "text": text, "finish_reason": reason} for text, reason in texts)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and content and all(isinstance(one, int) for one in content):
        return f"({len(content)} token ids)"
    return "" if content is None else json.dumps(content, ensure_ascii=False, default=str)


def _messages(found: Iterable[dict[str, str]]) -> str:
    room, made = LARGEST, []
    for message in found:
        if room <= 0:
            break
        text = message.pop("text")
        kept = text if len(text) <= room else text[:room] + CUT
        room -= len(text) + len(CUT)  # an empty message takes room, too
        made.append({**message, "parts": [{"type": "text", "content": kept}]})
    return json.dumps(made, ensure_ascii=False)
