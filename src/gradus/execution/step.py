"""A step on its way from the device: what every runner returns."""

import torch

from gradus.device.transfer import Arrival, to_host
from gradus.engine.logprobs import PAIR
from gradus.engine.plan import Plan, Sampled
from gradus.sampling.sampler import Drawn, DrawnLogprobs


class StepResult:
    """What a step drew, on its way to the host until `get`. rows: how many the model computed, padding included."""

    def __init__(self, plan: Plan, rows: int, drawn: Drawn, device: torch.device) -> None:
        self.rows = rows
        self._counts = [span.logits for span in plan.spans]
        self._tokens = to_host(drawn.tokens)
        self._logprobs = None if drawn.logprobs is None else drawn.logprobs.to_host()
        self._arrival = Arrival(device)

    def get(self) -> Sampled:
        """Wait until it is there, and for nothing that comes later."""
        self._arrival.wait()
        tokens, told = self._tokens.numpy(), self._logprobs
        return Sampled(tokens, self._counts, () if told is None else packed(told))


def packed(logprobs: DrawnLogprobs) -> list[bytes]:
    """Each row's pairs as bytes: as many as it asks for, and nothing (b"") where it does not ask."""
    pairs = logprobs.pairs.numpy().astype("<i4", copy=False)
    whole, step = pairs.tobytes(), PAIR.size * pairs.shape[1]
    starts = range(0, len(whole), step)
    lengths = (PAIR.size * (1 + logprobs.counts)).tolist()
    return [whole[start : start + length] for start, length in zip(starts, lengths, strict=True)]
