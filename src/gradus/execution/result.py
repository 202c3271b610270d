"""A step on its way from the device: what every runner returns."""

from dataclasses import dataclass

import torch

from gradus.device.transfer import Arrival, to_host
from gradus.engine.logprobs import PAIR
from gradus.engine.plan import Plan, Sampled
from gradus.sampling.sampler import Drawn, DrawnLogprobs


class StepClock:
    """What steps take on the device: from the end of one to the end of the next, by the device's own clock.

    So where the host is the slower side, its work counts as well. After prompts the host has more to do than after
    decodes, and before them it may have had nothing to do: a step behind one with prompts is not timed.
    """

    def __init__(self) -> None:
        self._before: Arrival | None = None  # of the newest step that the host saw; None if prompts were in it

    def seconds(self, arrival: Arrival, *, prompts: bool) -> float:
        """Of the step that has arrived; 0 where that is not known. prompts: whether it read some."""
        took = 0.0 if self._before is None else arrival.since(self._before)
        self._before = None if prompts else arrival
        return took


class StepResult:
    """What a step drew, on its way to the host until `get`.

    rows: how many the model computed, padding included. tokens: on the host, once `arrival` has come. width: rows of
    each decode, as in `Sampled`, and `usual`. clock: of a runner that times its steps.
    """

    def __init__(
        self,
        plan: Plan,
        rows: int,
        tokens: torch.Tensor,
        arrival: Arrival,
        logprobs: DrawnLogprobs | None = None,
        *,
        width: int = 1,
        clock: StepClock | None = None,
        usual: bool = True,
    ) -> None:
        self.rows = rows
        self._counts = [span.logits for span in plan.spans]
        self._tokens, self._arrival, self._logprobs = tokens, arrival, logprobs
        self._width, self._clock, self._usual = width, clock, usual

    @classmethod
    def of(cls, plan: Plan, rows: int, drawn: Drawn, device: torch.device) -> "StepResult":
        """What was drawn on a device, sent to the host."""
        logprobs = None if drawn.logprobs is None else drawn.logprobs.to_host()
        return cls(plan, rows, to_host(drawn.tokens), Arrival(device), logprobs)

    def get(self) -> Sampled:
        """Wait until it has arrived, and for nothing that comes later."""
        self._arrival.wait()
        seconds = 0.0 if self._clock is None else self._clock.seconds(self._arrival, prompts=bool(self._counts))
        logprobs = () if self._logprobs is None else packed(self._logprobs)
        tokens = self._tokens.numpy().copy()  # a later step's result takes its place
        return Sampled(tokens, self._counts, logprobs, self._width, seconds, self._usual)


@dataclass(slots=True)
class Ready:
    """A step that was waited for, on a device whose memory is the host's."""

    rows: int
    sampled: Sampled

    def get(self) -> Sampled:
        return self.sampled


def packed(logprobs: DrawnLogprobs) -> list[bytes]:
    """Each row's pairs as bytes: as many as it asks for, and b"" where it does not ask."""
    pairs = logprobs.pairs.numpy().astype("<i4", copy=False)
    whole, step = pairs.tobytes(), PAIR.size * pairs.shape[1]
    starts = range(0, len(whole), step)
    lengths = (PAIR.size * (1 + logprobs.counts)).tolist()
    return [whole[start : start + length] for start, length in zip(starts, lengths, strict=True)]
