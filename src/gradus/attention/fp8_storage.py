"""Keys and values of 8 bits: half the bytes, so nearly twice the positions, and half the reading for a decode.

Their scales (`gradus.quantization.kv`) are stored separately, for a page's positions side by side, head by head,
since a kernel attends to one head at a time and reads whole sectors of memory.

Layers with a window are kept in 8 bits too. A page may serve any layer group (`gradus.cache.groups`), so its bytes must
be the same in all of them. They gain little, since they hold no more than a window of each sequence.
"""

import torch
from torch import Tensor

from gradus.attention.storage import PagedStorage
from gradus.device.zeros import zeros
from gradus.models.config import ModelConfig
from gradus.quantization.fp8 import E4M3
from gradus.quantization.kv import SCALE, from_e4m3, to_e4m3


class Fp8Storage(PagedStorage):
    """keys, values: e4m3. Behind them, every kind of layer (`PageLayout.head_sizes`) has the scales of its keys and of
    its values: float32 [depth, pages + 1, Hkv, page_size] each, Hkv counting all layers that share a strip. dtype: the
    model's.

    `read` and `store` return values upcast to `dtype`.
    """

    kept_as = E4M3

    def __init__(
        self,
        config: ModelConfig,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        together: int = 1,
    ) -> None:
        super().__init__(config, pages, page_size, dtype, device, together)
        depth, count = self.keys.shape[:2]
        kinds = self.layout.head_sizes.items()
        kept = {
            kind: [zeros((depth, count, kind[0] * shared, page_size), SCALE, device) for _ in range(2)]
            for kind, shared in kinds
        }
        self._all_scales = tuple(tensor for each in kept.values() for tensor in each)
        self._scales = [self._scales_of(layer, kept) for layer in range(config.num_layers)]
        # torch can copy bytes by index, but not e4m3
        self._bytes = [tuple(part.view(torch.uint8) for part in rows) for rows in self._rows]

    def _scales_of(self, layer: int, kept: dict[tuple[int, int], list[Tensor]]) -> tuple[Tensor, Tensor]:
        group = self.group(layer)
        page = group.num_kv_heads, self.page_size
        keys, values = (self._pages_of(layer, part, *page) for part in kept[group.num_kv_heads, group.head_dim])
        return keys, values

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.keys, self.values, *self._all_scales

    def scales(self, layer: int) -> tuple[Tensor, Tensor]:
        """The scales of all keys and all values that a layer reads: [pages * together + 1, Hkv, page_size] each."""
        return self._scales[layer]

    def store(self, layer: int, rows: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._store(layer, 0, rows, k), self._store(layer, 1, rows, v)

    def _store(self, layer: int, part: int, rows: Tensor, x: Tensor) -> Tensor:
        values, scales = to_e4m3(x)
        self._bytes[layer][part].index_copy_(0, rows, values.view(torch.uint8))
        self._by_position(layer, part)[rows // self.page_size, rows % self.page_size] = scales
        return from_e4m3(values, scales, out=torch.empty_like(x))

    def read(self, layer: int, rows: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if out is None:
            heads = self._rows[layer][0].shape[1:]
            out = self.keys.new_empty(2, len(rows), *heads, dtype=self.dtype)
        return self._read(layer, 0, rows, out[0]), self._read(layer, 1, rows, out[1])

    def _read(self, layer: int, part: int, rows: Tensor, out: Tensor) -> Tensor:
        values = self._bytes[layer][part].index_select(0, rows).view(E4M3)
        return from_e4m3(values, self._by_position(layer, part)[rows // self.page_size, rows % self.page_size], out)

    def _by_position(self, layer: int, part: int) -> Tensor:
        """A view of the scales of keys (0) or values (1), [pages * together + 1, page_size, Hkv]."""
        return self.scales(layer)[part].transpose(1, 2)
