"""Conversations as clients send them, brought into the form that a model's chat template takes.

Clients agree on roles and contents, and on little else: system messages appear anywhere, contents come in parts or as
null, and calls in two generations of fields. Templates are stricter, each in its own way. So every conversation takes
three steps, whatever its protocol:

    read       one form for roles, contents and calls; unreadable parts are refused by name
    normalized, as_plain_text     calls and results (gradus.text.tools.history)
    arranged   the order of messages, as this template takes them (gradus.text.arrangement)
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gradus.errors import RequestError
from gradus.loading.chat import ROLES
from gradus.loading.quoting import quoted

Message = dict[str, Any]

ROLE_NOW = {"developer": "system", "function": "tool"}  # other names of the same role
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # type → its field
BETWEEN = "\n\n"  # separates joined contents


def read(messages: Any) -> list[Message]:
    """Bring roles, contents and the older form of calls into one form. A null counts as absent.

    Contents become texts: parts are joined by newlines, and an assistant's or a tool's may be empty. Raises
    RequestError naming the message and the field.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        _refuse("messages", "a list of at least one message", messages)
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(given: Any, where: str) -> Message:
    if not isinstance(given, Mapping):
        _refuse(where, 'an object with "role" and "content"', given)
    message = {name: value for name, value in given.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        _refuse(f"{where}.role", f"one of {', '.join(ROLES)}", role)
    message["role"] = ROLE_NOW.get(role, role)
    if "function_call" in message and "tool_calls" not in message:
        called = message.pop("function_call")
        if not isinstance(called, Mapping):
            _refuse(f"{where}.function_call", "an object with a name and arguments", called)
        message["tool_calls"] = [{"type": "function", "function": called}]
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message["tool_calls"], f"{where}.tool_calls")
    for name in ("tool_call_id", "name"):
        check_text(message.get(name), f"{where}.{name}")
    for name in ("reasoning", "reasoning_content"):
        if not isinstance(message.get(name), str):
            message.pop(name, None)
    silent = "content" not in message and message["role"] in ("assistant", "tool")
    message["content"] = "" if silent else text_of(message.get("content"), f"{where}.content")
    return message


def _calls(calls: Any, where: str) -> list[Mapping[str, Any]]:
    """Check what is read of calls: ids, and functions' names. Arguments may be anything, for a model wrote them."""
    if not isinstance(calls, list | tuple):
        _refuse(where, "a list of calls", calls)
    for index, call in enumerate(calls):
        place = f"{where}[{index}]"
        if not isinstance(call, Mapping):
            _refuse(place, '{"id": …, "type": "function", "function": …}', call)
        function = call.get("function")
        if function is not None and not isinstance(function, Mapping):
            _refuse(f"{place}.function", "an object with a name and arguments", function)
        check_text(call.get("id"), f"{place}.id")
        check_text((call if function is None else function).get("name"), f"{place}.function.name")
    return list(calls)


def check_text(value: Any, where: str) -> None:
    """Raise RequestError for an id or a name that is given and no text. Clients that count calls may send numbers."""
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        _refuse(where, "a text", value)


def text_of(content: Any, where: str) -> str:
    """Return a content's text, its parts joined by newlines. Raises RequestError for a part that is not text."""
    if isinstance(content, list | tuple):
        return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))
    return content if isinstance(content, str) else _refuse(where, "a text, or a list of parts", content)


def _part(part: Any, where: str) -> str:
    """Return the text of a part."""
    if not isinstance(part, Mapping):
        _refuse(where, '{"type": "text", "text": …}', part)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        _refuse(f"{where}.type", '"text": this model reads nothing else', kind)
    text = part.get(TEXT_PARTS[kind])
    return text if isinstance(text, str) else _refuse(f"{where}.{TEXT_PARTS[kind]}", "a text", text)


def _refuse(param: str, limit: str, got: object) -> NoReturn:
    shown = quoted(got)
    raise RequestError(f"{param} must be {limit}, got {shown}", param=param, limit=limit, got=shown)
