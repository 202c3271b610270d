"""Answers of /v1/messages: events become blocks, one after the other.

    message_start · ping · (content_block_start · content_block_delta… · content_block_stop)… · message_delta ·
    message_stop

A whole answer is assembled from the same events by the same code, so it holds the same blocks as a stream.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from gradus.engine.request import Request
from gradus.server.api.anthropic.partial_json import whole_members
from gradus.server.api.errors import anthropic, failure_of, problem_of
from gradus.server.api.frames import encode, event
from gradus.server.api.turns import Sample, event_reader, in_one_piece
from gradus.server.exchange import Ask
from gradus.text.completion import Completion, Delta
from gradus.text.front_end import FrontEnd
from gradus.text.tools.events import Event, Reasoning, Text, ToolArguments, ToolEnd, ToolStart

Frame = dict[str, Any]

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
CONTEXT_ENDED = "model_context_window_exceeded"


class MessageEncoder:
    """Writes one message."""

    def __init__(self, ask: Ask, request: Request, front_end: FrontEnd) -> None:
        self._sample = Sample(event_reader(ask, request, front_end, 0))
        self._prompt_tokens = len(request.prompt)
        self._ends_with_context = request.max_tokens < (ask.params.max_tokens or 0)
        self._model = front_end.model
        self._blocks = Blocks()
        self._failed = False

    def begin(self) -> bytes:
        message = self._message([], None, {**usage(self._prompt_tokens), "output_tokens": 0})
        return _frame({"type": "message_start", "message": message}) + _frame({"type": "ping"})

    def frames(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        return (_frame(frame) for delta in deltas for frame in self._read(delta))

    def _read(self, delta: Delta) -> Iterator[Frame]:
        for each in self._sample.read(delta):
            yield from self._blocks.add(each)
        if delta.completion is not None:
            yield from self._blocks.end()
            if error := failure_of(delta.completion):
                self._failed = True
                yield anthropic(problem_of(error))

    def end(self) -> Iterator[bytes]:
        completion = self._sample.completion
        if self._failed or completion is None:
            return
        yield _frame({"type": "message_delta", "delta": self._ending(completion), "usage": self._usage(completion)})
        yield _frame({"type": "message_stop"})

    def failed(self, error: Exception) -> bytes:
        return _frame(anthropic(problem_of(error)))

    def whole(self, completions: Sequence[Completion]) -> Iterator[bytes]:
        (completion,) = completions
        frames = list(self._read(in_one_piece(completion)))
        yield encode(self._message(joined(frames), self._ending(completion), self._usage(completion)))

    def _message(self, content: list[Frame], ending: Frame | None, usage: Frame) -> Frame:
        return {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **(ending or {"stop_reason": None, "stop_sequence": None}),
            "usage": usage,
        }

    def _ending(self, completion: Completion) -> Frame:
        """Say why the answer ended. A stop string is named, whatever came before it."""
        if completion.finish_reason == "stop" and isinstance(completion.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": completion.stop_reason}
        if completion.finish_reason == "length" and self._ends_with_context:
            return {"stop_reason": CONTEXT_ENDED, "stop_sequence": None}
        return {"stop_reason": STOP_REASONS.get(self._sample.finish_reason or ""), "stop_sequence": None}

    def _usage(self, completion: Completion) -> Frame:
        return {
            **usage(completion.prompt_tokens, completion.cached_tokens),
            "output_tokens": len(completion.token_ids),
            "output_tokens_details": {"thinking_tokens": self._sample.thought_tokens},
        }


TEXT_OF = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def _frame(content: Frame) -> bytes:
    kind = content["type"]
    return _delta_frame(content["index"], content["delta"]) if kind == "content_block_delta" else event(content, kind)


def _delta_frame(index: int, delta: Frame) -> bytes:
    """Write a delta's event several times as fast as `event` does: a stream has one per token."""
    kind = delta["type"]
    name = TEXT_OF[kind]
    before = (
        'event: content_block_delta\ndata: {"type":"content_block_delta",'
        f'"index":{index},"delta":{{"type":"{kind}","{name}":'
    )
    return before.encode() + encode(delta[name]) + b"}}\n\n"


def usage(prompt_tokens: int, cached_tokens: int = 0) -> Frame:
    """Count a prompt's tokens, with prefix-cache hits counted apart. Cache writes are not counted."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
    }


# -- blocks ------------------------------------------------------------------------------------------------------------


class Blocks:
    """The blocks of one answer: each event continues the open block, or opens the next one."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None  # the type of the open block

    def add(self, event: Event) -> Iterator[Frame]:
        match event:
            case Text(text):
                yield from self._begin("text", {"text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._begin("thinking", {"thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case ToolStart(_, identifier, name):
                yield from self.end()
                yield from self._begin("tool_use", {"id": identifier, "name": name, "input": {}})
            case ToolArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case ToolEnd():
                yield from self.end()

    def end(self) -> Iterator[Frame]:
        """Close the open block, if there is one."""
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _begin(self, kind: str, fields: Frame) -> Iterator[Frame]:
        if self._open == kind:
            return
        yield from self.end()
        self._open = kind
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": {"type": kind, **fields}}

    def _delta(self, delta: Frame) -> Frame:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def joined(frames: Sequence[Frame]) -> list[Frame]:
    """Join a stream's frames into blocks."""
    blocks: list[Frame] = []
    arguments: dict[int, list[str]] = {}
    for frame in frames:
        if frame["type"] == "content_block_start":
            blocks.append(dict(frame["content_block"]))
        elif frame["type"] == "content_block_delta":
            delta, block = frame["delta"], blocks[frame["index"]]
            match delta["type"]:
                case "input_json_delta":
                    arguments.setdefault(frame["index"], []).append(delta["partial_json"])
                case "text_delta":
                    block["text"] += delta["text"]
                case "thinking_delta":
                    block["thinking"] += delta["thinking"]
    for index, pieces in arguments.items():
        blocks[index]["input"] = whole_members("".join(pieces))
    return blocks
