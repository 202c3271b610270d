"""Paged attention without the gather: the Triton kernels of `gradus.kernels` read the pages in place.

In addition to `PagedAttention`'s work (tables by slot, the rows of new keys and values), this backend
plans the step: it sorts spans into a few launch shapes by their length, and the GPU decides how each launch divides its
work. A step of decodes takes one launch shape; a step that also reads prompts takes two or three.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.device.capability import Capability, capability, multiprocessors
from gradus.device.transfer import upload_parts
from gradus.kernels.attention.launch import (
    HOPPER,
    HOPPER_HEAD_DIM,
    HOPPER_PAGE,
    Launch,
    fills_hopper,
    launches,
)
from gradus.kernels.attention.new_token import FusedRope
from gradus.kernels.attention.paged import paged_attention
from gradus.kernels.attention.splits import Partials
from gradus.kernels.attention.work import Work
from gradus.kernels.core.gluon import in_gluon
from gradus.models.config import ModelConfig

if TYPE_CHECKING:
    from gradus.kernels.attention.hopper import HopperPrompts

# Up to this width of heads, attention rotates and stores those of decodes itself: one launch fewer in each layer. With
# wider heads, it takes more registers, fewer programs run at once, and that costs more (both measured on an H200).
FUSED_ROPE_WIDTH = 64


class TritonPagedAttention(PagedAttention):
    """slots: sequences that run at once. The storage is on a CUDA GPU, or on a CPU for Triton's interpreter."""

    fuses_rope: (
        bool  # of this step: whether attention rotates and stores heads itself (`gradus.kernels.attention.new_token`)
    )

    def __init__(self, config: ModelConfig, storage: PagedStorage, slots: int) -> None:
        super().__init__(config, storage, slots)
        self.group = config.num_heads // config.num_kv_heads
        self.may_fuse_rope = config.head_dim <= FUSED_ROPE_WIDTH
        able, self.processors = capability(self.device), multiprocessors(self.device)
        self.launches = launches(
            config.head_dim, storage.dtype, self.group, self.processors, able, eight_bits=storage.scales(0) is not None,
        )  # fmt: skip
        self.partials = Partials(
            self.launches, kv_heads=config.num_kv_heads, head_dim=config.head_dim, device=self.device
        )
        self._works: dict[tuple[Launch, int | None, int], Work] = {}
        hopper = suits_hopper(config, storage, able)
        every = [storage.pages(layer) for layer in range(config.num_layers)]
        self.hopper = hopper_prompts(every, self.processors) if hopper else None

    def prepare(self, batch: Batch) -> None:
        self._begin(batch)
        end = batch.query_start[-1] + batch.counts[-1]
        parts = batch.slots, batch.lengths, [*batch.query_start, end]
        slots, lengths, query_start = upload_parts(parts, torch.int32, self.device)
        self.plan(slots, query_start, lengths, batch.counts)

    def plan(self, slots: Tensor, query_start: Tensor, lengths: Tensor, counts: Sequence[int]) -> None:
        """Divide a step's attention among programs, on the GPU: see `Work.lay_out` for the tensors.

        counts: each span's new tokens, on the host. Launches depend only on these, so a captured step may be replayed
        with other slots and lengths.
        """
        self.fuses_rope = self.may_fuse_rope and max(counts) == 1
        self.works: dict[int | None, list[Work]] = {group.window: [] for group in self.storage.groups}
        fewest = 1
        for launch in self.launches:
            tokens = launch.rows // self.group
            mine = [count for count in counts if count >= fewest and (count <= tokens or launch is self.launches[-1])]
            if mine:
                chosen = self._of_prompts(mine) if launch is self.launches[-1] else launch
                tiles = sum(triton.cdiv(count, chosen.rows // self.group) for count in mine)
                self._plan_spans(chosen, slots, query_start, lengths, fewest=fewest, most=max(mine), tiles=tiles)
            fewest = tokens + 1

    def _plan_spans(
        self, launch: Launch, slots: Tensor, query_start: Tensor, lengths: Tensor, *, fewest: int, most: int, tiles: int
    ) -> None:
        """Plan the spans of `fewest` to `most` new tokens, in at most `tiles` tiles."""
        for window, works in self.works.items():
            work = self._work(launch, window, triton.next_power_of_2(tiles))
            work.lay_out(slots, query_start, lengths, fewest=fewest, most=most)
            works.append(work)

    def _of_prompts(self, counts: Sequence[int]) -> Launch:
        """Choose the launch shape for the longest spans, with `counts` new tokens. Kernels differ only in the order of
        sums."""
        fills = fills_hopper(counts, self.group, self.config.num_kv_heads, self.processors)
        return HOPPER if self.hopper is not None and fills else self.launches[-1]

    def _work(self, launch: Launch, window: int | None, tiles: int) -> Work:
        """Get or make a work list. They are kept, since captured graphs hold their addresses. Sizes are powers of two,
        so there are few."""
        key = (launch, window, tiles)
        if key not in self._works:
            self._works[key] = Work(
                launch, tiles=tiles, group=self.group, kv_heads=self.config.num_kv_heads, window=window,
                device=self.device,
            )  # fmt: skip
        return self._works[key]

    # -- in each layer -----------------------------------------------------------------------------------------------

    def destination(self, layer: int) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """The storage where a kernel may put this step's keys and values itself: see `gradus.kernels.fuse.model`.

        Only for a layer that has keys and values of its own.
        """
        group, _ = self.storage.place(layer)
        return *self.storage.pages(layer), self.new_rows[group], self.storage.scales(layer)

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        if k is not None and v is not None:
            self.storage.store(layer, self.new_rows[self.storage.place(layer)[0]], k, v)
        return self.attend_stored(layer, q)

    def attend_stored(self, layer: int, q: Tensor) -> Tensor:
        """Attend. q: [N, Hq, Dh], rotated, whose keys and values are stored already. Returns [N, Hq, Dh]."""
        return self._attend(layer, q, None)

    def store_and_attend(self, layer: int, qkv: Tensor, rope: FusedRope) -> Tensor:
        """In a step that `fuses_rope`: from the qkv product [N, (Hq + 2 Hkv) Dh] to what attention gives, [N, Hq, Dh].

        rope: what its heads pass on the way.
        """
        return self._attend(layer, qkv, rope)

    def _attend(self, layer: int, q: Tensor, rope: FusedRope | None) -> Tensor:
        group, _ = self.storage.place(layer)
        out = torch.empty(len(q), self.config.num_heads, self.config.head_dim, dtype=q.dtype, device=q.device)
        for work in self.works[self.config.windows[layer]]:
            if self.hopper is not None and work.launch is HOPPER:
                self.hopper.attend(layer, q, self.tables[group], work, out, self.config.attention_scale)
                continue
            paged_attention(
                q, *self.storage.pages(layer), self.tables[group], work, self.partials, out,
                scale=self.config.attention_scale, softcap=self.config.attention_softcap, rope=rope,
                scales=self.storage.scales(layer),
            )  # fmt: skip
        return out


def suits_hopper(config: ModelConfig, storage: PagedStorage, able: Capability) -> bool:
    """Whether `hopper_attention` supports this model and cache on this GPU.

    Only compute capability 9.0 has its instructions (warpgroup products), no later one.
    """
    group = config.num_heads // config.num_kv_heads
    return (
        able == (9, 0)
        and storage.dtype == storage.keys.dtype == torch.bfloat16
        and not config.sizes
        and (config.head_dim, storage.page_size) == (HOPPER_HEAD_DIM, HOPPER_PAGE)
        and HOPPER.rows // 2 % group == 0  # each consumer handles whole tokens
        and config.attention_softcap is None
        and all(window is None for window in config.windows)
    )


def hopper_prompts(pages: Sequence[tuple[Tensor, Tensor]], processors: int) -> "HopperPrompts | None":
    """Make the kernel for these layers' pages; None if Triton lacks the Gluon that it is written in."""
    kernel = in_gluon("attention.hopper", "HopperPrompts")
    return None if kernel is None else kernel(pages, processors)
