"""A step on its way from the device: what every runner returns."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradus.device.transfer import Arrival, to_host
from gradus.engine.logprobs import PAIR
from gradus.engine.plan import Plan, Sampled
from gradus.sampling.sampler import Drawn

PAIRS = np.dtype([("token", "<i4"), ("logprob", "<f4")])  # a PAIR, for numpy


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
        if told is None:
            return Sampled(tokens, self._counts)
        packed = pack(tokens, told.chosen.numpy(), told.values.numpy(), told.ids.numpy(), told.counts)
        return Sampled(tokens, self._counts, packed)


def pack(
    tokens: NDArray[np.int64],
    chosen: NDArray[np.float32],
    values: NDArray[np.float32],
    ids: NDArray[Any],
    counts: NDArray[np.int64],
) -> list[bytes]:
    """Pack a step's rows: tokens, chosen and counts [R]; values and ids [R, K].

    Of each row the sampled token's pair and `counts` of the K are packed; nothing (b"") where that is -1.
    """
    pairs = np.empty((len(tokens), 1 + values.shape[1]), PAIRS)
    pairs["token"][:, 0], pairs["logprob"][:, 0] = tokens, chosen
    pairs["token"][:, 1:], pairs["logprob"][:, 1:] = ids, values
    whole, step = pairs.tobytes(), PAIR.size * pairs.shape[1]
    starts = range(0, len(whole), step)
    return [
        whole[start : start + PAIR.size * (1 + count)] for start, count in zip(starts, counts.tolist(), strict=True)
    ]
