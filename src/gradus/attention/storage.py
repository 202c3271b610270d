"""The keys and values of all sequences, in one heap of pages. Only the cache manager knows which page holds what.

A page is `page_size` positions of one sequence, for all layers of a group. Within a layer the positions of all pages
lie one after the other, so position p of a sequence is row page * page_size + p % page_size of the layer, `page` being
entry p // page_size of its block table (Kwon et al. 2023, section 4.2). Attention needs only this row number.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gradus.cache.groups import layer_groups
from gradus.device.transfer import upload
from gradus.device.zeros import zeros
from gradus.models.config import ModelConfig


class PagedStorage:
    """keys, values: [depth, pages + 1, page_size, Hkv, Dh], `depth` being the layers of a group. Page 0 is for padding.

    It is allocated once, and filled with zeros: a masked position has the weight 0, but 0 times an infinity left in
    memory would be NaN. On a CPU a page takes memory once something is stored in it. dtype: the type of tensors that
    `store` takes and `read` returns.
    """

    kept_as: ClassVar[torch.dtype | None] = None
    """The type of keys and values in memory, if it differs from `dtype`."""

    def __init__(
        self, config: ModelConfig, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.dtype = dtype
        self.groups = layer_groups(config.windows)
        self.page_size = page_size
        self._places = {
            layer: (number, index)
            for number, group in enumerate(self.groups)
            for index, layer in enumerate(group.layers)
        }
        depth = max(len(group.layers) for group in self.groups)
        shape = (depth, pages + 1, page_size, config.num_kv_heads, config.head_dim)
        self.keys, self.values = (zeros(shape, self.kept_as or dtype, device) for _ in range(2))
        # Every layer's rows, [rows, Hkv, Dh]: making these views in each layer would cost more than using them
        self._rows = list(zip(self.keys.flatten(1, 2).unbind(), self.values.flatten(1, 2).unbind(), strict=True))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that it stores: [depth, pages + 1, …] each."""
        return self.keys, self.values

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def place(self, layer: int) -> tuple[int, int]:
        """The group of a layer, and its index within the group."""
        return self._places[layer]

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """All keys and all values of a layer, by row: views [(pages + 1) * page_size, Hkv, Dh]."""
        return self._rows[self._places[layer][1]]

    def scales(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """The scales of a layer's keys and values; None if they are stored unrounded."""
        return None

    def store(self, layer: int, rows: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k and v, [N, Hkv, Dh], in rows, [N] int64, with one write for all keys and one for all values.

        Returns k and v as `read` would return them.
        """
        keys, values = self.rows(layer)
        keys.index_copy_(0, rows, k)
        values.index_copy_(0, rows, v)
        return k, v

    def read(self, layer: int, rows: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Copy some rows, int64 [R] → keys and values, [R, Hkv, Dh] each: the gather that paging costs.

        out: [2, R, Hkv, Dh], to copy into.
        """
        keys, values = self.rows(layer)
        if out is None:
            return keys.index_select(0, rows), values.index_select(0, rows)
        return torch.index_select(keys, 0, rows, out=out[0]), torch.index_select(values, 0, rows, out=out[1])

    @cached_property
    def _bytes_by_page(self) -> list[np.ndarray]:
        """Views of all tensors as bytes, [depth, pages + 1, bytes]. On a CPU alone."""
        return [tensor.view(torch.uint8).flatten(2).numpy() for tensor in self.tensors]

    @property
    def page_bytes(self) -> int:
        """The bytes of a page, in all layers of its group."""
        return self.nbytes // self.keys.shape[1]

    def copy_out(self, page: int) -> memoryview:
        """Copy a page's bytes, `page_bytes` of them, from a CPU's memory."""
        out = np.empty(self.page_bytes, np.uint8)
        self._exchange(page, out, out=True)
        return out.data

    def copy_in(self, page: int, data: memoryview) -> None:
        """Replace a page's bytes with those of `copy_out`."""
        self._exchange(page, np.frombuffer(data, np.uint8), out=False)

    def _exchange(self, page: int, data: np.ndarray, *, out: bool) -> None:
        first = 0
        for part in self._bytes_by_page:
            inside = part[:, page]
            outside = data[first : first + inside.size].reshape(inside.shape)
            np.copyto(*((outside, inside) if out else (inside, outside)))
            first += inside.size

    def wipe(self, pages: Sequence[int]) -> None:
        """Fill pages with zeros, in all layers, and page 0 too: padding may have stored the same poison there."""
        if pages:
            where = upload([0, *pages], torch.int64, self.keys.device)
            self.keys.index_fill_(1, where, 0)
            self.values.index_fill_(1, where, 0)
