"""The response around its items: created, in progress, and completed, incomplete or failed."""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gradus.engine.logprobs import NO_LOGPROBS, TokenLogprob
from gradus.engine.request import Request
from gradus.server.api import openai
from gradus.server.api.errors import Problem, failure_of, problem_of, too_long
from gradus.server.api.frames import event, event_pieces, pieces
from gradus.server.api.responses.history import Names
from gradus.server.api.responses.items import Frame, Items
from gradus.server.api.turns import PlainText, Sample, event_reader, in_one_piece, logprob_entries
from gradus.server.exchange import Ask
from gradus.text.completion import Completion, Delta
from gradus.text.front_end import FrontEnd


class ResponseEncoder:
    """Writes one response. Every event has a sequence number, and all have the response's id."""

    def __init__(
        self, ask: Ask, request: Request, front_end: FrontEnd, names: Names, echoed: Mapping[str, Any]
    ) -> None:
        reader = event_reader(ask, request, front_end, 0)
        self._plain = isinstance(reader, PlainText)
        self._sample = Sample(reader)
        self._items = Items(names, partial(logprob_entries, spell=openai.speller(front_end.tokenizer)))
        self._wants_logprobs = request.params.logprobs is not None
        self._response: Frame = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": front_end.model,
            "background": False,
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "truncation": "disabled",
            **echoed,
        }
        self._number = 0
        self._failure: Exception | None = None

    # -- a stream ------------------------------------------------------------------------------------------------------

    def begin(self) -> bytes:
        response = self._with_status("in_progress")
        created = self._frame({"type": "response.created", "response": response})
        return b"".join([*created, *self._frame({"type": "response.in_progress", "response": response})])

    def frames(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        for delta in deltas:
            for each in self._read(delta, delta.logprobs):
                yield from self._frame(each)

    def end(self) -> Iterator[bytes]:
        """Close the open item, then the response."""
        if self._failure is not None:
            yield self.failed(self._failure)
            return
        for each in self._items.end(complete=self._complete):
            yield from self._frame(each)
        status = "completed" if self._complete else "incomplete"
        yield from self._frame({"type": f"response.{status}", "response": self._with_status(status)})

    def failed(self, error: Exception) -> bytes:
        response = self._with_status("failed") | {"error": error_of(problem_of(error))}
        return b"".join(self._frame({"type": "response.failed", "response": response}))

    def _frame(self, content: Frame) -> Iterable[bytes]:
        numbered, kind = {**content, "sequence_number": self._number}, content["type"]
        self._number += 1
        return event_pieces(numbered, kind) if self._wants_logprobs else (event(numbered, kind),)

    # -- in one piece --------------------------------------------------------------------------------------------------

    def whole(self, completions: Sequence[Completion]) -> Iterator[bytes]:
        (completion,) = completions
        for _ in self._read(in_one_piece(completion), completion.logprobs or ()):
            yield b""  # token by token, if there are log-probabilities: a time to pause
        for _ in self._items.end(complete=self._complete):
            pass
        yield from pieces(self._with_status("completed" if self._complete else "incomplete"))

    # -- both ----------------------------------------------------------------------------------------------------------

    def _read(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> Iterator[Frame]:
        """Add a delta to the items."""
        for part, heard in self._parts(delta, logprobs):
            events = self._sample.read(part)
            self._items.heard(heard[self._sample.thought_in(part) :])
            for each in events:
                yield from self._items.add(each)
        if delta.completion is not None:
            self._failure = failure_of(delta.completion)

    def _parts(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> Iterator[tuple[Delta, Sequence[TokenLogprob]]]:
        """Divide a delta into tokens, so that each log-probability stays with its text, even if a step has several."""
        if not self._wants_logprobs or self._plain or len(delta.token_ids) < 2:
            yield delta, logprobs if self._wants_logprobs else ()
            return
        place = delta.request_id, delta.prompt_index, delta.index
        last = len(delta.token_ids) - 1
        for at, token in enumerate(delta.token_ids):
            completion = delta.completion if at == last else None
            yield Delta(*place, "", (token,), NO_LOGPROBS, completion), logprobs[at : at + 1]

    @property
    def _complete(self) -> bool:
        return self._sample.finish_reason != "length"

    def _with_status(self, status: str) -> Frame:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        done = self._sample.completion is not None
        return {
            **self._response,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": reason,
            "output": list(self._items.output),
            "usage": self._usage() if done else None,
        }

    def _usage(self) -> dict[str, Any]:
        assert self._sample.completion is not None, "the answer has ended"
        completion, reasoning = self._sample.completion, self._sample.thought_tokens
        prompt, generated = completion.prompt_tokens, len(completion.token_ids)
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": completion.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": prompt + generated,
        }


def error_of(problem: Problem) -> Frame:
    """Write an error in a response's form. By its code Codex shortens the input, waits, or tries again."""
    if too_long(problem):
        return {"code": "context_length_exceeded", "message": problem.message}
    if problem.status in (429, 503) and problem.retry_after is not None:
        message = f"{problem.message}; try again in {problem.retry_after:g}s"
        return {"code": "rate_limit_exceeded", "message": message}
    return {"code": "server_error", "message": problem.message}
