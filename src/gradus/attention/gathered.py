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
        groups = zip(visible, self.storage.groups, strict=True)
        most = max(group.rows.numel() * sizes.width for group, sizes in groups)
        self.copies = self.storage.keys.new_empty(2, most, dtype=self.storage.dtype)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        visible, sizes = self.visible[self.storage.place(layer)[0]], self.storage.group(layer)
        rows = visible.rows.flatten()
        out = self.copies[:, : len(rows) * sizes.width].unflatten(1, (-1, sizes.num_kv_heads, sizes.head_dim))
        keys, values = (
            part.unflatten(0, visible.rows.shape).transpose(1, 2)  # [B, Hkv, L, Dh]
            for part in self.storage.read(layer, rows, out=out)
        )
        attended = attend_masked(
            q.unsqueeze(1),
            keys,
            values,
            visible.seen.unsqueeze(1),
            scale=self.config.attention_scale,
            softcap=self.config.attention_softcap,
        )
        return attended.squeeze(1)
