"""A step on its way from the device: what every runner returns."""

import torch

from gradus.device.transfer import Arrival, to_host
from gradus.engine.logprobs import pack
from gradus.engine.plan import Plan, Sampled
from gradus.sampling.sampler import Drawn


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
