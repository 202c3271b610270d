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
from gradus.attention.tiles import Kind, Tiles, kinds_of
from gradus.device.capability import Capability, capability, multiprocessors
from gradus.device.transfer import upload_parts
from gradus.kernels.attention.launch import (
    HOPPER,
    HOPPER_HEAD_DIM,
    HOPPER_PAGE,
    Launch,
    fills_hopper,
)
from gradus.kernels.attention.paged import paged_attention
from gradus.kernels.attention.work import Work
from gradus.kernels.core.gluon import in_gluon
from gradus.kernels.rows.passage import Passage
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

    def __init__(
        self,
        config: ModelConfig,
        storage: PagedStorage,
        slots: int,
        context: int | None = None,
        tables: Tensor | None = None,
    ) -> None:
        super().__init__(config, storage, slots, context, tables)
        able, self.processors = capability(self.device), multiprocessors(self.device)
        self.kinds = kinds_of(config, storage, self.processors, able)
        self.tiles = list(dict.fromkeys(tiles for tiles, _ in self.kinds))
        widest = max(tiles.head_dim for tiles in self.tiles)
        self.may_fuse_rope = widest <= FUSED_ROPE_WIDTH and not config.qk_norm_across_heads
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
        self.works = self._no_works()
        for tiles in self.tiles:
            fewest = 1
            for launch, tokens in zip(tiles.launches, tiles.tokens, strict=True):
                last = launch is tiles.launches[-1]
                mine = [count for count in counts if count >= fewest and (count <= tokens or last)]
                if mine:
                    chosen = self._of_prompts(tiles, mine) if last else launch
                    most = sum(triton.cdiv(count, chosen.rows // tiles.group) for count in mine)
                    self._plan_spans(tiles, chosen, slots, query_start, lengths, fewest, max(mine), most)
                fewest = tokens + 1

    def _no_works(self) -> dict[Kind, list[Work]]:
        return {(tiles, window): [] for tiles in self.tiles for window in tiles.windows}

    def _plan_spans(
        self, tiles: Tiles, launch: Launch, slots: Tensor, query_start: Tensor, lengths: Tensor, fewest: int, most: int,
        count: int,
    ) -> None:  # fmt: skip
        """Plan the spans of `fewest` to `most` new tokens, in at most `count` tiles, for layers of one kind."""
        for window in tiles.windows:
            work = tiles.work(launch, window, count)
            work.lay_out(slots, query_start, lengths, fewest=fewest, most=most)
            self.works[tiles, window].append(work)

    def _of_prompts(self, tiles: Tiles, counts: Sequence[int]) -> Launch:
        """Choose the launch shape for the longest spans, with `counts` new tokens. Kernels differ only in the order of
        sums."""
        fills = fills_hopper(counts, tiles.group, tiles.kv_heads, self.processors)
        return HOPPER if self.hopper is not None and fills else tiles.launches[-1]

    # -- in each layer -----------------------------------------------------------------------------------------------

    def destination(self, layer: int) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """The storage where a kernel may put this step's keys and values itself: see `gradus.kernels.fuse.model`.

        Only for a layer that has keys and values of its own.
        """
        group, _ = self.storage.place(layer)
        return *self.storage.pages(layer), self.new_rows[group], self.storage.scales(layer)

    def attend(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, sinks: Tensor | None = None) -> Tensor:
        if k is not None and v is not None:
            self.storage.store(layer, self.new_rows[self.storage.place(layer)[0]], k, v)
        return self.attend_stored(layer, q, sinks)

    def attend_stored(self, layer: int, q: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Attend. q: [N, Hq, Dh], rotated, whose keys and values are stored already. Returns [N, Hq, Dh]."""
        return self._attend(layer, q, None, sinks)

    def store_and_attend(self, layer: int, qkv: Tensor, passage: Passage, sinks: Tensor | None = None) -> Tensor:
        """In a step that `fuses_rope`: from the qkv product [N, (Hq + 2 Hkv) Dh] to what attention gives, [N, Hq, Dh].

        passage: what its heads pass on the way. The layer has keys and values of its own.
        """
        return self._attend(layer, qkv, passage, sinks)

    def _attend(self, layer: int, q: Tensor, passage: Passage | None, sinks: Tensor | None) -> Tensor:
        group, _ = self.storage.place(layer)
        tiles, _ = kind = self.kinds[layer]
        out = torch.empty(len(q), self.config.num_heads, tiles.head_dim, dtype=q.dtype, device=q.device)
        for work in self.works[kind]:
            if self.hopper is not None and work.launch is HOPPER:
                self.hopper.attend(layer, q, self.tables[group], work, out, self.config.attention_scale)
                continue
            paged_attention(
                q, *self.storage.pages(layer), self.tables[group], work, tiles.partials, out,
                scale=self.config.attention_scale, softcap=self.config.attention_softcap, passage=passage,
                scales=self.storage.scales(layer), sinks=sinks,
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
        and not config.attention_sinks
        and all(window is None for window in config.windows)
    )


def hopper_prompts(pages: Sequence[tuple[Tensor, Tensor]], processors: int) -> "HopperPrompts | None":
    """Make the kernel for these layers' pages; None if Triton lacks the Gluon that it is written in."""
    kernel = in_gluon("attention.hopper", "HopperPrompts")
    return None if kernel is None else kernel(pages, processors)
