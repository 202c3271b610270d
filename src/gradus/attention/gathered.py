"""Decodes the direct way: gather the keys and values of each sequence side by side, then attend under a mask.

It works on any device and in any type. It reads the cache, writes a copy, and reads the copy: three times the bytes
that attention itself would move. A kernel that reads the pages in place avoids this cost.
"""

from collections.abc import Sequence

from torch import Tensor

from gradus.attention.decodes import Visible
from gradus.attention.reference import attend_masked
from gradus.attention.storage import PagedStorage
from gradus.models.config import ModelConfig


class GatheredDecodes:
    """One gather of keys, one of values and one masked attention per layer, for all sequences and heads."""

    def __init__(self, config: ModelConfig, storage: PagedStorage) -> None:
        self.config = config
        self.storage = storage

    def prepare(self, visible: Sequence[Visible]) -> None:
        self.visible = visible
        # One buffer to gather into, for all layers: on a CPU, new memory for each layer costs more than the copy itself
        sizes = [(group.rows.numel(), layers) for group, layers in zip(visible, self.storage.groups, strict=True)]
        most = max(rows * layers.width for rows, layers in sizes)
        room = self.storage.keys.new_empty(2, most, dtype=self.storage.dtype)
        self.copies = [
            room[:, : rows * layers.width].view(2, rows, layers.num_kv_heads, layers.head_dim) for rows, layers in sizes
        ]

    def attend(self, layer: int, q: Tensor, sinks: Tensor | None = None) -> Tensor:
        group, _ = self.storage.place(layer)
        visible = self.visible[group]
        rows = visible.rows.flatten()
        keys, values = (
            part.unflatten(0, visible.rows.shape).transpose(1, 2)  # [B, Hkv, L, Dh]
            for part in self.storage.read(layer, rows, out=self.copies[group])
        )
        out = attend_masked(
            q.unsqueeze(1),
            keys,
            values,
            visible.seen.unsqueeze(1),
            scale=self.config.attention_scale,
            softcap=self.config.attention_softcap,
            sinks=sinks,
        )
        return out.squeeze(1)
