"""The input of a response, a list of items, in the form of chat templates; and functions in namespaces.

A client repeats all items with every request. Items that only the vendor's server can use (searches, shells of its own)
are left out: refusing one would end the session.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradus.server.api.fields import refuse
from gradus.text.conversation import BETWEEN, TEXT_PARTS, check_text, text_of

Message = dict[str, Any]
Names = Mapping[str, tuple[str, str]]
"""Namespace and name of each function in a namespace, by the name that the model sees."""

ROLES = ("user", "assistant", "system", "developer")


# -- namespaces --------------------------------------------------------------------------------------------------------


def flat_name(namespace: str, name: str) -> str:
    """Return the name by which the model sees a function in a namespace."""
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def flattened(tools: Sequence[Any]) -> tuple[list[Any], dict[str, tuple[str, str]], list[str]]:
    """Take functions out of their namespaces. Returns all functions, the taken ones' namespaces, and skipped types."""
    functions: list[Any] = []
    names: dict[str, tuple[str, str]] = {}
    skipped: list[str] = []
    for namespace, tool in _with_namespaces(tools):
        if not isinstance(tool, Mapping) or tool.get("type") == "function":
            if namespace is not None and isinstance(tool, Mapping) and isinstance(tool.get("name"), str):
                name = flat_name(namespace, tool["name"])
                names[name] = namespace, tool["name"]
                tool = {**tool, "name": name}
            functions.append(tool)
        else:
            skipped.append(str(tool.get("type")))
    return functions, names, skipped


def _with_namespaces(tools: Sequence[Any]) -> Iterator[tuple[str | None, Any]]:
    for tool in tools:
        inner = tool.get("tools") if isinstance(tool, Mapping) and tool.get("type") == "namespace" else None
        if isinstance(inner, list) and isinstance(tool.get("name"), str):
            yield from ((tool["name"], each) for each in inner)
        else:
            yield None, tool


# -- items -------------------------------------------------------------------------------------------------------------


def messages_of(instructions: str | None, given: Any) -> tuple[list[Message], list[str]]:
    """Convert instructions and input. Returns the messages, and the types of items left out.

    An empty input becomes an empty message of the user: clients probe a server with it. Raises RequestError naming the
    item and the field.
    """
    history = _History()
    if isinstance(given, list):
        for index, item in enumerate(given):
            history.add(item, f"input[{index}]")
    elif isinstance(given, str) or given is None:
        history.messages.append({"role": "user", "content": given or ""})
    else:
        refuse("input", "a text, or a list of items", given)
    found = history.messages or [{"role": "user", "content": ""}]
    return ([{"role": "system", "content": instructions}] if instructions else []) + found, history.skipped


class _History:
    """Turns items into messages. The reasoning, text and calls of one answer become one message of the assistant."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.skipped: list[str] = []
        self._thoughts: list[str] = []  # reasoning that precedes its message

    def add(self, item: Any, where: str) -> None:
        if not isinstance(item, Mapping):
            refuse(where, "an object with a type", item)
        match item.get("type", "message"):
            case "message":
                self._message(item, where)
            case "reasoning":
                self._thoughts += _thoughts(item)
            case "function_call":
                for name in ("call_id", "id", "name"):
                    check_text(item.get(name), f"{where}.{name}")
                self._call(item)
            case "function_call_output":
                check_text(item.get("call_id"), f"{where}.call_id")
                self._say("tool", _output(item.get("output")), tool_call_id=item.get("call_id"))
            case kind:
                self.skipped.append(str(kind))

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in ROLES:
            refuse(f"{where}.role", f"one of {', '.join(ROLES)}", role)
        text = "" if content is None and role == "assistant" else text_of(content, f"{where}.content")
        self._say(role, text)

    def _call(self, item: Mapping[str, Any]) -> None:
        """Add a call to the last message if that is the assistant's, or else to a new one."""
        name, namespace = str(item.get("name") or ""), item.get("namespace")
        name = flat_name(namespace, name) if isinstance(namespace, str) and namespace else name
        function = {"name": name, "arguments": item.get("arguments")}
        call = {"id": item.get("call_id") or item.get("id"), "type": "function", "function": function}
        if not self.messages or self.messages[-1]["role"] != "assistant" or self._thoughts:
            self._say("assistant", "")
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _say(self, role: str, text: str, **more: Any) -> None:
        message = {"role": role, "content": text, **more}
        if role == "assistant" and self._thoughts:
            message["reasoning"] = BETWEEN.join(self._thoughts)
        self._thoughts = []
        self.messages.append(message)


def _thoughts(item: Mapping[str, Any]) -> list[str]:
    """Collect the texts of reasoning: its content, or else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
        if found := [text for text in texts if isinstance(text, str) and text]:
            return found
    return []


def _output(output: Any) -> str:
    """Write the result of a call as text. A part that a text model cannot read leaves a note in its place."""
    if isinstance(output, list) and all(isinstance(part, Mapping) for part in output):
        return "\n".join(_output_part(part) for part in output)
    return output if isinstance(output, str) else "" if output is None else json.dumps(output, ensure_ascii=False)


def _output_part(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    text = part.get(TEXT_PARTS[kind]) if isinstance(kind, str) and kind in TEXT_PARTS else None
    return text if isinstance(text, str) else f"[{kind} left out: this model reads text only]"
