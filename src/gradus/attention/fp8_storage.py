"""Keys and values of 8 bits: half the bytes, so nearly twice the positions, and half the reading for a decode.

Their scales (`gradus.quantization.kv`) are stored separately, for a page's positions side by side, head by head,
since a kernel attends to one head at a time and reads whole sectors of memory.

Layers with a window are kept in 8 bits too. A page may serve any layer group (`gradus.cache.groups`), so its bytes must
be the same in all of them. They gain little, since they hold no more than a window of each sequence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradus.attention.storage import PagedStorage
from gradus.device.transfer import upload
from gradus.device.zeros import zeros
from gradus.models.config import ModelConfig
from gradus.quantization.fp8 import E4M3
from gradus.quantization.kv import SCALE, from_e4m3, to_e4m3


class Fp8Storage(PagedStorage):
    """keys, values: e4m3. key_scales, value_scales: float32 [depth, pages + 1, Hkv, page_size]. dtype: the model's.

    `read` and `store` return values upcast to `dtype`.
    """

    kept_as = E4M3

    def __init__(
        self, config: ModelConfig, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(config, pages, page_size, dtype, device)
        depth, count = self.keys.shape[:2]
        shape = (depth, count, config.num_kv_heads, page_size)
        self.key_scales, self.value_scales = (zeros(shape, SCALE, device) for _ in range(2))
        self._scales = list(zip(self.key_scales.unbind(), self.value_scales.unbind(), strict=True))
        # torch can copy bytes by index, but not e4m3
        self._bytes = [tuple(part.view(torch.uint8) for part in kept) for kept in self._rows]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.keys, self.values, self.key_scales, self.value_scales

    def scales(self, layer: int) -> tuple[Tensor, Tensor]:
        """The scales of all keys and all values of a layer: [pages + 1, Hkv, page_size] each."""
        return self._scales[self.place(layer)[1]]

    def store(self, layer: int, rows: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._store(layer, 0, rows, k), self._store(layer, 1, rows, v)

    def _store(self, layer: int, part: int, rows: Tensor, x: Tensor) -> Tensor:
        values, scales = to_e4m3(x)
        self._bytes[self.place(layer)[1]][part].index_copy_(0, rows, values.view(torch.uint8))
        self._by_position(layer, part)[rows // self.page_size, rows % self.page_size] = scales
        return from_e4m3(values, scales, out=torch.empty_like(x))

    def read(self, layer: int, rows: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if out is None:
            out = self.keys.new_empty(2, len(rows), *self.keys.shape[3:], dtype=self.dtype)
        return self._read(layer, 0, rows, out[0]), self._read(layer, 1, rows, out[1])

    def _read(self, layer: int, part: int, rows: Tensor, out: Tensor) -> Tensor:
        values = self._bytes[self.place(layer)[1]][part].index_select(0, rows).view(E4M3)
        return from_e4m3(values, self._by_position(layer, part)[rows // self.page_size, rows % self.page_size], out)

    def _by_position(self, layer: int, part: int) -> Tensor:
        """A view of the scales of keys (0) or values (1), [pages + 1, page_size, Hkv]."""
        return self.scales(layer)[part].transpose(1, 2)

    def wipe(self, pages: Sequence[int]) -> None:
        if pages:
            where = upload([0, *pages], torch.int64, self.keys.device)
            for part in (self.keys.view(torch.uint8), self.values.view(torch.uint8)):
                part.index_fill_(1, where, 0)
            for part in (self.key_scales, self.value_scales):
                part.index_fill_(1, where, 0)
