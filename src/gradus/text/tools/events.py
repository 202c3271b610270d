"""Events of an answer as it arrives: its text, its reasoning and its tool calls. Every protocol encodes these.

A whole answer is made of the same events (`Answer.of`), so streamed and whole answers cannot differ.
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

ID_LENGTH = 9  # what Mistral's templates insist on; every client takes it
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A call begins. index: counts the calls of an answer. name: of a tool that was declared."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """The next piece of a call's arguments, which are the JSON text of one object."""

    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """A call has ended. complete: its arguments are a whole object. They are not where the output broke off inside the
    call, or stopped being one in the middle: the pieces sent by then cannot be taken back."""

    index: int
    complete: bool


Event = Text | Reasoning | ToolStart | ToolArguments | ToolEnd


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. finish_reason: the engine's, except that one which stopped after calls says "tool_calls"."""

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish_reason: str | None = None

    @classmethod
    def of(cls, events: Iterable[Event], finish_reason: str | None = None) -> "Answer":
        """Join events in their order."""
        text: list[str] = []
        reasoning: list[str] = []
        started: dict[int, ToolStart] = {}
        arguments: dict[int, list[str]] = {}
        complete: dict[int, bool] = {}
        for event in events:
            match event:
                case Text(said):
                    text.append(said)
                case Reasoning(thought):
                    reasoning.append(thought)
                case ToolStart(index):
                    started[index], arguments[index], complete[index] = event, [], False
                case ToolArguments(index, delta):
                    arguments[index].append(delta)
                case ToolEnd(index, whole):
                    complete[index] = whole
        calls = tuple(
            ToolCall(start.id, start.name, "".join(arguments[index]), complete[index])
            for index, start in started.items()
        )
        return cls("".join(text), "".join(reasoning), calls, reason_with_calls(finish_reason, len(calls)))


def reason_with_calls(finish_reason: str | None, calls: int) -> str | None:
    """Return what a client is to see as the reason of the end. Every reason but "stop" stays: "length" says that the
    last call may be cut off."""
    return "tool_calls" if finish_reason == "stop" and calls else finish_reason


def joined(events: Iterable[Event]) -> list[Event]:
    """Join neighbours that continue each other."""
    found: list[Event] = []
    for event in events:
        match (found[-1] if found else None), event:
            case Text(before), Text(text):
                found[-1] = Text(before + text)
            case Reasoning(before), Reasoning(text):
                found[-1] = Reasoning(before + text)
            case ToolArguments(index, before), ToolArguments(_, text) if index == event.index:
                found[-1] = ToolArguments(index, before + text)
            case _:
                found.append(event)
    return found


def call_ids(seed: str | None = None) -> Iterator[str]:
    """Yield ids of nine letters and digits. The same seed yields the same ids; None draws one."""
    key = (seed if seed is not None else secrets.token_hex(16)).encode("utf-8", "surrogatepass")
    number = 0
    while True:
        drawn = int.from_bytes(hashlib.blake2b(key + b":%d" % number, digest_size=16).digest())
        yield "".join(_DIGITS[drawn // 62**place % 62] for place in range(ID_LENGTH))
        number += 1
