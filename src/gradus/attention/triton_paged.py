"""Paged attention without the gather: the Triton kernels of `gradus.kernels` read the pages in place.

In addition to `PagedAttention`'s work (tables by slot, the rows of new keys and values), this backend
plans the step: it sorts spans into a few launch shapes by their length, and the GPU decides how each launch divides its
work. A step of decodes takes one launch shape; a step that also reads prompts takes two or three.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.attention.tiles import Kind, Tiles, kinds_of
from gradus.device.capability import Capability, capability, multiprocessors
from gradus.device.transfer import upload_parts
from gradus.kernels.attention.launch import HOPPER_PAGE, HopperLaunch, Launch, hopper_launch
from gradus.kernels.attention.paged import paged_attention
from gradus.kernels.attention.widen import WidenedPrompts, widened_shape
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

    def __init__(self, config: ModelConfig, storage: PagedStorage, slots: int, tables: Tensor | None = None) -> None:
        super().__init__(config, storage, slots, tables)
        able, self.processors = capability(self.device), multiprocessors(self.device)
        self.kinds = kinds_of(config, storage, self.processors, able)
        self.tiles = list(dict.fromkeys(tiles for tiles, _ in self.kinds))
        widest = max(tiles.head_dim for tiles in self.tiles)
        self.may_fuse_rope = widest <= FUSED_ROPE_WIDTH and not config.qk_norm_across_heads
        self.hopper = self._hopper(able)

    def _hopper(self, able: Capability) -> "HopperPrompts | WidenedPrompts | None":
        storage, eight_bits = self.storage, isinstance(self.storage, Fp8Storage)
        layers = hopper_layers(self.config, storage.dtype, storage.page_size, able, eight_bits=eight_bits)
        if not layers:
            return None
        if not isinstance(storage, Fp8Storage):
            return hopper_prompts({layer: storage.pages(layer) for layer in layers}, self.processors)
        shape = widened_shape(self.config, self.tables.shape[2] * HOPPER_PAGE)
        pages = torch.zeros(shape, dtype=storage.dtype, device=self.device)
        prompts = hopper_prompts({0: (pages[0], pages[1])}, self.processors)
        return None if prompts is None else WidenedPrompts(storage, pages, prompts)

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
        if isinstance(self.hopper, WidenedPrompts):
            self.hopper.begin(slots, lengths, counts)
        for tiles in self.tiles:
            fewest = 1
            for launch, tokens in zip(tiles.launches, tiles.tokens, strict=True):
                last = launch is tiles.launches[-1]
                mine = [count for count in counts if count >= fewest and (count <= tokens or last)]
                if mine:
                    for window in tiles.windows:
                        chosen = self._of_prompts(tiles, window, mine) if last else launch
                        most = sum(triton.cdiv(count, chosen.tokens(tiles.group)) for count in mine)
                        self._plan_layers(
                            tiles, window, chosen, slots, query_start, lengths, fewest, max(mine), most
                        )  # fmt: skip
                fewest = tokens + 1

    def _no_works(self) -> dict[Kind, list[Work]]:
        return {(tiles, window): [] for tiles in self.tiles for window in tiles.windows}

    def _plan_spans(
        self, tiles: Tiles, launch: Launch, slots: Tensor, query_start: Tensor, lengths: Tensor, fewest: int, most: int,
        count: int,
    ) -> None:  # fmt: skip
        """Plan the spans of `fewest` to `most` new tokens, in at most `count` tiles, for layers with the same heads."""
        for window in tiles.windows:
            self._plan_layers(tiles, window, launch, slots, query_start, lengths, fewest, most, count)

    def _plan_layers(
        self, tiles: Tiles, window: int | None, launch: Launch, slots: Tensor, query_start: Tensor, lengths: Tensor,
        fewest: int, most: int, count: int,
    ) -> None:  # fmt: skip
        """The same for those of them with this window."""
        work = tiles.work(launch, window, count)
        work.lay_out(slots, query_start, lengths, fewest=fewest, most=most)
        self.works[tiles, window].append(work)

    def _of_prompts(self, tiles: Tiles, window: int | None, counts: Sequence[int]) -> Launch:
        """Choose the launch shape for the longest spans, with `counts` new tokens. Kernels differ only in the order of
        sums."""
        hopper = None if self.hopper is None else tiles.hopper(window)
        if isinstance(self.hopper, WidenedPrompts) and len(counts) > 1:
            hopper = None
        if hopper is not None and hopper.fills(counts, tiles.group, tiles.kv_heads, self.processors):
            return hopper
        return tiles.launches[-1]

    def shortest_on_hopper(self, most: int) -> set[int]:
        """List the shortest prompts, up to `most` tokens long, that take `hopper_attention`: one per kind of layers."""
        kinds = [] if self.hopper is None else self.kinds
        shapes = {(tiles, tiles.hopper(window)) for tiles, window in kinds}
        found = {
            launch.shortest(most, tiles.group, tiles.kv_heads, self.processors)
            for tiles, launch in shapes
            if launch is not None
        }
        return {length for length in found if length is not None}

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
            if self.hopper is not None and isinstance(work.launch, HopperLaunch):
                self.hopper.attend(layer, q, self.tables[group], work, out, self.config.attention_scale, sinks)
                continue
            paged_attention(
                q, *self.storage.pages(layer), self.tables[group], work, tiles.partials, out,
                scale=self.config.attention_scale, softcap=self.config.attention_softcap, passage=passage,
                scales=self.storage.scales(layer), sinks=sinks,
            )  # fmt: skip
        return out


def hopper_layers(
    config: ModelConfig, dtype: torch.dtype, page_size: int, able: Capability, *, eight_bits: bool
) -> list[int]:
    """List the layers whose long prompts `hopper_attention` may take on this GPU. dtype: of queries.

    Only compute capability 9.0 has its instructions (warpgroup products), no later one. eight_bits: keys and values are
    e4m3. They are widened first (`WidenedPrompts`), where all layers have the same heads.
    """
    if able != (9, 0) or dtype != torch.bfloat16 or page_size != HOPPER_PAGE or config.attention_softcap is not None:
        return []
    if eight_bits and config.sizes:
        return []
    sizes = [config.layer(layer) for layer in range(config.num_layers)]
    return [
        layer
        for layer, (each, window) in enumerate(zip(sizes, config.windows, strict=True))
        if hopper_launch(each.head_dim, each.num_heads // each.num_kv_heads, window) is not None
    ]


def widened_bytes(config: ModelConfig, dtype: torch.dtype, page_size: int, able: Capability, context: int) -> int:
    """Bytes into which long prompts of up to `context` tokens widen a cache of 8 bits; 0 if no layer does."""
    layers = hopper_layers(config, dtype, page_size, able, eight_bits=True)
    return math.prod(widened_shape(config, context)) * dtype.itemsize if layers else 0


def hopper_prompts(pages: Mapping[int, tuple[Tensor, Tensor]], processors: int) -> "HopperPrompts | None":
    """Make the kernel for these layers' pages; None if Triton lacks the Gluon that it is written in."""
    kernel = in_gluon("attention.hopper", "HopperPrompts")
    return None if kernel is None else kernel(pages, processors)
