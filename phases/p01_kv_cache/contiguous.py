"""Compute each key and value once, and keep it: one sequence's cache, in one stretch per layer."""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.reference import attend_causal
from gradus.models import ModelConfig


class Contiguous:
    """Room for one sequence of up to `capacity` positions. Knows how many are stored, never the tensors."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.owner: Hashable = None
        self.length = 0

    def fits(self, length: int, longest_span: int) -> bool:
        return length <= self.capacity

    def stored(self, id: Hashable) -> int:
        return self.length if id == self.owner else 0

    def reserve(self, id: Hashable, end: int) -> bool:
        if self.owner not in (None, id) or end > self.capacity:
            return False
        self.owner, self.length = id, end
        return True

    def table_change(self, id: Hashable) -> None:
        return None

    def release(self, id: Hashable) -> None:
        if id == self.owner:
            self.owner, self.length = None, 0

    def check(self) -> None:
        assert 0 <= self.length <= self.capacity, f"{self.length} positions are stored, of {self.capacity}"
        assert (self.owner is None) == (self.length == 0), "positions without an owner, or an owner without any"


class ContiguousAttention:
    """Holds the keys and values of one sequence, written once and read every step.

    A head's positions lie side by side, [Hkv, capacity, Dh] for each layer: a decode reads each head in one stretch.
    """

    def __init__(self, config: ModelConfig, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        def room(heads: int, width: int) -> Tensor:
            return torch.empty(heads, capacity, width, dtype=dtype, device=device)

        self.config = config
        self.keys, self.values = layered(config, room), layered(config, room)

    def prepare(self, batch: Batch) -> None:
        (self.start,), (self.end,) = batch.starts, batch.lengths

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        keys, values = self.keys[layer][:, : self.end], self.values[layer][:, : self.end]
        if k is not None and v is not None:  # else an earlier layer has stored them
            keys[:, self.start :] = k.transpose(0, 1)
            values[:, self.start :] = v.transpose(0, 1)
        return attend_causal(
            q,
            keys,
            values,
            start=self.start,
            scale=self.config.attention_scale,
            window=self.config.windows[layer],
            softcap=self.config.attention_softcap,
            sinks=sinks,
        )


def layered(config: ModelConfig, room: Callable[[int, int], Tensor]) -> list[Tensor]:
    """Make one tensor per layer: room(Hkv, Dh) of that layer, since they can differ (Gemma 4).

    A layer that attends to the keys and values of an earlier one has no room of its own, but that layer's tensor.
    """
    tensors: list[Tensor] = []
    for index in range(config.num_layers):
        source, layer = config.kv_source(index), config.layer(index)
        tensors.append(room(layer.num_kv_heads, layer.head_dim) if source == index else tensors[source])
    return tensors
