"""Adding up the partial results of keys that were attended to in splits.

Each split leaves for each of its rows: the greatest score m, the sum of exponentials l (relative to m), and the sum of
values weighted by them, s. Softmax over all keys is then, with M the greatest m,

    sum of s · exp(m - M)  /  sum of l · exp(m - M)

in the order of the splits, whichever finished first: the result does not depend on timing.

Partials live in memory that is allocated once, because a CUDA graph replays with the addresses it was captured with.
Moves (Dh + 2) · 4 bytes a row and split, mostly out of the L2 cache, where they have just been written.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.attention_work import MERGE, Launch, Work

SPLITS = constexpr(32)  # read at once


class Partials:
    """Room for the partial results of any of these launches, one after the other.

    sums: float32 [2 · goal · Hkv · rows, Dh]; totals, peaks: the same without Dh. (A tile that is split has more keys
    than a chunk, so rounding its splits up at most doubles what was aimed at.)
    """

    def __init__(self, launches: Sequence[Launch], *, kv_heads: int, head_dim: int, device: torch.device) -> None:
        rows = max(2 * launch.goal(kv_heads) * kv_heads * launch.rows for launch in launches)
        self.sums = torch.empty(rows, head_dim, device=device)
        self.totals, self.peaks = torch.empty(2, rows, device=device)


def merge_splits(out: Tensor, partials: Partials, work: Work, group: int) -> None:
    """Finish the rows of `out` [N, Hq, Dh] whose keys were split."""
    head_dim = out.shape[2]
    _merge[(out.shape[1] // group, group * work.longest, len(work.merges))](
        out, partials.sums, partials.peaks, partials.totals, work.merges,
        GROUP=group, HEADS=out.shape[1] // group, HEAD_DIM=head_dim, ROWS=work.launch.rows,
        WIDTH=triton.next_power_of_2(head_dim), num_warps=4,
    )  # fmt: skip


@triton.jit
def _merge(
    out: tensor, sums: tensor, peaks: tensor, totals: tensor, merges: tensor,
    GROUP: constexpr, HEADS: constexpr, HEAD_DIM: constexpr, ROWS: constexpr, WIDTH: constexpr,
) -> None:  # fmt: skip
    """Program (key head, row of the tile, merge): one row of `out`."""
    head, row, at = tl.program_id(0), tl.program_id(1), merges + tl.program_id(2) * MERGE
    tokens = tl.load(at + 1)
    if row // GROUP >= tokens:
        return
    first, partial, splits = tl.load(at), tl.load(at + 2), tl.load(at + 3)
    d = tl.arange(0, WIDTH)
    total, peak = 0.0, float("-inf")
    seen = tl.zeros([WIDTH], tl.float32)
    for start in range(0, splits, SPLITS):
        split = start + tl.arange(0, SPLITS)
        left = ((partial + split).to(tl.int64) * HEADS + head) * ROWS + row
        there = split < splits
        peaks_here = tl.load(peaks + left, mask=there, other=float("-inf"))
        totals_here = tl.load(totals + left, mask=there, other=0.0)
        seen_here = tl.load(
            sums + left[:, None] * HEAD_DIM + d[None, :], mask=there[:, None] & (d < HEAD_DIM)[None, :], other=0.0
        )
        new_peak = tl.maximum(peak, tl.max(peaks_here, 0))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weight, shrink = tl.exp2(peaks_here - base), tl.exp2(peak - base)
        total = total * shrink + tl.sum(totals_here * weight, 0)
        seen = seen * shrink + tl.sum(seen_here * weight[:, None], 0)
        peak = new_peak
    at_out = (first + row // GROUP).to(tl.int64) * (HEADS * GROUP * HEAD_DIM) + (head * GROUP + row % GROUP) * HEAD_DIM
    tl.store(out + at_out + d, seen / tl.where(total > 0, total, 1.0), mask=d < HEAD_DIM)
