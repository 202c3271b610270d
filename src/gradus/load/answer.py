"""An answer and its times. The definitions are those of vLLM's `bench serve`.

- **TTFT**, time to first token: from sending the request until the first event with a token.
- **TPOT**, time per output token after the first: (end to end - TTFT) / (tokens - 1). It is a request's mean gap.
- **ITL**, inter-token latency: every gap between two events with tokens. Where an event holds several tokens, they
  share one gap; events that are read together are 0 apart.
- **E2EL**, end-to-end latency: from sending until the answer's last byte.

A request is sent when its bytes are handed to the system, or when its connection is begun if it needs a new one. In an
open load it was *due* before; the difference is the generator's lateness, which must be small for the load to be what
it claims (Schroeder et al. 2006 on open and closed loads; Tene on "coordinated omission").
"""

from array import array
from dataclasses import dataclass, field

UNFINISHED = "unfinished"  # the error of an answer that we ended while it was on its way


@dataclass(slots=True)
class Answer:
    """One answer. Times in seconds by one clock for all processes (CLOCK_MONOTONIC).

    due: when the request should have been sent. sent, first, last: as defined above; first is 0 without a token.
    gaps: between events with tokens. error: "" or its kind: a status such as "503", "timeout", "connection", "stream",
    "short". detail: what the server said. again: seconds after which it wants to be asked again, 0 if it does not say.
    """

    index: int
    due: float
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    events: int = 0
    gaps: "array[float]" = field(default_factory=lambda: array("f"))
    error: str = ""
    detail: str = ""
    again: float = 0.0

    @property
    def ttft(self) -> float:
        return self.first - self.sent

    @property
    def e2el(self) -> float:
        return self.last - self.sent

    @property
    def tpot(self) -> float | None:
        """None for an answer of one token."""
        return (self.e2el - self.ttft) / (self.tokens - 1) if self.tokens > 1 else None
