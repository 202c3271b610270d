"""Keys and values of 8 bits, widened to bfloat16 layer by layer, in the order of one sequence's block table.

For `hopper_attention`, whose copy engine moves bytes as they are. Each key is widened once per chunk of a prompt, and
not once per tile of it: a chunk of 8,192 tokens has 171 tiles for each key head.

Layouts: keys and values, e4m3 [pages, 16, Hkv, Dh], with scales, float32 [pages, Hkv, 16]; the same, bfloat16 [places,
16, Hkv, Dh]. A scale is a power of two, so what is written is exact. Moves 2 · 3 · Hkv · Dh bytes per position, in
120,000 positions of Llama-3.1-8B 0.7 GB, where a chunk's attention takes 27 ms.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.attention.launch import HOPPER_PAGE
from gradus.kernels.attention.work import Work
from gradus.models.config import ModelConfig

if TYPE_CHECKING:
    from gradus.kernels.attention.hopper import HopperPrompts

ALL = 1 << 30  # positions
PROGRAMS = 1024  # for each key head: program p takes the pages p, p + PROGRAMS …


def widen_pages(
    pages: tuple[Tensor, Tensor], scales: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor], tables: Tensor,
    slot: Tensor, length: Tensor, seen: int = ALL,
) -> None:  # fmt: skip
    """Fill the places of `out` that hold the positions of a sequence.

    slot, length: int32 [1]: its row of `tables`, and its positions. seen: how many of the last positions the queries
    see.
    """
    keys, values = pages
    _, page, heads, head_dim = keys.shape
    widen_pages_kernel[(min(PROGRAMS, tables.shape[1]), heads)](
        *out, keys, values, *scales, tables, slot, length, tables.stride(0), seen,
        HEADS=heads, PAGE=page, HEAD_DIM=head_dim, num_warps=1,
    )  # fmt: skip


class EightBits(Protocol):
    """A cache of 8 bits: see `gradus.attention.fp8_storage`."""

    def pages(self, layer: int) -> tuple[Tensor, Tensor]: ...

    def scales(self, layer: int) -> tuple[Tensor, Tensor]: ...


def widened_shape(config: ModelConfig, context: int) -> tuple[int, int, int, int, int]:
    """The memory for a context of one layer: keys and values, in pages."""
    return 2, -(-context // HOPPER_PAGE), HOPPER_PAGE, config.num_kv_heads, config.head_dim


class WidenedPrompts:
    """`HopperPrompts` over a cache of 8 bits. All layers have the same heads, and share the memory for widened pages.

    A step has one long prompt for it at most: memory for more would grow with the number of sequences.
    """

    def __init__(self, storage: EightBits, pages: Tensor, prompts: "HopperPrompts") -> None:
        """pages: of `widened_shape`, bfloat16. prompts: over them, as those of its layer 0."""
        self.storage, self.pages, self.prompts = storage, pages, prompts
        self.in_order = torch.arange(pages.shape[1], device=pages.device)[None]

    def begin(self, slots: Tensor, lengths: Tensor, counts: Sequence[int]) -> None:
        """Note which of a step's spans is the long prompt. slots, lengths: int32 [S]. counts: their new tokens."""
        self.count = max(counts)
        number = counts.index(self.count)
        self.slot, self.length = slots[number : number + 1], lengths[number : number + 1]

    def attend(
        self, layer: int, q: Tensor, tables: Tensor, work: Work, out: Tensor, scale: float, sinks: Tensor | None
    ) -> None:
        """As `HopperPrompts.attend`, in two launches: one widens the layer's pages, the other attends."""
        scales = self.storage.scales(layer)
        seen = ALL if work.window is None else work.window + self.count - 1
        widen_pages(
            self.storage.pages(layer), scales, (self.pages[0], self.pages[1]), tables, self.slot, self.length, seen
        )
        every = self.in_order.expand(len(tables), -1)  # as if each slot's table named the places in order
        self.prompts.attend(0, q, every, work, out, scale, sinks)


@triton.jit(do_not_specialize=["table_stride", "seen"])
def widen_pages_kernel(
    wide_keys: tensor, wide_values: tensor, keys: tensor, values: tensor, key_scales: tensor, value_scales: tensor,
    tables: tensor, slot: tensor, length: tensor, table_stride: int, seen: int,
    HEADS: constexpr, PAGE: constexpr, HEAD_DIM: constexpr,
) -> None:  # fmt: skip
    """Program (every n-th page, key head)."""
    head, end = tl.program_id(1), tl.load(length)
    table = tables + tl.load(slot).to(tl.int64) * table_stride
    begin = tl.maximum(end - seen, 0) // PAGE
    row, d = tl.arange(0, PAGE), tl.arange(0, HEAD_DIM)
    for place in range(begin + tl.program_id(0), tl.cdiv(end, PAGE), tl.num_programs(0)):
        page = tl.load(table + place).to(tl.int64)
        inside = (row * HEADS + head)[:, None] * HEAD_DIM + d[None, :]
        size = PAGE * HEADS * HEAD_DIM
        to = tl.full([], place, tl.int64) * size + inside
        scales = (page * HEADS + head) * PAGE + row
        _copy(wide_keys + to, keys + page * size + inside, key_scales + scales)
        _copy(wide_values + to, values + page * size + inside, value_scales + scales)


@triton.jit
def _copy(out: tensor, kept: tensor, scales: tensor) -> None:
    value = tl.load(kept).to(tl.float32) * tl.load(scales)[:, None]
    tl.store(out, value.to(tl.bfloat16))
