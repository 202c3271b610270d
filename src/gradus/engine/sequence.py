"""One sample of one request on its way through the engine: its tokens, its place, its times. No torch here."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradus.engine.request import Request

if TYPE_CHECKING:
    from gradus.cache.paged import Resident


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a sampled token, and the likeliest tokens at its position, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class SpanResult:
    """What a span sampled: nothing for a chunk, one token for a prompt's end or a decode. `error` ends the sequence.

    poisoned: the error is numbers that are not finite, so what the sequence has stored may hold more of them.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None
    poisoned: bool = False


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds, on one monotonic clock, from the moment the request was accepted.

    queued_s: until the first step that included it. ttft_s: until its first token; None if none came.
    total_s: until it ended.
    """

    queued_s: float
    ttft_s: float | None
    total_s: float
    tokens: int

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first, over the time after the first: 1 / TPOT."""
        if self.ttft_s is None or self.tokens < 2 or self.total_s <= self.ttft_s:
            return None
        return (self.tokens - 1) / (self.total_s - self.ttft_s)


@dataclass(slots=True)
class Output:
    """What one step did for one sequence: new tokens, and how it ended if it did."""

    request_id: str
    index: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    timings: Timings | None = None
    cached_tokens: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """Sample `index` of `request`. Its scheduler owns it; `tokens` is the prompt and, growing, the output.

    clock: the scheduler's, in seconds. due: when its last token must be there, on that clock; infinite without a
    deadline. longest: the length at which it ends. slot: where it runs; no matter while it does not.

    Of a scheduler that cuts prompts up or chooses its order:
    order: who goes first has the smaller one. decoding: each of its spans from now on is its newest token.
    planned: the length that it will have once every step planned so far has run. Steps under way sample the tokens
        from len(tokens) on, which nobody knows yet.
    resumes: preempted, it must not run again before so many plans are committed: some of those may hold its tokens.
    newest: the token that was sampled last, on its own.
    room: it decodes, and up to this length its plans need no page and nobody's leave. 0: ask first.
    quiet: a token sampled from a position before this one cannot end it, unless it is one to stop at.
    full: the last position of a page. Once it is stored, there is a page more that others may share.
    """

    # What every step reads stands first, side by side in memory: with hundreds of sequences the processor's cache is
    # what a step waits for.

    request: Request
    index: int
    clock: Callable[[], float] = time.perf_counter
    request_id: str = field(init=False)
    tokens: list[int] = field(init=False)
    stop_ids: frozenset[int] = field(init=False)
    slot: int = -1
    planned: int = field(init=False)
    newest: tuple[int, ...] = ()
    room: int = 0
    quiet: int = 0
    full: int = 0
    resident: "Resident" = field(init=False)  # what the cache manager keeps of it

    id: tuple[str, int] = field(init=False)  # what the cache manager knows it by
    longest: int = field(init=False)
    order: tuple[float, int] = (0.0, 0)
    decoding: bool = False
    resumes: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    arrived: float = field(init=False)
    due: float = field(init=False)
    scheduled: float | None = None
    first_token: float | None = None

    def __post_init__(self) -> None:
        request = self.request
        self.request_id = request.id
        self.id = request.id, self.index
        self.tokens = list(request.prompt)
        self.planned = len(self.tokens)
        self.longest = request.longest
        self.stop_ids = request.stop_ids
        self.arrived = self.clock()
        deadline = request.scheduling.deadline
        self.due = math.inf if deadline is None else self.arrived + deadline

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    def accept(self, result: SpanResult) -> Output:
        """Append what a step sampled, up to the token that ends the sequence; that one is kept, later ones dropped."""
        if result.error is not None:
            return self.end("error", result.error)
        if self.first_token is None and result.tokens:
            self.first_token = self.clock()
        known, request, self.newest = self.tokens, self.request, result.tokens[-1:]
        before = len(known)
        for token in result.tokens:
            known.append(token)
            if token in request.stop_ids:
                new = len(known) - before
                return self._finish("stop", result.tokens[:new], result.logprobs[:new], token)
            if len(known) >= self.longest:
                new = len(known) - before
                return self._finish("length", result.tokens[:new], result.logprobs[:new])
        return Output(request.id, self.index, result.tokens, result.logprobs)

    def end(self, reason: str, error: str | None = None) -> Output:
        """Finish from outside: "cancelled", "timeout", "deadline", "stop" (a stop string), or "error" and why."""
        return self._finish(reason, error=error)

    def _finish(
        self,
        reason: str,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        stop_reason: int | None = None,
        error: str | None = None,
    ) -> Output:
        self.finish_reason = reason
        now = self.clock()
        timings = Timings(
            queued_s=(now if self.scheduled is None else self.scheduled) - self.arrived,
            ttft_s=None if self.first_token is None else self.first_token - self.arrived,
            total_s=now - self.arrived,
            tokens=self.generated,
        )
        return Output(
            self.request.id, self.index, tokens, logprobs, reason, stop_reason, error, timings, self.cached_tokens
        )
