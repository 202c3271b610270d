"""Conversations rendered to text by a model's template. Neither the template nor the messages are trusted.

The template is a program in Jinja. Like `transformers`, we run it in the library's sandbox (no attributes that begin
with _, no changes of arguments), with the same few functions added. Here its size, its output, its work and its memory
are bounded as well (see sandbox/).

Messages are untrusted text, and a chat template joins them with control tokens such as <|im_end|>. A message that
spells such a token itself would end its own turn and speak as the system. So before rendering, every such spelling in a
message is cut in two by a mark that is a token of its own. The tokenizer then sees two pieces of ordinary text, and the
mark's id is dropped. Everything else is unchanged, so the template may trim, split and compare contents as it likes.
Tools, calls and results are untrusted text too, down to the keys of a schema.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import jinja2

from gradus.errors import CheckpointError, RequestError
from gradus.loading.sandbox.budget import Exhausted
from gradus.loading.sandbox.environment import Program

Message = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
DEEPEST_MESSAGE = 32
DEEPEST_TOOL = 40  # around the schema
LARGEST_TEMPLATE = 1 << 18  # characters
LARGEST_RENDERED = 1 << 24  # characters: more than any model's context holds

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SETTINGS: dict[str, tuple[object, ...]] = {  # what a request may set in a template, and the values it may have
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "reasoning_effort": EFFORTS,
}


@lru_cache(4)  # a checkpoint is opened more than once, and compiling its template takes most of that
def _program(source: str) -> Program:
    return Program(source)


class ChatTemplate:
    """One model's template. Raises CheckpointError if it is too long, does not parse, or has statements that are not
    supported.

    variables: the names that it takes from outside, such as "tools".
    """

    def __init__(self, source: str, where: str = "chat template") -> None:
        self.source, self._where = source, where
        if len(source) > LARGEST_TEMPLATE:
            raise CheckpointError(f"{where}: {len(source)} characters, at most {LARGEST_TEMPLATE} are allowed")
        try:
            self._program = _program(source)
        except CheckpointError as error:
            raise CheckpointError(f"{where}: {error}") from None
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError, MemoryError) as error:
            raise CheckpointError(f"{where}: not a valid template: {_short(error)}") from error
        self.variables = self._program.variables

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        bos_token: str,
        eos_token: str,
        tools: list[dict[str, Any]] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> str:
        """Render the conversation as one text. The template may write bos_token and eos_token, and uses of tools and
        settings what it knows.

        Raises RequestError if the template refuses the conversation, writes more than LARGEST_RENDERED characters, or
        takes more work or memory than the conversation justifies.
        """
        variables = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": bos_token,
            "eos_token": eos_token,
            "tools": tools,
            "documents": None,
        }
        try:
            return self._program.run(variables | dict(settings or {}), (messages, tools), LARGEST_RENDERED)
        except Exhausted as error:
            raise RequestError(
                f"messages: the model's template ({self._where}) needs more than {error.limit} for this conversation",
                param="messages",
                limit=error.limit,
            ) from None
        except Exception as error:  # any error of a template with these messages concerns this request alone
            raise RequestError(
                f"messages: the model's chat template refuses this conversation: {_short(error)}", param="messages"
            ) from error


class Cutter:
    """Inserts `mark` into every occurrence of a control token's spelling, right after its first character."""

    def __init__(self, mark: str, controls: Iterable[str]) -> None:
        self.mark = mark
        self._controls = frozenset(controls)
        self._beginnings = frozenset(control[:size] for control in self._controls for size in range(1, len(control)))
        self._longest = max(map(len, self._controls), default=0)
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for control in self._controls:
            lengths[control[0]].add(len(control))
        self._lengths = dict(lengths)  # first character → lengths of the control tokens that begin with it
        self._first = re.compile(f"[{re.escape(''.join(self._lengths))}]") if self._lengths else None

    def cut(self, text: str) -> str:
        """Insert the marks, in time linear in the text, whatever the number of control tokens."""
        places = sorted({*self._inside(text), *self._at_end(text)})
        if not places:
            return text
        edges = [0, *places, len(text)]
        return self.mark.join(text[start:end] for start, end in pairwise(edges))

    def _inside(self, text: str) -> Iterable[int]:
        for match in self._first.finditer(text) if self._first else ():
            start = match.start()
            if any(text[start : start + length] in self._controls for length in self._lengths[text[start]]):
                yield start + 1

    def _at_end(self, text: str) -> Iterable[int]:
        """Find beginnings that the next message could complete if the template writes nothing in between."""
        end = len(text.rstrip())  # templates like to trim
        for size in range(1, min(self._longest, end + 1)):
            if text[end - size : end] in self._beginnings:
                yield end - size + 1


def check_messages(messages: Sequence[Message], treat: Callable[[str], str]) -> list[dict[str, Any]]:
    """Check the messages and prepare them for a template: apply `treat` to every text except the role.

    Contents in parts are joined by newlines. Raises RequestError naming the message and the field.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise RequestError.of("messages", "a list of at least one message", messages)
    return [_check_message(message, f"messages[{index}]", treat) for index, message in enumerate(messages)]


def check_tools(tools: Sequence[Mapping[str, Any]] | None, treat: Callable[[str], str]) -> list[dict[str, Any]] | None:
    """Check tools and prepare them for a template: apply `treat` to every text. None and an empty list are None.

    Raises RequestError naming the tool.
    """
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise RequestError.of("tools", "a list of tools", tools)
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RequestError.of(f"tools[{index}]", "an object", tool)
    return [_treat_all(tool, f"tools[{index}]", treat, DEEPEST_TOOL) for index, tool in enumerate(tools)] or None


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a request sets in the template; None is not set. Raises RequestError naming the setting."""
    given = {name: value for name, value in settings.items() if value is not None}
    for name, value in given.items():
        if name not in SETTINGS:
            raise RequestError.of("chat_template_kwargs", f"of {', '.join(SETTINGS)}", name)
        if not any(value is each or (isinstance(value, str) and value == each) for each in SETTINGS[name]):
            raise RequestError.of(name, "one of " + ", ".join(map(str, SETTINGS[name])), value)
    return given


def _check_message(message: Message, where: str, treat: Callable[[str], str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError.of(where, 'an object with "role" and "content"', message)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError.of(f"{where}.role", f"one of {', '.join(ROLES)}", role)
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_text_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    if not (isinstance(content, str) or (content is None and message.get("tool_calls"))):
        raise RequestError.of(f"{where}.content", "a text, or a list of text parts", content)
    others = {key: value for key, value in message.items() if key not in ("role", "content")}
    return {
        "role": role,
        "content": "" if content is None else treat(content),  # templates join it with other texts
        **_treat_all(others, where, treat, DEEPEST_MESSAGE),
    }


def _text_part(part: object, where: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RequestError.of(where, '{"type": "text", "text": …}', part)


def _treat_all(value: Any, where: str, treat: Callable[[str], str], deepest: int, depth: int = 0) -> Any:
    """Apply `treat` to every string in a JSON value, including keys. deepest: the levels that it may have."""
    if depth == deepest:
        raise RequestError.of(where, f"nested at most {deepest} deep", "a deeper one")
    if isinstance(value, str):
        return treat(value)
    if isinstance(value, Mapping):
        return {
            _treat_all(key, where, treat, deepest, depth + 1): _treat_all(item, where, treat, deepest, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_treat_all(item, where, treat, deepest, depth + 1) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise RequestError.of(where, "JSON values", value)


def _short(error: Exception) -> str:
    return " ".join(f"{error}"[:1000].split())[:200] or type(error).__name__
