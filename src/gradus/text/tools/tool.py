"""Tools and the choice among them as clients send them, checked once.

Two shapes are read: OpenAI's, where a function is an object of its own or lies flat, and Anthropic's. Tools of unknown
types are skipped: clients also declare tools that only their vendor's server runs, and do without them elsewhere.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradus.errors import RequestError

MAX_TOOLS = 128
MAX_NAME = 128
MAX_DESCRIPTION = 32 * 1024  # characters
MAX_SCHEMA_BYTES = 128 * 1024
MAX_TOTAL_BYTES = 512 * 1024  # names, descriptions and schemas of all tools
MAX_DEPTH = 32

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    parameters: the JSON schema of its arguments, an object, as given. strict: its arguments obey the schema always.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise RequestError.of("tools.name", f"1 to {MAX_NAME} letters, digits, '_', '-' or '.'", self.name)
        where = f"tools[{self.name}]"
        if not isinstance(self.description, str) or len(self.description) > MAX_DESCRIPTION:
            raise RequestError.of(
                f"{where}.description", f"a text of at most {MAX_DESCRIPTION} characters", self.description
            )
        if not isinstance(self.strict, bool):
            raise RequestError.of(f"{where}.strict", "true or false", self.strict)
        object.__setattr__(self, "parameters", _schema(self.parameters, f"{where}.parameters"))

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of the arguments; a tool without one takes none."""
        return self.parameters if self.parameters is not None else {"type": "object", "properties": {}}

    def shown(self, described: bool = False) -> dict[str, Any]:
        """The tool in the shape that chat templates show to a model. described: with a description, even an empty
        one."""
        function: dict[str, Any] = {"name": self.name}
        if self.description or described:
            function["description"] = self.description
        return {"type": "function", "function": function | {"parameters": self.schema}}


def read_tools(given: Any) -> tuple[Tool, ...]:
    """Read the `tools` of a request. None is an empty list. Raises RequestError naming the tool and the field."""
    if given is None:
        return ()
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise RequestError.of("tools", "a list of tools", given)
    tools = tuple(tool for index, one in enumerate(_bounded(given)) if (tool := _tool(one, f"tools[{index}]")))
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError.of("tools", "tools of different names", twice)
    size = sum(len(json.dumps(tool.shown())) for tool in tools)
    if size > MAX_TOTAL_BYTES:
        raise RequestError.of("tools", f"at most {MAX_TOTAL_BYTES} bytes of JSON in all", f"{size} bytes")
    return tools


def _bounded(given: Iterable[Any]) -> list[Any]:
    """Read at most one item too many: a generator may have no end."""
    items: list[Any] = []
    for item in given:
        items.append(item)
        if len(items) > MAX_TOOLS:
            raise RequestError.of("tools", f"at most {MAX_TOOLS} tools", "more")
    return items


def _tool(one: Any, where: str) -> Tool | None:
    """Read one tool; None if its type is not known."""
    if isinstance(one, Tool):
        return one
    if not isinstance(one, Mapping):
        raise RequestError.of(where, "an object", one)
    kind = one.get("type")
    if kind == "function":
        function = one["function"] if one.get("function") is not None else one
        if not isinstance(function, Mapping):
            raise RequestError.of(f"{where}.function", "an object", function)
        return _made(function, function.get("parameters"), where)
    if kind in (None, "custom") and "input_schema" in one:
        return _made(one, one["input_schema"], where)
    if kind is None:
        raise RequestError.of(where, '{"type": "function", "function": …} or {"name": …, "input_schema": …}', one)
    return None


def _made(function: Mapping[str, Any], parameters: Any, where: str) -> Tool:
    described, strict = function.get("description"), function.get("strict")
    if "name" not in function:
        raise RequestError.of(f"{where}.name", "a text", None)
    return Tool(
        function["name"],
        "" if described is None else described,
        parameters,
        False if strict is None else strict,
    )


def _schema(value: Any, where: str) -> Mapping[str, Any] | None:
    """Check that a schema is JSON of bounded size and depth that describes an object. Returns a copy of its own."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise RequestError.of(where, "a JSON schema of an object", value)
    _check_depth(value, where, MAX_DEPTH)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError):  # a UnicodeEncodeError is a ValueError
        raise RequestError.of(where, "JSON", value) from None
    if size > MAX_SCHEMA_BYTES:
        raise RequestError.of(where, f"at most {MAX_SCHEMA_BYTES} bytes of JSON", f"{size} bytes")
    if value.get("type", "object") != "object":
        raise RequestError.of(f"{where}.type", '"object"', value["type"])
    copy: dict[str, Any] = json.loads(text)
    if not isinstance(copy.get("properties", {}), dict):
        raise RequestError.of(f"{where}.properties", "an object", copy["properties"])
    return copy


def _check_depth(value: Any, where: str, left: int) -> None:
    if left == 0:
        raise RequestError.of(where, f"nested at most {MAX_DEPTH} deep", "a deeper one")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _check_depth(item, where, left - 1)


# -- the choice --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether the model calls tools: "auto" (it decides), "required" (at least one), "named" (this one), or "none".

    parallel: one answer may have several calls.
    """

    mode: Literal["auto", "required", "named", "none"] = "auto"
    name: str | None = None
    parallel: bool = True


_MODES: dict[Any, Literal["auto", "required", "none"]] = {
    None: "auto", "auto": "auto", "none": "none", "required": "required", "any": "required",
}  # fmt: skip


def read_choice(given: Any, tools: Iterable[Tool], *, parallel: bool | None = None) -> Choice:
    """Read `tool_choice` in any of its shapes. parallel: OpenAI's `parallel_tool_calls`.

    Without tools there is nothing to choose, so "auto" is "none" then. Raises RequestError for a shape that is not
    known, and if the choice needs a tool that was not declared.
    """
    names = [tool.name for tool in tools]
    if isinstance(given, Choice):
        given = {"type": "tool", "name": given.name} if given.mode == "named" else given.mode
    single = isinstance(given, Mapping) and given.get("disable_parallel_tool_use") is True
    several = parallel is not False and not single
    named = isinstance(given, Mapping) and given.get("type") in ("function", "tool")
    if named:
        function = given.get("function")
        name = function.get("name") if isinstance(function, Mapping) else given.get("name")
        if name not in names:
            raise RequestError.of(
                "tool_choice", f"the name of a declared tool ({', '.join(names) or 'there is none'})", name
            )
        return Choice("named", name, parallel=False)
    word = given.get("type") if isinstance(given, Mapping) else given
    if not isinstance(word, str | None) or word not in _MODES:
        raise RequestError.of("tool_choice", '"auto", "required", "none", or an object that names a function', given)
    mode = _MODES[word]
    if not names and mode == "required":
        raise RequestError.of("tool_choice", '"auto" or "none" without tools', given)
    return Choice(mode if names else "none", parallel=several)
