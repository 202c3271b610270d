"""int4 weights widened for a prompt: a panel of rows at a time, which torch multiplies.

A prompt has many rows of activations, and torch's products are good for those. But torch is slow at turning nibbles
into floats: each of its integer operations writes a tensor. The torch reference is `Int4Linear.wide_rows`.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradus.kernels.cpu.int4.tile import int4_widen
from gradus.kernels.cpu.kept.code import kept, sources
from gradus.quantization.int4 import LANES, PLANES, Int4Linear
from gradus.quantization.linear import PIECE, PLANE


class Panels:
    """The panels of a matrix whose rows are lanes. Each covers some of the product's columns.

    room: PIECE values, float32 or bfloat16, which all matrices use in turn. The kernel is compiled at first use.
    """

    def __init__(self, linear: Int4Linear, room: Tensor) -> None:
        self.words, self.pairs = linear.words.detach(), linear.pairs.detach()
        self.group, self.steps, self.room = linear.group, linear.in_features // PLANE, room
        self.narrow, self.halves = room.dtype == torch.bfloat16, linear.kind == torch.float16

    def __iter__(self) -> Iterator[Tensor]:
        """Yield panels [K, rows]: all rows side by side, plus padding up to LANES. Each is valid until the next one."""
        width, blocks = self.steps * PLANE, len(self.words)
        together = max(1, PIECE // (width * LANES))
        for first in range(0, blocks, together):
            columns = min(together, blocks - first) * LANES
            size = width * columns
            panel = self.room[:size] if size <= len(self.room) else self.room.new_empty(size)
            words, pairs = self.words[first].data_ptr(), self.pairs[first].data_ptr()
            widen_panel(
                self.narrow, self.halves, words, pairs, self.steps, self.group, columns // LANES, panel.data_ptr()
            )
            yield panel.view(width, columns)


def _compiled(made_of: int) -> Callable[[bool, bool, int, int, int, int, int, int], None]:
    @kept
    def widen_panel(
        narrow: bool, halves: bool, words: int, pairs: int, steps: int, group: int, blocks: int, panel: int
    ) -> None:
        """Widen some blocks, given the addresses of their words and pairs, into the panel at an address.

        The panel is bfloat16 if `narrow`, else float32.
        """
        tiles = -(-steps // PLANES)
        stored = tiles * PLANES * PLANE // group  # groups of a row, with padding in the last tile
        size = 2 if narrow else 4
        stride = blocks * LANES * size
        for block in range(blocks + (made_of & 0)):  # puts the sources' number into the closure, for `kept`
            for step in range(steps):
                at = words + (block * tiles + step // PLANES) * 64 * LANES
                pair = pairs + 4 * LANES * (block * stored + step * PLANE // group)
                out = panel + block * LANES * size + step * PLANE * stride
                if narrow:
                    int4_widen(1, halves, at, pair, step % PLANES, out, stride)
                else:
                    int4_widen(0, halves, at, pair, step % PLANES, out, stride)

    return widen_panel


widen_panel = _compiled(sources())
