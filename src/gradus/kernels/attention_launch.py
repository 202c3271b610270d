"""How a paged attention launch is shaped: the tile of a program, its pipeline, and how many programs we want."""

from dataclasses import dataclass

import torch
import triton


@dataclass(frozen=True, slots=True)
class Launch:
    """How a launch is shaped: measured (see `launches`), not derived.

    rows: of a tile; a token takes as many as query heads share a key head. keys: of a step of the loop.
    warps, stages: of a program, and of its pipeline. programs: about how many the splitting aims at; `alone`: of each
    tile, as long as none of those gets too many keys (`attention_work`).
    """

    rows: int
    keys: int
    warps: int
    stages: int
    programs: int
    alone: int

    def aim(self, kv_heads: int) -> int:
        """Items that the splitting aims at, over all sequences: each is a program for each key head."""
        return max(1, self.programs // kv_heads)

    def few(self, kv_heads: int, tiles: int) -> int:
        """Items that it aims at where chunks are short."""
        return max(1, min(self.programs, tiles * self.alone) // kv_heads)


def launches(head_dim: int, dtype: torch.dtype, group: int, processors: int = 132) -> tuple[Launch, ...]:
    """The shapes to choose from, smallest tile first: a span takes the first that holds it, or else the last.

    processors: multiprocessors of the GPU (an H200 has 132). Measured there in bfloat16, for heads of 64 and 128
    (`benchmarks/paged_attention.py --sweep`); what is wider, or has more bytes a value, takes shorter steps, because
    its tiles must fit the same shared memory.

    Among tiles of 16 rows the differences are small where heads are 128 wide: from 32 to 128 keys and from 1 to 4
    warps, all read memory at its speed once the batch is large. Narrow heads take more of a program's time for fewer
    bytes; so they want long steps, and without a group to share keys, one warp that waits for no other. For prompts the
    shape decides: of 256 rows, a tile reads each key half as often as of 128.
    """
    wide = triton.next_power_of_2(head_dim) * dtype.itemsize  # bytes of a key
    if wide > 256:
        keys, tall, warps = (32, 64, 8) if wide <= 512 else (16, 32, 8)
        shapes = [(16, keys, 4, 3), (tall, keys, warps, 3)]
    elif wide > 128:
        shapes = [(16, 64, 2, 2), (64, 64, 4, 3)]
    else:
        shapes = [(16, 64, 1, 2) if group == 1 else (16, 128, 4, 2), (64, 64, 4, 3)]
    if wide <= 256 and dtype.itemsize == 2:
        shapes.append((256, 64, 16, 3) if wide > 128 else (128, 64, 4, 3))
    return tuple(
        Launch(*shape, programs=(4 if shape[0] == 16 else 1) * processors, alone=processors)
        for shape in shapes
        if shape[0] >= group
    )
