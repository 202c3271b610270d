"""Draws tokens where each rank keeps the scores of its own tokens to itself (`--few-bytes`)."""

import torch
from torch import Tensor

from gradus.engine.request import SamplingParams
from gradus.errors import ConfigError
from gradus.kernels.sampling.noise import exponential
from gradus.sampling.sampler import Drawn, Rows, Sampler
from phases.p12_parallelism.draw import draw
from phases.p12_parallelism.exchange import Exchange
from phases.p12_parallelism.vocabulary import tokens_of


class CutSampler(Sampler):
    """Takes the place of a phase's sampler. Temperature and seed are all that it knows."""

    def __init__(self, vocab_size: int, device: torch.device, exchange: Exchange) -> None:
        super().__init__(vocab_size, device)
        self.exchange = exchange

    def sample(self, logits: Tensor, rows: Rows) -> Drawn:
        """logits: [R, V'], of this rank's tokens. Every rank makes the noise of its own tokens: nothing is sent."""
        vocab_size, place = self.table.vocab_size, self.exchange.place
        mine = tokens_of(vocab_size, place.part, place.parts)
        slots, positions = torch.as_tensor(rows.slots), torch.as_tensor(rows.positions)
        temperatures = self.table.temperatures[slots][:, None]
        greedy = temperatures == 0
        scores = logits / temperatures.where(~greedy, 1.0)
        # argmax(p / noise) is argmax(score - log noise): see `race` in gradus.sampling
        noise = -exponential(self.table.seeds[slots], positions, vocab_size)[:, mine].log()
        return Drawn(draw(self.exchange, scores, noise.where(~greedy, 0.0), mine.start, top_k=0))


def refuse(params: SamplingParams) -> None:
    """Raise ConfigError for a request that needs more of a row than its best token."""
    plain = SamplingParams(
        max_tokens=params.max_tokens, temperature=params.temperature, seed=params.seed, ignore_eos=params.ignore_eos
    )
    if params != plain:
        raise ConfigError("with few bytes only temperature and seed can be asked for: leave --few-bytes out")
