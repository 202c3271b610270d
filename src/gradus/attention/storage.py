"""The keys and values of all sequences, in one heap of pages. Only the cache manager knows which page holds what.

A page is `page_size` positions of one sequence, for all layers of a group. Within a layer the positions of all pages
lie one after the other, so position p of a sequence is row page * page_size + p % page_size of the layer, `page` being
entry p // page_size of its block table (Kwon et al. 2023, section 4.2). Attention needs only this row number.

Where `together` narrow layers share a strip (`gradus.cache.groups`), each sees the strip of all pages as a heap of
pages of its own size, and owns every together-th of them. So a device's block tables name page p as p * together
(`numbered`), layer i of a strip begins i pages in, and the rule above holds for every layer.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gradus.cache.groups import LayerGroup, page_layout
from gradus.device.transfer import upload
from gradus.device.zeros import zeros
from gradus.models.config import ModelConfig


class PagedStorage:
    """keys, values: [depth, pages + 1, page_size, Hkv, Dh], `depth` being the strips of a page. Page 0 is for padding.

    Where layers differ, Hkv and Dh are those of the widest, and page_size counts the positions of all its layers that
    share a strip.

    It is allocated once, and filled with zeros: a masked position has the weight 0, but 0 times an infinity left in
    memory would be NaN. On a CPU a page takes memory once something is stored in it. dtype: the type of tensors that
    `store` takes and `read` returns. together: the fewest layers that share a strip, where another model's block tables
    are read.
    """

    kept_as: ClassVar[torch.dtype | None] = None
    """The type of keys and values in memory, if it differs from `dtype`."""

    def __init__(
        self,
        config: ModelConfig,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        together: int = 1,
    ) -> None:
        self.dtype = dtype
        self.layout = page_layout(config, together)
        self.groups = self.layout.groups
        self.page_size = page_size
        own = {
            layer: (number, index)
            for number, group in enumerate(self.groups)
            for index, layer in enumerate(group.layers)
        }
        self._shares = any(group.together > 1 for group in self.groups)
        self._places = [own[config.kv_source(layer)] for layer in range(config.num_layers)]
        widest = max(self.groups, key=lambda group: group.width)
        page = widest.together * page_size, widest.num_kv_heads, widest.head_dim
        shape = (self.layout.depth, pages + 1, *page)
        self.keys, self.values = (zeros(shape, self.kept_as or dtype, device) for _ in range(2))
        # Making these views in each layer would cost more than using them
        self._pages = [self._views(self.keys, self.values, layer) for layer in range(config.num_layers)]
        self._rows = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self._pages]

    def _views(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        group = self.group(layer)
        page = self.page_size, group.num_kv_heads, group.head_dim
        return self._pages_of(layer, keys, *page), self._pages_of(layer, values, *page)

    def _pages_of(self, layer: int, kept: Tensor, *page: int) -> Tensor:
        """View a layer's part of `kept`, [depth, pages + 1, …], as pages of the shape `page`."""
        number, index = self._places[layer]
        together = self.groups[number].together
        strip, first = divmod(index, together)
        return kept[strip].view(-1, *page)[first : first + (kept.shape[1] - 1) * together + 1]

    def of_draft(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> "PagedStorage":
        """Allocate pages with the same numbers for a draft model, which reads the block tables of the first group."""
        pages = self.keys.shape[1] - 1
        return type(self)(config, pages, self.page_size, dtype, device, self.groups[0].together)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that it stores: [depth, pages + 1, …] each."""
        return self.keys, self.values

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def place(self, layer: int) -> tuple[int, int]:
        """The group whose pages a layer reads, and the place there of the layer that stores them."""
        return self._places[layer]

    def group(self, layer: int) -> LayerGroup:
        """The group whose pages a layer reads."""
        return self.groups[self._places[layer][0]]

    def numbered(self, tables: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Turn pages, by group, into the numbers that block tables on the device have for them."""
        if not self._shares:
            return tables
        return [[page * group.together for page in table] for group, table in zip(self.groups, tables, strict=True)]

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values that a layer reads, by page: contiguous views [pages * together + 1, page_size, Hkv,
        Dh]."""
        return self._pages[layer]

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """The same by row: views [(pages * together + 1) * page_size, Hkv, Dh]."""
        return self._rows[layer]

    def scales(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """The scales of the keys and values that a layer reads; None if they are stored unrounded."""
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
        """Fill pages with zeros, in all layers, and page 0 too: padding may have stored the same poison there.

        pages: as the cache manager numbers them.
        """
        if pages:
            where = upload([0, *pages], torch.int64, self.keys.device)
            for tensor in self.tensors:  # of 8 bits, torch can fill bytes by index, but not floats
                (tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor).index_fill_(1, where, 0)
