"""A step on its way from the device: what every runner returns."""

import numpy as np
import torch

from gradus.device.transfer import Arrival, to_host
from gradus.engine.plan import Plan, Sampled
from gradus.engine.sequence import TokenLogprob
from gradus.sampling.sampler import Drawn


class StepResult:
    """What a step drew, on its way to the host until `get`. rows: how many the model computed, padding included."""

    def __init__(self, plan: Plan, rows: int, drawn: Drawn, device: torch.device) -> None:
        self.rows = rows
        self._counts = [span.logits for span in plan.spans]
        self._tokens, self._errors = to_host(drawn.tokens), drawn.errors
        self._logprobs = {row: [to_host(part) for part in parts] for row, parts in drawn.logprobs.items()}
        self._arrival = Arrival(device)

    def get(self) -> Sampled:
        """Wait until it is there, and for nothing that comes later."""
        self._arrival.wait()
        tokens = self._tokens.numpy()
        return Sampled(tokens, self._counts, {row: self._logprob(row, tokens) for row in self._logprobs}, self._errors)

    def _logprob(self, row: int, tokens: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> TokenLogprob:
        chosen, values, ids = self._logprobs[row]
        return TokenLogprob(int(tokens[row]), chosen.item(), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
