"""Keep nothing: each step computes every key and value again."""

from collections.abc import Hashable

from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.reference import attend_causal
from gradus.models import ModelConfig


class NoCache:
    """A cache manager with nothing to manage: no position is ever stored, so every span starts at 0."""

    def fits(self, length: int, longest_span: int) -> bool:
        return True

    def stored(self, id: Hashable) -> int:
        return 0

    def reserve(self, id: Hashable, end: int) -> bool:
        return True

    def table_change(self, id: Hashable) -> None:
        return None

    def release(self, id: Hashable) -> None:
        pass

    def check(self) -> None:
        pass


class Recompute:
    """Attends within each span and stores nothing: a span holds its whole sequence, so it sees everything."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.shared: dict[int, tuple[Tensor, Tensor]] = {}  # keys and values that later layers attend to as well

    def prepare(self, batch: Batch) -> None:
        (self.length,) = batch.lengths

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        if k is None or v is None:  # the layer has none of its own
            k, v = self.shared[self.config.kv_source(layer)]
        elif layer in self.config.kv_sources:
            self.shared[layer] = k, v
        keys, values, scale = k.transpose(0, 1), v.transpose(0, 1), self.config.attention_scale
        window, softcap = self.config.windows[layer], self.config.attention_softcap
        return attend_causal(q, keys, values, start=0, scale=scale, window=window, softcap=softcap, sinks=sinks)
