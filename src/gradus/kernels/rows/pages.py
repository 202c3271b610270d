"""Pages of a pool, gathered into one piece each for a copy to host memory, and scattered after a copy from there.

A page has a piece per layer in each tensor, of 8 to 32 KiB. A program moves one piece, or a block of a larger one, and
has all of its loads under way at once. Programs are many and short, because a product's program takes a multiprocessor
whole: it cannot start there before the last program of a gather has ended. Moves two bytes per byte of a page.

Layouts: pool [depth, pages, words], staged [n, depth, words]: the pages of `staged` may be any stride apart.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

BYTES = 16 << 10  # of a block: each thread of 4 warps loads 128


def gather_pages(staged: Tensor, pool: Tensor, pages: Tensor) -> None:
    """staged[i] = pool[:, pages[i]]. pages: int64 [n]."""
    _move(staged, pool, pages, out=True)


def scatter_pages(staged: Tensor, pool: Tensor, pages: Tensor) -> None:
    """pool[:, pages[i]] = staged[i]. pages: int64 [n], all different."""
    _move(staged, pool, pages, out=False)


def _move(staged: Tensor, pool: Tensor, pages: Tensor, *, out: bool) -> None:
    depth, _, words = pool.shape
    assert staged.dtype == pool.dtype and staged.shape == (len(pages), depth, words)
    assert pool.stride()[1:] == (words, 1) and staged.stride()[1:] == (words, 1)
    block = min(triton.next_power_of_2(words), BYTES // pool.element_size())
    move_pages_kernel[len(pages), depth, triton.cdiv(words, block)](
        staged, pool, pages, staged.stride(0), pool.stride(0),
        WORDS=words, BLOCK=block, OUT=out, num_warps=4 if block * pool.element_size() >= 2048 else 1,
    )  # fmt: skip


@triton.jit
def move_pages_kernel(
    staged: tensor, pool: tensor, pages: tensor, staged_stride: int, pool_stride: int,
    WORDS: constexpr, BLOCK: constexpr, OUT: constexpr,
) -> None:  # fmt: skip
    """Program (page of the copy, layer, block of the piece)."""
    number, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    page = tl.load(pages + number)
    word = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    there = staged + number * staged_stride + layer * WORDS + word
    here = pool + layer * pool_stride + page * WORDS + word
    if OUT:
        tl.store(there, tl.load(here, mask=word < WORDS), mask=word < WORDS)
    else:
        tl.store(here, tl.load(there, mask=word < WORDS), mask=word < WORDS)
