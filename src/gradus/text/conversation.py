"""Conversations as clients send them, brought into the form that a model's chat template takes.

Clients agree on roles and contents, and on little else: system messages appear anywhere, contents come in parts or as
null, and calls in two generations of fields. Templates are stricter, each in its own way. So every conversation takes
three steps, whatever its protocol:

    read       one form for roles, contents and calls; unreadable parts are refused by name
    normalized, as_plain_text     calls and results (gradus.text.tools.history)
    arranged   system messages and neighbors of one role, as this template takes them

A few short conversations, rendered once per model, show which ones its template accepts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gradus.errors import RequestError
from gradus.loading.chat import ROLES
from gradus.loading.quoting import quoted

Message = dict[str, Any]

ROLE_NOW = {"developer": "system", "function": "tool"}  # other names of the same role
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # type → its field
BETWEEN = "\n\n"  # separates joined contents

_EXAMPLE_ID = "000000000"  # Mistral's templates insist on nine characters


# -- one form ----------------------------------------------------------------------------------------------------------


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
        message["tool_calls"] = [{"type": "function", "function": message.pop("function_call")}]
    for name in ("reasoning", "reasoning_content"):
        if not isinstance(message.get(name), str):
            message.pop(name, None)
    silent = "content" not in message and message["role"] in ("assistant", "tool")
    message["content"] = "" if silent else text_of(message.get("content"), f"{where}.content")
    return message


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


# -- what a template accepts -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Takes:
    """The conversations that a template renders completely, without refusing them.

    system: a system message at the beginning. late_system: another one later, in its place. neighbors: consecutive
    messages of one role. user_after_results: a user's turn right after the results of calls.
    """

    system: bool = True
    late_system: bool = True
    neighbors: bool = True
    user_after_results: bool = True


def takes(render: Callable[[list[Message]], str]) -> Takes:
    """Find out what a template accepts. render: renders a conversation, or raises RequestError."""

    def shown(*roles: str) -> bool:
        messages = [_example(role, f"{role}{place}") for place, role in enumerate(roles)]
        try:
            text = render(messages)
        except RequestError:
            return False
        places = [text.find(message["content"]) for message in messages if message["content"]]
        return -1 not in places and places == sorted(places)

    return Takes(
        system=shown("system", "user"),
        late_system=shown("user", "assistant", "system", "user"),
        neighbors=shown("user", "user", "assistant", "assistant", "user"),
        user_after_results=shown("user", "call", "tool", "user")
        or not shown("user", "call", "tool", "assistant", "user"),
    )


def _example(role: str, text: str) -> Message:
    match role:
        case "call":
            function = {"name": "f", "arguments": {}}
            calls = [{"id": _EXAMPLE_ID, "type": "function", "function": function}]
            return {"role": "assistant", "content": "", "tool_calls": calls}
        case "tool":
            return {"role": role, "content": text, "tool_call_id": _EXAMPLE_ID, "name": "f"}
    return {"role": role, "content": text}


def arranged(messages: Sequence[Message], takes: Takes) -> list[Message]:
    """Arrange a conversation in a form that the template accepts.

    System messages at the beginning become one. Later ones, and the first one if the template has no place for it,
    join the next user's turn; after the last turn, they become a turn of their own. If results must be answered before
    the user goes on, an empty assistant's turn is inserted.
    """
    found = _systems_placed(messages, takes)
    if not takes.user_after_results:
        found = _results_answered(found)
    return found if takes.neighbors else _without_neighbors(found)


def _systems_placed(messages: Sequence[Message], takes: Takes) -> list[Message]:
    count = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    first = [message["content"] for message in messages[:count]]
    found: list[Message] = []
    waiting: list[str] = []
    if first and takes.system:
        found.append({"role": "system", "content": BETWEEN.join(first)})
    else:
        waiting = first
    for message in messages[count:]:
        if message["role"] == "system" and not takes.late_system:
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            found.append(message | {"content": BETWEEN.join([*waiting, message["content"]])})
            waiting = []
        else:
            found.append(message)
    return found + ([{"role": "user", "content": BETWEEN.join(waiting)}] if waiting else [])


def _results_answered(messages: Sequence[Message]) -> list[Message]:
    found: list[Message] = []
    for message in messages:
        if message["role"] == "user" and found and found[-1]["role"] == "tool":
            found.append({"role": "assistant", "content": ""})
        found.append(message)
    return found


def _without_neighbors(messages: Sequence[Message]) -> list[Message]:
    """Join consecutive messages of one role. Results of calls stay separate: each has its id."""
    found: list[Message] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"] in ("user", "assistant"):
            found[-1] = _joined(found[-1], message)
        else:
            found.append(message)
    return found


def _joined(first: Message, second: Message) -> Message:
    """Join two messages of one role: concatenate their texts and their calls."""
    joined = first | second
    for name in ("content", "reasoning_content"):
        if texts := [message[name] for message in (first, second) if message.get(name)]:
            joined[name] = BETWEEN.join(texts)
    if calls := [call for message in (first, second) for call in message.get("tool_calls", ())]:
        joined["tool_calls"] = calls
    return joined
