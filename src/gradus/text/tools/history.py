"""Calls and results of earlier turns, as the chat template expects them.

Clients send None as content, arguments as text, and ids of any length, and each is an error in some template. So a
conversation is brought into the one form that every template takes. Where a template shows no tools at all, calls,
results and the tools themselves become plain text. Some templates show tools, but not the calls of earlier turns; some
read the tools off the system message.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gradus.text.tools.events import ID_LENGTH, call_ids
from gradus.text.tools.layout import Layout
from gradus.text.tools.tool import Tool

Message = dict[str, Any]

WITH_TOOLS = "You are a helpful assistant with some tools."  # what Phi-4-mini was taught with

_GOOD_ID = re.compile(rf"[A-Za-z0-9]{{{ID_LENGTH}}}")


def normalized(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Bring calls and results of messages that gradus.text.conversation has read into one form.

    In a message with calls, content None becomes "" and arguments become objects. Ids get nine letters and digits, the
    same for a call and its result. `reasoning` is also `reasoning_content`. An empty list of calls is left out.
    """
    found: list[Message] = []
    unanswered: list[str] = []  # ids of calls without a result so far
    for index, given in enumerate(messages):
        message = dict(given)
        calls = message.get("tool_calls")
        if not calls:
            message.pop("tool_calls", None)
        else:
            message["tool_calls"] = [_call(call, f"{index}:{place}") for place, call in enumerate(calls)]
            message["content"] = "" if message.get("content") is None else message["content"]
            unanswered = [call["id"] for call in message["tool_calls"]]
        if message.get("role") == "tool":
            message["tool_call_id"] = _result_id(message.get("tool_call_id"), unanswered)
            message["content"] = "" if message.get("content") is None else message["content"]
        if "reasoning" in message:
            message.setdefault("reasoning_content", message["reasoning"])
        found.append(message)
    return found


def _call(call: Mapping[str, Any], place: str) -> dict[str, Any]:
    function = call["function"] if isinstance(call.get("function"), Mapping) else call
    plain = {key: value for key, value in function.items() if key in ("name", "arguments")}
    plain["name"] = str(plain.get("name") or "")
    plain["arguments"] = as_object(plain.get("arguments"))
    return {"id": nine(call.get("id") or place), "type": "function", "function": plain}


def as_object(arguments: Any) -> dict[str, Any]:
    """Return arguments as an object. A text that is not the JSON of one is kept inside one: it was the model's mistake,
    and to refuse it would end the conversation."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            value = arguments
    else:
        value = {} if arguments is None else arguments
    return value if isinstance(value, dict) else {} if value is None else {"arguments": value}


def nine(identifier: Any) -> str:
    """Return an id of nine letters and digits, which is the same for the same id."""
    text = str(identifier)
    return text if _GOOD_ID.fullmatch(text) else next(call_ids(text))


def _result_id(identifier: Any, unanswered: list[str]) -> str:
    """Return the id of a result. Without one, it belongs to the first call that has no result."""
    if identifier:
        found = nine(identifier)
        if found in unanswered:
            unanswered.remove(found)
        return found
    return unanswered.pop(0) if unanswered else nine("result")


# -- templates that show no tools --------------------------------------------------------------------------------------


def instructions(layout: Layout, tools: Sequence[Tool]) -> str:
    """Describe the tools, and how to call them, to a model whose template does not."""
    lines = "\n".join(json.dumps(tool.shown()["function"], ensure_ascii=False) for tool in tools)
    several = "one or more functions" if layout.between is not None else "one function"
    return (
        f"You can call functions. These are their names, descriptions and parameters:\n{lines}\n\n"
        f"To call {several}, write nothing but the call, in this form:\n{layout.example}"
    )


def as_plain_text(messages: Sequence[Message], layout: Layout, tools: Sequence[Tool]) -> list[Message]:
    """Write tools, calls and results into contents. Results are the user's words then, and roles alternate."""
    found: list[Message] = []
    names: dict[str, str] = {}  # of the called functions, by the calls' ids
    results = False  # whether the last message has results in it
    for message in messages:
        result = message.get("role") == "tool"
        plain = _result(message, names) if result else _words(message, layout, names)
        joins = found and found[-1].get("role") == plain.get("role") == "user" and (result or results)
        if joins:
            found[-1] = found[-1] | {"content": f"{_text(found[-1].get('content'))}\n\n{_text(plain.get('content'))}"}
        else:
            found.append(plain)
        results = result
    return _with_system(found, instructions(layout, tools)) if tools else found


def with_calls_as_text(messages: Sequence[Message], layout: Layout) -> list[Message]:
    """Write calls into the contents of their messages. Results stay as they are."""
    return [_words(message, layout, {}) for message in messages]


def with_tools_in_system(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """Add the tools to the system message, as a text of its own."""
    described = json.dumps([tool.shown()["function"] for tool in tools], ensure_ascii=False)
    first = messages[0] if messages[0]["role"] == "system" else {"role": "system", "content": WITH_TOOLS}
    return [first | {"tools": described}, *(message for message in messages if message is not first)]


def with_thinking(messages: Sequence[Message]) -> list[Message]:
    """Pass reasoning on as gpt-oss's template reads it: as `thinking`, in which a text before a call belongs, too."""
    found = []
    for message in messages:
        parts = [message.get("reasoning_content")]
        if "tool_calls" in message:
            parts.append(message["content"])
            message = message | {"content": ""}
        thinking = "\n\n".join(part for part in parts if part)
        found.append(message | {"thinking": thinking} if thinking else message)
    return found


def _words(message: Message, layout: Layout, names: dict[str, str]) -> Message:
    """Return a message with its calls as text, and note their names."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    names |= {call["id"]: call["function"]["name"] for call in calls}
    written = layout.write((call["function"]["name"], call["function"]["arguments"]) for call in calls)
    said = _text(message.get("content"))
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return others | {"content": f"{said}\n{written}" if said else written}


def _result(message: Message, names: dict[str, str]) -> Message:
    name = names.get(message["tool_call_id"]) or message.get("name") or "the function"
    return {"role": "user", "content": f"Result of {name}:\n{_text(message.get('content'))}"}


def _with_system(messages: list[Message], text: str) -> list[Message]:
    """Add a text to the system message, or make one of it."""
    first = messages[0] if messages else {}
    if first.get("role") == "system":
        return [first | {"content": f"{_text(first.get('content'))}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _text(content: Any) -> str:
    """Join the texts of a content in parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
