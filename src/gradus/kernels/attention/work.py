"""The work list of a paged attention launch: laid out once per step, on the GPU, for all layers.

A launch must fill the GPU whatever the batch looks like: one sequence of 100,000 positions or 256 of 100. So each
sequence's new rows are cut into tiles of queries, and a tile's keys are split wherever that gives idle processors
something to do. Two facts make this safe inside a CUDA graph, which replays a launch with the grid that it was captured
with. The grid is sized by padded shapes alone: whatever the lengths are, there are at most `tiles + aim` items, for

    chunk = ceil(sum of all tiles' keys / aim)       splits of a tile = ceil(its keys / chunk)

And the lengths are read where they are, on the GPU: the host never waits for them. Equal shares, instead of a fixed
number of splits, keep one long sequence among short ones from running alone at the end.

`aim` is how many items run at once. Rounding splits up would make a few more of them, which run alone when all others
have ended, and take as long: 8 equal tiles and an aim of 66 would give 72 items. So a chunk is as much longer as it
takes for those tiles to get no more than `aim` items that get two or more (the T tiles with aim⁻¹ of all keys each):

    chunk = ceil(sum / (aim - T + 1))                since ceil(keys / chunk) < keys / chunk + 1 for each of them

Here 8 splits of each. Where keys are few, a chunk is longer still, since every split leaves a partial result that must
be added up: with fewer than LONG keys, one program per multiprocessor is enough. A tile of at most `whole` keys is
never split. And the last program of a tile adds all p results up, one after the other, when each has attended to its
n / p keys. If adding one up takes as long as `adding` keys, the sum is least for n / p = √(n · adding): no chunk is
shorter.

An item is nine numbers, so that a program knows its work after one read: (row, tokens, position, slot, low, high,
split, splits, partial). Its queries are `tokens` rows of the flat batch from `row` on, the first one at `position`; it
attends to the keys low … high - 1 of the block table of `slot`. It is number `split` of `splits` that share the tile,
and their partial results go to the places from `partial` on. No tokens: nothing to do.

Moves 12 bytes per sequence and program in, 36 bytes per item out: microseconds, once per step.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.language import constexpr, tensor

from gradus.device.capability import Capability, capability
from gradus.kernels.attention.launch import Launch

ITEM = constexpr(9)  # numbers
ENTRIES = constexpr(16)  # items that one program of the planning kernel writes
LONG = constexpr(256)  # keys: beyond, more programs than one per multiprocessor are worth it


@cache
def live_programs(kernel: Any, able: Capability) -> int:
    """Count the programs of a compiled kernel that one multiprocessor runs at once.

    A program takes registers, shared memory and warps: only the compiled kernel knows how many of each, and another
    compiler, or another GPU, makes another number of it. kernel: what Triton returns of a launch. It is loaded onto the
    current GPU, since only then are registers known.
    """
    kernel.run  # noqa: B018  # loads
    taken = kernel.metadata
    return able.programs(warps=taken.num_warps, shared=taken.shared, registers=kernel.n_regs)


class Work:
    """The work list of one launch shape and one window: filled by `lay_out`, read by every layer's launch.

    items: int32 [tiles + most items that may be aimed at, 9]. tiles: the most that a step can have.
    longest: tokens that a tile of this step has room for: one, or as many as fit. kernels: what was launched for it
    since it was laid out.
    """

    def __init__(
        self, launch: Launch, *, tiles: int, group: int, kv_heads: int, window: int | None, device: torch.device
    ) -> None:
        self.launch, self.window, self.kv_heads = launch, window, kv_heads
        self.tile_tokens = launch.tokens(group)
        self.longest = self.tile_tokens
        self.kernels: set[Any] = set()
        self._able, self._fits = capability(device), set[int]()
        most = launch.items(kv_heads, launch.live)
        self.items = torch.zeros(tiles + most, ITEM.value, dtype=torch.int32, device=device)

    @property
    def aim(self) -> int:
        """The number of items that splitting aims at, over all sequences: no more than fit with any launched kernel."""
        fits = min(self._fits, default=self.launch.fits)
        return self.launch.items(self.kv_heads, max(1, min(self.launch.live, fits)))

    @property
    def few(self) -> int:
        """The number of items that splitting aims at where parts are short: one program per multiprocessor."""
        return self.launch.items(self.kv_heads, 1)

    def lay_out(self, slots: Tensor, query_start: Tensor, lengths: Tensor, *, fewest: int = 1, most: int) -> None:
        """Plan the spans of `fewest` to `most` new tokens; other launches take the rest. Does not wait for the GPU.

        slots, lengths: int32 [S]; query_start: int32 [S + 1]. lengths counts the new tokens. A padded span has no
        rows, or a length of 0: then its rows become zeros.
        """
        spans, self.longest = lengths.shape[0], 1 if most == 1 else self.tile_tokens
        self._count_fitting()
        _lay_out[(triton.cdiv(len(self.items), ENTRIES.value),)](
            self.items, slots, query_start, lengths, spans, fewest, most, len(self.items), self.aim, self.few,
            self.tile_tokens, self.launch.keys, self.launch.whole, self.launch.adding,
            WINDOW=self.window or 0, SPANS=triton.next_power_of_2(spans), num_warps=8,
        )  # fmt: skip

    def _count_fitting(self) -> None:
        """Note how many programs of each newly launched kernel fit; one that is still compiling is noted later.

        Every kernel is launched before a step is captured or a request served: from then on nothing changes.
        """
        self._fits |= {live_programs(each, self._able) for each in self.kernels if isinstance(each, CompiledKernel)}
        self.kernels.clear()


@triton.jit
def _shape(count: tensor, length: tensor, fewest: int, most: int, tile_tokens: int, WINDOW: constexpr) -> tensor:
    """(tiles, most keys that one of them sees) of spans with `count` new tokens and `length` positions."""
    tiles = tl.where((count >= fewest) & (count <= most), tl.cdiv(count, tile_tokens), 0)
    keys = tl.minimum(length, WINDOW + tile_tokens) if WINDOW else length
    return tiles, keys


@triton.jit
def _splits(keys: tensor, chunk: tensor, step: int, whole: int, adding: float) -> tensor:
    """Count the splits of tiles that see `keys` keys."""
    least = tl.cdiv(tl.sqrt(keys * adding).to(tl.int32), step) * step
    return tl.where(keys <= whole, 1, tl.maximum(tl.cdiv(keys, tl.maximum(tl.maximum(chunk, least), 1)), 1))


@triton.jit(do_not_specialize=["spans", "fewest", "most", "entries", "aim", "few", "tile_tokens", "step", "whole"])
def _lay_out(
    items: tensor, slots: tensor, query_start: tensor, lengths: tensor,
    spans: int, fewest: int, most: int, entries: int, aim: int, few: int, tile_tokens: int, step: int,
    whole: int, adding: float, WINDOW: constexpr, SPANS: constexpr,
) -> None:  # fmt: skip
    """Program p writes the items 16 p … 16 p + 15; each one adds all the spans up for itself."""
    span = tl.arange(0, SPANS)
    count = tl.load(query_start + span + 1, mask=span < spans, other=0)
    count -= tl.load(query_start + span, mask=span < spans, other=0)
    length = tl.load(lengths + span, mask=span < spans, other=0)
    tiles, keys = _shape(count, length, fewest, most, tile_tokens, WINDOW)
    total = tl.sum(tiles.to(tl.int64) * keys)  # a prompt of 262,144 tokens in one step may exceed 31 bits
    rounded = tl.maximum(tl.sum(tl.where(keys >= tl.cdiv(total, aim), tiles, 0)), 1) - 1
    chunk = tl.cdiv(total, tl.maximum(aim - rounded, 1))
    chunk = tl.maximum(chunk, tl.minimum(tl.cdiv(total, tl.maximum(few - rounded, 1)), LONG))
    chunk = tl.minimum(chunk, tl.max(keys)).to(tl.int32)
    splits = _splits(keys, chunk, step, whole, adding)
    parted = tl.where(splits > 1, tiles, 0)  # tiles that take more than one item
    ends, partial_ends = tl.cumsum(tiles * splits), tl.cumsum(parted * splits)

    # which span the item belongs to, and how many items and partials come before that span
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    passed = ends[None, :] <= entry[:, None]
    mine = tl.sum(passed.to(tl.int32), 1)
    number = entry - tl.max(tl.where(passed, ends[None, :], 0), 1)
    partials = tl.max(tl.where(passed, partial_ends[None, :], 0), 1)

    live = mine < spans
    row = tl.load(query_start + mine, mask=live, other=0)
    count = tl.load(query_start + mine + 1, mask=live, other=0) - row
    length = tl.load(lengths + mine, mask=live, other=0)
    slot = tl.load(slots + mine, mask=live, other=0)
    tiles, keys = _shape(count, length, fewest, most, tile_tokens, WINDOW)
    splits = _splits(keys, chunk, step, whole, adding)
    tile, split = number // splits, number % splits
    # a span's last tiles see the most keys: they go first, and the short ones fill the gaps at the end
    token = (tiles - 1 - tile) * tile_tokens
    tokens = tl.where(live, tl.minimum(count - token, tile_tokens), 0)
    position = length - count + token
    end = tl.minimum(position + tokens, length)
    # Begin at the first visible key, no earlier: pages before it are given back, and the table then names page 0.
    begin = tl.maximum(position - WINDOW + 1, 0) if WINDOW else tl.zeros_like(position)
    share = tl.cdiv(tl.cdiv(end - begin, step), splits) * step
    low = tl.minimum(begin + split * share, end)

    at = items + entry * ITEM
    kept = entry < entries
    tl.store(at, row + token, mask=kept)
    tl.store(at + 1, tokens, mask=kept)
    tl.store(at + 2, position, mask=kept)
    tl.store(at + 3, slot, mask=kept)
    tl.store(at + 4, low, mask=kept)
    tl.store(at + 5, tl.minimum(low + share, end), mask=kept)
    tl.store(at + 6, split, mask=kept)
    tl.store(at + 7, splits, mask=kept)
    tl.store(at + 8, partials + number - split, mask=kept)
