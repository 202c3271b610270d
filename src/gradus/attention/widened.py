"""One long prompt at a time over a cache of 8 bits: its pages widened, layer by layer, for the kernel of Hopper."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradus.attention.fp8_storage import Fp8Storage
from gradus.kernels.attention.launch import HOPPER_PAGE
from gradus.kernels.attention.widen import ALL, widen_pages
from gradus.kernels.attention.work import Work
from gradus.models.config import ModelConfig

if TYPE_CHECKING:
    from gradus.kernels.attention.hopper import HopperPrompts


def widened_shape(config: ModelConfig, context: int) -> tuple[int, int, int, int, int]:
    """The memory for a context of one layer: keys and values, in pages."""
    return 2, -(-context // HOPPER_PAGE), HOPPER_PAGE, config.num_kv_heads, config.head_dim


class WidenedPrompts:
    """`HopperPrompts` over a cache of 8 bits. All layers have the same heads, and share the memory for widened pages.

    A step has one long prompt for it at most: memory for more would grow with the number of sequences.
    """

    def __init__(self, storage: Fp8Storage, pages: Tensor, prompts: "HopperPrompts") -> None:
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
        seen = ALL if work.window is None else work.window + self.count
        widen_pages(self.storage.pages(layer), scales, tuple(self.pages), tables, self.slot, self.length, seen)
        every = self.in_order.expand(len(tables), -1)  # as if each slot's table named the places in order
        self.prompts.attend(0, q, every, work, out, scale, sinks)
