"""One sample of one request on its way through the engine: its tokens, its place, its times. No torch here."""

import time
from dataclasses import dataclass, field

from gradus.engine.request import Request


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a sampled token, and the likeliest tokens at its position, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class SpanResult:
    """What a span sampled: nothing for a chunk, one token for a prompt's end or a decode. `error` ends the sequence."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None


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
    """Sample `index` of `request`. Its scheduler owns it; `tokens` is the prompt and, growing, the output."""

    request: Request
    index: int
    id: tuple[str, int] = field(init=False)  # what the cache manager knows it by
    tokens: list[int] = field(init=False)
    slot: int = -1
    cached_tokens: int = 0
    finish_reason: str | None = None
    arrived: float = field(default_factory=time.perf_counter)
    scheduled: float | None = None
    first_token: float | None = None

    def __post_init__(self) -> None:
        self.id = self.request.id, self.index
        self.tokens = list(self.request.prompt)

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    def accept(self, result: SpanResult) -> Output:
        """Append what a step sampled, up to the token that ends the sequence; that one is kept, later ones dropped."""
        if result.error is not None:
            return self.end("error", result.error)
        output = Output(self.request.id, self.index)
        start = len(self.tokens)
        for token in result.tokens:
            self.tokens.append(token)
            if token in self.request.stop_ids:
                self.finish_reason, output.stop_reason = "stop", token
            elif self.generated >= self.request.max_tokens:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                break
        if self.first_token is None and self.generated:
            self.first_token = time.perf_counter()
        output.tokens = tuple(self.tokens[start:])
        output.logprobs = result.logprobs[: len(output.tokens)]
        return self._seal(output) if self.finish_reason else output

    def end(self, reason: str, error: str | None = None) -> Output:
        """Finish from outside: "cancelled", "timeout", "stop" (a stop string), or "error" with what went wrong."""
        self.finish_reason = reason
        return self._seal(Output(self.request.id, self.index, error=error))

    def _seal(self, output: Output) -> Output:
        now = time.perf_counter()
        output.finish_reason = self.finish_reason
        output.cached_tokens = self.cached_tokens
        output.timings = Timings(
            queued_s=(self.scheduled or now) - self.arrived,
            ttft_s=None if self.first_token is None else self.first_token - self.arrived,
            total_s=now - self.arrived,
            tokens=self.generated,
        )
        return output
