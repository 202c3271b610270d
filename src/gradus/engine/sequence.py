"""One sample of one request on its way through the engine: its tokens, its place, its times. No torch here."""

import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradus.engine.logprobs import NO_LOGPROBS, Logprobs
from gradus.engine.request import Request


@dataclass(slots=True)
class SpanResult:
    """The tokens that a span sampled: none for a chunk, one for a prompt's end or a decode.

    error: why the logits gave no token; it ends the sequence. The logits were not finite, so the keys and values that
    the sequence has stored may not be finite either.
    """

    tokens: tuple[int, ...] = ()
    logprobs: Logprobs = NO_LOGPROBS
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds, on one monotonic clock, from the moment the request was accepted.

    queued_s: until the first step that included it. ttft_s: until its first token; None if it got none.
    total_s: until it ended. device_s: its share of the device (`gradus.engine.shares`).
    """

    queued_s: float
    ttft_s: float | None
    total_s: float
    tokens: int
    device_s: float = 0.0

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first, over the time after the first: 1 / TPOT."""
        if self.ttft_s is None or self.tokens < 2 or self.total_s <= self.ttft_s:
            return None
        return (self.tokens - 1) / (self.total_s - self.ttft_s)


@dataclass(slots=True)
class Output:
    """One sequence's output of one step: its new tokens, and how it ended, if it did.

    prompt_logprobs: of the prompt's tokens after the first, with the first output of a sequence that asks for them.
    """

    request_id: str
    index: int
    tokens: tuple[int, ...] = ()
    logprobs: Logprobs = NO_LOGPROBS
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    timings: Timings | None = None
    cached_tokens: int = 0
    prompt_logprobs: Logprobs = NO_LOGPROBS


class Unread(Protocol):
    """Tokens that steady steps have sampled for sequences and that their lists do not hold yet."""

    def take(self, slot: int) -> list[int]:
        """Return the unread tokens of the sequence in `slot`, which are read with this call."""


@dataclass(slots=True, eq=False)
class Sequence:
    """Sample `index` of `request`. Its scheduler owns it; `tokens` is the prompt and, growing, the output.

    clock: the engine's, in seconds. due: the time by which it must have its last token, on that clock; infinite
    without a deadline. longest: the length at which it ends. slot: where it runs; -1 while it does not.

    For schedulers that preempt or choose an order:
    order: the sequence with the smaller one goes first.
    resumes: after a preemption, how many plans must be committed before it may run again: some may sample its tokens.
    unread: holds its newest tokens while it decodes in columns.
    indexed, known: how many of its first tokens the prefix index had when it arrived, and how many it had together with
    the second tier. Both where its scheduler asks.

    scores: the packed log-probabilities of the prompt's tokens after the first that are known so far.
    """

    request: Request
    index: int
    clock: Callable[[], float] = time.perf_counter
    request_id: str = field(init=False)
    id: tuple[str, int] = field(init=False)  # its name in the cache manager
    stop_ids: frozenset[int] = field(init=False)
    longest: int = field(init=False)
    slot: int = -1
    order: tuple[float, int] = (0.0, 0)
    resumes: int = 0
    unread: Unread | None = None
    indexed: int = 0
    known: int = 0
    cached_tokens: int = 0
    scores: list[bytes] = field(default_factory=list)
    finish_reason: str | None = None
    arrived: float = field(init=False)
    due: float = field(init=False)
    scheduled: float | None = None
    first_token: float | None = None
    _tokens: list[int] = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.request_id = request.id
        self.id = request.id, self.index
        self._tokens = list(request.prompt)
        self.longest = request.longest
        self.stop_ids = request.stop_ids
        self.arrived = self.clock()
        deadline = request.scheduling.deadline
        self.due = math.inf if deadline is None else self.arrived + deadline

    @property
    def tokens(self) -> list[int]:
        """All its known tokens, prompt first. Readers must not change the list."""
        self.take_over()
        return self._tokens

    def take_over(self) -> None:
        """Move its newest tokens from the columns to its own list."""
        if self.unread is not None:
            self._tokens += self.unread.take(self.slot)

    @property
    def unscored(self) -> int:
        """How many of the prompt's tokens still need log-probabilities, in a request that asks for them."""
        asked = self.request.params.prompt_logprobs is not None
        return len(self.request.prompt) - 1 - len(self.scores) if asked else 0

    def score(self, start: int, scores: Ordered[bytes]) -> None:
        """Add a span's scores; start: its position. After a preemption it may repeat some."""
        self.scores += scores[len(self.scores) - start :]

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    def accept(self, result: SpanResult) -> Output:
        """Append a step's tokens up to the one that ends the sequence, which is kept; drop later ones."""
        if result.error is not None:
            return self.end("error", result.error)
        if self.first_token is None and result.tokens:
            self.first_token = self.clock()
        known, request = self.tokens, self.request
        for count, token in enumerate(result.tokens, 1):
            known.append(token)
            stops = token in request.stop_ids
            if stops or len(known) >= self.longest:
                reason, stop_reason = ("stop", token) if stops else ("length", None)
                return self._finish(reason, result.tokens[:count], result.logprobs[:count], stop_reason)
        return self._output(result.tokens, result.logprobs)

    def _output(self, tokens: tuple[int, ...], logprobs: Logprobs, **ending: Any) -> Output:
        """Make an output. The first one with tokens has the prompt's log-probabilities."""
        scores = NO_LOGPROBS
        if self.scores and tokens and len(tokens) == self.generated:
            scores = Logprobs(tuple(self.scores))
        return Output(self.request.id, self.index, tokens, logprobs, prompt_logprobs=scores, **ending)

    def end(self, reason: str, error: str | None = None) -> Output:
        """End it from outside: "cancelled", "timeout", "deadline", "stop" (a stop string), or "error" and why."""
        return self._finish(reason, error=error)

    def _finish(
        self,
        reason: str,
        tokens: tuple[int, ...] = (),
        logprobs: Logprobs = NO_LOGPROBS,
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
        return self._output(
            tokens,
            logprobs,
            finish_reason=reason,
            stop_reason=stop_reason,
            error=error,
            timings=timings,
            cached_tokens=self.cached_tokens,
        )
