"""A step's result: its tokens on their way from the device, or there already."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol, Self

import torch

from gradus.device.transfer import Arrival, to_host
from gradus.engine.logprobs import PAIR
from gradus.engine.plan import Column, Plan, Sampled
from gradus.sampling.sampler import Drawn, DrawnLogprobs


class StepClock:
    """Times steps by the device's own clock, from the end of one to the end of the next.

    Where the host is the slower side, its work therefore counts as well, and so does the time before a step for which
    there was nothing to do.
    """

    def __init__(self) -> None:
        self._before: Arrival | None = None  # of the newest step that the host saw

    def seconds(self, arrival: Arrival) -> float:
        """Return the time of the step that has arrived; 0 for the first one."""
        took = 0.0 if self._before is None else arrival.since(self._before)
        self._before = arrival
        return took


class Landing(Protocol):
    """The point at which a step's tokens are on the host."""

    @property
    def reached(self) -> bool: ...

    def wait(self) -> None: ...


@dataclass(slots=True, eq=False)
class StepResult:
    """The result of a step that was launched: its tokens may be on their way to the host until `get` returns.

    rows: how many the model computed, padding included. tokens: int64 [R], valid once `landing` has come, if there is
    one. width, usual and faults: as in `Sampled`. scores: of the spans that ask for some. clock: given by a runner
    whose device times steps. seconds: given by a runner that has finished the step.
    """

    plan: Plan
    rows: int
    tokens: Column
    landing: Landing | None
    logprobs: DrawnLogprobs | None = None
    _: KW_ONLY
    width: int = 1
    clock: StepClock | None = None
    usual: bool = True
    faults: Mapping[int, str] = field(default_factory=dict)
    scores: Sequence[DrawnLogprobs] = ()
    seconds: float = 0.0

    @classmethod
    def of(cls, plan: Plan, rows: int, drawn: Drawn, device: torch.device) -> Self:
        """Start copying what was drawn to the host, and return the result."""
        logprobs = None if drawn.logprobs is None else drawn.logprobs.to_host()
        return cls(plan, rows, to_host(drawn.tokens).numpy(), Arrival(device), logprobs, faults=drawn.faults)

    def get(self) -> Sampled:
        """Wait until the tokens have arrived, without waiting for later work."""
        if self.landing is not None:
            self.landing.wait()
        seconds, spans = self.seconds, self.plan.spans
        if self.clock is not None:
            assert isinstance(self.landing, Arrival)
            seconds = self.clock.seconds(self.landing)
        counts = [span.logits for span in spans] if spans else ()
        logprobs = () if self.logprobs is None else packed(self.logprobs)
        tokens = self.tokens.copy()  # a later step's result takes its place
        scores = [tuple(packed(each)) for each in self.scores] if self.scores else ()
        return Sampled(tokens, counts, logprobs, self.width, seconds, self.usual, self.faults, scores)


class Handed:
    """Results of steps that draw on the host: there is nothing to send, and nothing to wait for."""

    _tokens: Column | None = None

    def send(self, tokens: Column, *, early: bool = False) -> None:
        self._tokens = tokens

    def land(self, count: int) -> tuple[Column, None]:
        assert self._tokens is not None
        return self._tokens.reshape(-1)[:count], None


def packed(logprobs: DrawnLogprobs) -> list[bytes]:
    """Return each row's pairs as bytes: as many as the row asks for, and b"" if it asks for none."""
    pairs = logprobs.pairs.numpy().astype("<i4", copy=False)
    whole, step = pairs.tobytes(), PAIR.size * pairs.shape[1]
    starts = range(0, len(whole), step)
    lengths = (PAIR.size * (1 + logprobs.counts)).tolist()
    return [whole[start : start + length] for start, length in zip(starts, lengths, strict=True)]
