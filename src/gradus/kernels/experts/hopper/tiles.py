"""Tiles of persistent programs on Hopper: which expert, and which of its rows.

Each warp group holds, for every expert, where its rows begin and end and how many tiles come before it: a number or two
in each thread. It finds a tile's expert by comparing, without a list of tiles in memory, and without a wait for one.
"""

from typing import Any, NamedTuple

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language import constexpr, tensor

from gradus.kernels.experts.grouped_launch import DEEP

DEPTH = gl.constexpr(DEEP)  # columns of x and the weights in a tile: a swizzled row of shared memory, 128 bytes
FEWEST_LISTED = 128  # experts: one in each thread of four warps


@gluon.constexpr_function
def tile_layout() -> gl.NVMMASharedLayout:
    """Lay out x and weights in shared memory."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


TILE = tile_layout()  # for the host, which describes matrices by it


def described(matrix: Tensor, box: list[int]) -> TensorDescriptor:
    """Describe a matrix to the copy engine."""
    return TensorDescriptor(matrix, [*matrix.shape], [*matrix.stride()], box, TILE)


def experts_listed(experts: int) -> int:
    """Return the length of a list of that many experts: a power of 2."""
    return max(FEWEST_LISTED, 1 << (experts - 1).bit_length())


@gluon.constexpr_function
def lines(warps: int) -> gl.BlockedLayout:
    """Lay out what is copied to shared memory, or written from registers: 16 bytes in a thread, eight of them a row."""
    return gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])


@gluon.constexpr_function
def listed(warps: int) -> gl.BlockedLayout:
    """Lay out a number per expert."""
    return gl.BlockedLayout([1], [32], [warps], [0])


class Work(NamedTuple):
    """A product's sizes and lists, for all warp groups. steps: tiles along K. tiles: of an expert's N outputs."""

    pairs: Any
    starts: Any
    experts: Any
    N: Any
    steps: Any
    tiles: Any


@gluon.jit
def _plus(a: tensor, b: tensor) -> tensor:
    return a + b


@gluon.jit
def ranges_of(work: Work, EXPERTS: constexpr, ROWS: constexpr, WARPS: constexpr) -> tensor:
    """Where each expert's rows begin and end, and the tiles of ROWS before its first; and how many tiles there are."""
    each = gl.arange(0, EXPERTS, layout=listed(WARPS))
    # from the L2 cache: a launch that starts early may find an earlier step's values in a multiprocessor's own
    starts = gl.load(work.starts + each, mask=each < work.experts, other=0, cache_modifier=".cg")
    ends = gl.load(work.starts + each + 1, mask=each < work.experts, other=0, cache_modifier=".cg")
    tiles = (ends - starts + ROWS - 1) // ROWS
    through = gl.associative_scan(tiles, 0, _plus)
    return (starts, ends, through - tiles), gl.max(through, 0)


@gluon.jit
def tile_of(ranges: tensor, tile: tensor, EXPERTS: constexpr, ROWS: constexpr, WARPS: constexpr) -> tensor:
    """The expert of a tile of rows, where the tile's rows begin, and where the expert's end."""
    starts, ends, before = ranges
    each = gl.arange(0, EXPERTS, layout=listed(WARPS))
    begun = (before <= tile) & (ends > starts)
    expert = gl.max(gl.where(begun, each, 0), 0)
    start = gl.max(gl.where(begun, starts, 0), 0)
    end = gl.max(gl.where(begun, ends, 0), 0)
    first = start + (tile - gl.max(gl.where(begun, before, 0), 0)) * ROWS
    return expert, first, end
