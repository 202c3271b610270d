"""Anthropic's conversations in the form of chat templates: blocks of content become texts, calls and results.

A client repeats the whole conversation with every turn, so refusing one block would end the session. Block types that
mean nothing to a text model are left out; pictures and files leave a note in their place.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gradus.errors import RequestError
from gradus.loading.quoting import quoted
from gradus.server.api.fields import refuse

Message = dict[str, Any]

BILLING = "x-anthropic-billing-header"
"""The beginning of a line that Claude Code puts before its system text, for Anthropic's own servers. It changes from
session to session: in a prompt it would keep sessions from sharing cached prefixes."""

UNREADABLE = {"image": "image", "document": "document", "container_upload": "file"}
"""Block types that a text model cannot read, and their names in notes."""


def read_conversation(system: Any, messages: list[Any]) -> list[Message]:
    """Convert a body's `system` and `messages`. Raises RequestError naming the message and the field."""
    if not messages:
        refuse("messages", "a list of at least one message", messages)
    found = [each for index, message in enumerate(messages) for each in _message(message, f"messages[{index}]")]
    if not found:
        raise RequestError("messages: no message has any content", param="messages", limit="some content")
    if found[-1].get("tool_calls"):
        name = found[-1]["tool_calls"][0]["function"]["name"]
        raise RequestError(
            f"messages: the last one calls {quoted(name)}, and no result follows",
            param="messages",
            limit="a tool_result for each tool_use",
        )
    return _system(system, "system") + found


def _message(message: Any, where: str) -> list[Message]:
    if not isinstance(message, Mapping):
        refuse(where, 'an object with "role" and "content"', message)
    role, content = message.get("role"), message.get("content")
    match role:
        case "user":
            return _user(_blocks(content, f"{where}.content"), f"{where}.content")
        case "assistant":
            return _assistant(_blocks(content, f"{where}.content"), f"{where}.content")
        case "system":
            return _system(content, f"{where}.content")
    refuse(f"{where}.role", '"user", "assistant" or "system"', role)


def _blocks(content: Any, where: str) -> list[Mapping[str, Any]]:
    """Read a content: a text, or a list of blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        refuse(where, "a text, or a list of blocks", content)
    for index, block in enumerate(content):
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            refuse(f"{where}[{index}]", 'an object with a "type"', block)
    return content


# -- system text -------------------------------------------------------------------------------------------------------


def _system(content: Any, where: str) -> list[Message]:
    """Read system text at any place in the conversation. The front end moves it if the template allows only one."""
    if content is None:
        return []
    texts = [_without_billing(text) for text in _texts(_blocks(content, where), where)]
    joined = _joined(text for text in texts if text)
    return [{"role": "system", "content": joined}] if joined.strip() else []


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING) else text


# -- the user: texts and results of tools ------------------------------------------------------------------------------


def _user(blocks: Iterable[Mapping[str, Any]], where: str) -> list[Message]:
    """Read a user's message: each result becomes a message of its own, and so do the texts between results."""
    found: list[Message] = []
    texts: list[str] = []
    for index, block in enumerate(blocks):
        if block["type"] == "tool_result":
            found += _said("user", texts)
            texts = []
            found.append(_result(block, f"{where}[{index}]"))
        else:
            texts += _texts([block], where, index)
    return found + _said("user", texts)


def _said(role: str, texts: list[str]) -> list[Message]:
    return [{"role": role, "content": _joined(texts)}] if texts else []


def _result(block: Mapping[str, Any], where: str) -> Message:
    """Read the result of a call. Templates have no field for `is_error`, so the text says it."""
    content = block.get("content")
    text = "" if content is None else _joined(_texts(_blocks(content, f"{where}.content"), f"{where}.content"))
    if block.get("is_error") is True:
        text = f"Error: {text}" if text else "Error"
    return {"role": "tool", "tool_call_id": _named(block, "tool_use_id", where), "content": text}


# -- the assistant: texts, thoughts and calls --------------------------------------------------------------------------


def _assistant(blocks: Iterable[Mapping[str, Any]], where: str) -> list[Message]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for index, block in enumerate(blocks):
        match block["type"]:
            case "thinking":
                thoughts.append(_text(block, "thinking", f"{where}[{index}]"))
            case "tool_use":
                calls.append(_call(block, f"{where}[{index}]"))
            case _:
                texts += _texts([block], where, index)
    if not (texts or calls or any(thoughts)):
        return []
    message: Message = {"role": "assistant", "content": _joined(texts)}
    if any(thoughts):
        message["reasoning"] = _joined(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _call(block: Mapping[str, Any], where: str) -> Message:
    """Read a call. Accept any arguments: the model wrote them, and refusing them would end the session."""
    function = {"name": _named(block, "name", where), "arguments": block.get("input")}
    return {"id": _named(block, "id", where), "type": "function", "function": function}


# -- texts -------------------------------------------------------------------------------------------------------------


def _texts(blocks: Iterable[Mapping[str, Any]], where: str, first: int = 0) -> list[str]:
    """Collect the readable texts of some blocks. first: the index of the first block, for error messages."""
    texts: list[str] = []
    for index, block in enumerate(blocks, first):
        match block["type"]:
            case "text":
                texts.append(_text(block, "text", f"{where}[{index}]"))
            case "search_result":
                inner = f"{where}[{index}].content"
                texts += _texts(_blocks(block.get("content", []), inner), inner)
            case "document" if (text := _plain_document(block)) is not None:
                texts.append(text)
            case kind if kind in UNREADABLE:
                texts.append(f"[{UNREADABLE[kind]} left out: this model reads text only]")
    return [text for text in texts if text]


def _plain_document(block: Mapping[str, Any]) -> str | None:
    """Return the text of a plain-text document; None for any other block."""
    source = block.get("source")
    if isinstance(source, Mapping) and source.get("type") == "text" and isinstance(source.get("data"), str):
        return str(source["data"])
    return None


def _text(block: Mapping[str, Any], name: str, where: str) -> str:
    text = block.get(name)
    return text if isinstance(text, str) else refuse(f"{where}.{name}", "a text", text)


def _named(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    return value if isinstance(value, str) and value else refuse(f"{where}.{name}", "a text", value)


def _joined(texts: Iterable[str]) -> str:
    return "\n".join(texts)
