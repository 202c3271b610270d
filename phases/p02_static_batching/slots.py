"""A cache of equal slots: each holds one sequence of up to the longest length there could be."""

from collections.abc import Hashable

import torch
from torch import Tensor

from gradus.models import ModelConfig
from phases.p01_kv_cache.contiguous import layered


class Slots:
    """Counts the positions that each sequence has stored. The scheduler chooses its slot."""

    def __init__(self, capacity: int, count: int) -> None:
        self.capacity = capacity
        self.count = count
        self.lengths: dict[Hashable, int] = {}

    def fits(self, length: int, longest_span: int) -> bool:
        return length <= self.capacity

    def stored(self, id: Hashable) -> int:
        return self.lengths.get(id, 0)

    def reserve(self, id: Hashable, end: int) -> bool:
        full = id not in self.lengths and len(self.lengths) == self.count
        if full or end > self.capacity:
            return False
        self.lengths[id] = end
        return True

    def table_change(self, id: Hashable) -> None:
        return None

    def release(self, id: Hashable) -> None:
        self.lengths.pop(id, None)

    def check(self) -> None:
        assert len(self.lengths) <= self.count, "more sequences than slots"
        assert all(0 < n <= self.capacity for n in self.lengths.values()), "a slot holds nothing, or too much"


class SlotTensors:
    """The keys and values of all slots: [slots, Hkv, capacity, Dh] per layer.

    Allocated once: a slot changes owner by being overwritten. It is filled with zeros, not with leftovers in memory:
    attention gives a position that a query may not see the weight 0, and 0 times an infinity would be NaN.
    """

    def __init__(
        self, config: ModelConfig, count: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        def room(heads: int, width: int) -> Tensor:
            return torch.zeros(count, heads, capacity, width, dtype=dtype, device=device)

        self.keys, self.values = layered(config, room), layered(config, room)

    def store(self, layer: int, slots: Tensor, positions: Tensor, k: Tensor, v: Tensor) -> None:
        """slots, positions: [N]; k, v: [N, Hkv, Dh]: row i goes to position positions[i] of slot slots[i]."""
        self.keys[layer][slots, :, positions] = k
        self.values[layer][slots, :, positions] = v

    def seen(self, layer: int, slots: int, length: int) -> tuple[Tensor, Tensor]:
        """Views of the first `slots` slots, up to `length` positions: [slots, Hkv, length, Dh] each."""
        return self.keys[layer][:slots, :, :length], self.values[layer][:slots, :, :length]
