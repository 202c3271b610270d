"""Adding up the partial results of keys that were attended to in splits.

Each split leaves for each of its rows: the greatest score m, the sum of exponentials l (relative to m), and the sum of
values weighted by them, s. Softmax over all keys is then, with M the greatest m,

    sum of s · exp(m - M)  /  sum of l · exp(m - M)

in the order of the splits, whichever finished last and adds up: the result does not depend on timing.

Which is last? Each program of a tile draws a ticket when its partial result is stored, from a counter that starts at 0
and is set back by the last. The drawing is a release (what was stored before is visible to those that draw later) and
an acquire (what others stored before their drawing is visible now). No program waits for another, so nothing can hang.

Partials live in memory that is allocated once, because a CUDA graph replays with the addresses it was captured with.
Moves (Dh + 2) · 4 bytes per row and split, mostly out of the L2 cache, where they have just been written.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.language import constexpr, tensor

from gradus.kernels.attention.launch import Launch


class Partials:
    """Memory for the partial results of one launch, in any of the shapes.

    sums: float32 [P · Hkv · rows, Dh]; totals, peaks: the same without Dh; tickets: int32 [P · Hkv], zeros between
    launches. P is twice what splitting aims at: a tile that is split has more keys than a chunk, so rounding its
    splits up no more than doubles them.
    """

    def __init__(self, launches: Sequence[Launch], *, kv_heads: int, head_dim: int, device: torch.device) -> None:
        places = [2 * launch.items(kv_heads, launch.live) * kv_heads for launch in launches]
        rows = max(count * launch.rows for count, launch in zip(places, launches, strict=True))
        self.sums = torch.empty(rows, head_dim, device=device)
        self.totals, self.peaks = torch.empty(2, rows, device=device)
        self.tickets = torch.zeros(max(places), dtype=torch.int32, device=device)


@triton.jit
def merge_splits(
    sums: tensor, peaks: tensor, totals: tensor, partial: int, splits: int, head: int,
    HEADS: constexpr, HEAD_DIM: constexpr, TAKEN: constexpr, WIDTH: constexpr, SPLITS: constexpr,
) -> tensor:  # fmt: skip
    """The attended values [TAKEN, WIDTH] of a tile's rows, SPLITS partial results at a time."""
    row, d = tl.arange(0, TAKEN), tl.arange(0, WIDTH)
    seen = tl.zeros([TAKEN, WIDTH], tl.float32)
    total = tl.zeros([TAKEN], tl.float32)
    peak = tl.full([TAKEN], float("-inf"), tl.float32)
    for start in range(0, splits, SPLITS):
        split = start + tl.arange(0, SPLITS)
        left = ((partial + split).to(tl.int64) * HEADS + head)[:, None] * TAKEN + row[None, :]
        there = (split < splits)[:, None] & (row >= 0)[None, :]
        # .cg: out of the L2 cache, which all processors share
        peaks_here = tl.load(peaks + left, mask=there, other=float("-inf"), cache_modifier=".cg")
        totals_here = tl.load(totals + left, mask=there, other=0.0, cache_modifier=".cg")
        seen_here = tl.load(
            sums + left[:, :, None] * HEAD_DIM + d[None, None, :],
            mask=there[:, :, None] & (d < HEAD_DIM)[None, None, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        new_peak = tl.maximum(peak, tl.max(peaks_here, 0))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weight, shrink = tl.exp2(peaks_here - base[None, :]), tl.exp2(peak - base)
        total = total * shrink + tl.sum(totals_here * weight, 0)
        seen = seen * shrink[:, None] + tl.sum(seen_here * weight[:, :, None], 0)
        peak = new_peak
    return seen / tl.where(total > 0, total, 1.0)[:, None]
