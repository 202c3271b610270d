"""Sums shared by several programs: each leaves its part in memory, and the last to arrive adds them up.

Where a product's outputs give too few programs to keep a GPU's memory busy, several programs split K. A counter in
memory identifies the last one, which adds the parts in a fixed order. So the result does not depend on timing, and no
second launch is needed. program_id(1) is the split.
"""

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from gradus.kernels.linear.epilogue import finish, vector


@triton.jit
def finish_tile(
    sums: tensor, ups: tensor, n: tensor, m: tensor, inside_n: tensor, inside: tensor, tile: int,
    partial_ptr: tensor, arrived_ptr: tensor, scale_ptr: tensor, x_scale_ptr: tensor, bias_ptr: tensor,
    residual_ptr: tensor, out_ptr: tensor, M: int, N: int, stride: int, ACTIVATION: constexpr, GATED: constexpr,
) -> None:  # fmt: skip
    """Finish a tile [outputs n, rows m]. Where programs share its sums, the last of them does, with all parts.

    tile: its number. scale, x_scale: of the matrix's rows and of x's, to multiply the sums by; or None. stride: from
    row to row of out and residual; None is N, where 32 bits hold all places.
    """
    rows = 2 * N if GATED else N
    here = m[None, :] * rows + n[:, None]
    last = True
    if partial_ptr is not None:
        slab = partial_ptr + tl.program_id(1) * (M * rows)
        tl.store(slab + here, sums, mask=inside)
        if GATED:
            tl.store(slab + (here + N), ups, mask=inside)
        tl.debug_barrier()  # all of the program's sums are written before it counts itself in
        last = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == tl.num_programs(1) - 1
        if last:
            tl.store(arrived_ptr + tile, 0)  # ready for the next launch
    if last:
        if partial_ptr is not None:
            sums = _total(sums, here, inside, partial_ptr, M * rows)
            if GATED:
                ups = _total(ups, here + N, inside, partial_ptr, M * rows)
        out, up = sums.to(tl.float32), ups.to(tl.float32)
        if scale_ptr is not None:
            out = _scaled(out, x_scale_ptr + m, scale_ptr + n, m < M, inside_n)
            if GATED:
                up = _scaled(up, x_scale_ptr + m, scale_ptr + N + n, m < M, inside_n)
        place = here if stride is None else m.to(tl.int64)[None, :] * stride + n[:, None]
        bias = vector(bias_ptr, n, inside_n)[:, None]
        up_bias = bias
        if GATED:
            up_bias = vector(bias_ptr, N + n, inside_n)[:, None]
        residual = vector(residual_ptr, place, inside)
        finish(out, up, bias, up_bias, residual, out_ptr + place, inside, ACTIVATION, GATED)


@triton.jit
def _total(sums: tensor, here: tensor, inside: tensor, partial_ptr: tensor, size: int) -> tensor:
    """Add up all splits' parts, in the shape and type of `sums`. A split's slab has `size` sums."""
    sums = tl.zeros_like(sums)
    for split in range(tl.num_programs(1)):
        sums += tl.load(partial_ptr + split * size + here, mask=inside, other=0, cache_modifier=".cg")
    return sums


@triton.jit
def _scaled(sums: tensor, tokens: tensor, rows: tensor, inside_m: tensor, inside_n: tensor) -> tensor:
    """tokens, rows: pointers to the scales of x's rows and the matrix's."""
    token = tl.load(tokens, mask=inside_m, other=0.0)
    return sums * token[None, :] * tl.load(rows, mask=inside_n, other=0.0)[:, None]
