"""Activations rounded to 8 bits: the norm, a scale per token or per 128 values, and the values, in one pass.

Idea: a product of 8-bit numbers needs its input's largest magnitude before it can round the first value. As operations
of their own (norm, magnitude, division, rounding) that is four passes over a row that is 8 kB long; here a program
holds a row in registers, so it is read once and written once, as bytes.

With many wide rows, those registers leave a multiprocessor too few programs to hide the memory's latency. There a
program reads its row twice, in pieces, the second time from the L2 cache (8,192 rows of 14,336 on an H200: 113 µs
instead of 169). A gated activation is still rounded from registers: computing it twice takes longer (288 µs instead of
250); it is then never written, 5 K bytes per token instead of 9 K.

The normalized row is rounded to the activations' type before its scale is found, as where the norm is a launch of its
own; division is exact and rounding to nearest even, as torch's. So the values are those of the schemes' references
(`gradus.quantization.linear.row_scales`), and a token's do not depend on the path that it took.

Bytes per row of K: 2 K read, K written, 4 per scale. Layout: x and values [M, K] row-major; scales [groups, M], so that
a product reads the scales of neighboring tokens together.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.overlap import let_next_start, starts_early, wait_for_previous
from gradus.kernels.linear.epilogue import Norm
from gradus.kernels.rows.activation import activate_gated
from gradus.kernels.rows.norm import moments, warps_of
from gradus.quantization import fp8, int8

LARGEST = {torch.int8: int8.LARGEST, fp8.E4M3: fp8.LARGEST}
MANY, WIDE = 256, 4096  # more rows than that, of more values, are rounded in pieces
PIECE = 2048
ROUNDS = tl.constexpr(1.5 * 2**23)  # a float32 of this size has no digits behind the point: adding it rounds to even


class Rounded(NamedTuple):
    """values: int8 or e4m3 [M, K]; scales: float32 [groups, M], groups being 1 or ⌈K / 128⌉."""

    values: Tensor
    scales: Tensor


@triton.jit(do_not_specialize=["M"])
def quantize_kernel(
    x_ptr: tensor, gain_ptr: tensor, shift_ptr: tensor, values_ptr: tensor, scales_ptr: tensor, M: int, eps: float,
    K: constexpr, LARGEST: constexpr, FLOOR: constexpr, ACTIVATION: constexpr, GROUP: constexpr, BLOCK: constexpr,
    PDL: constexpr,
) -> None:  # fmt: skip
    """Row program_id(0). gain and shift may be None: that part is then not compiled. With an activation x is gate and
    up, [M, 2 K]. FLOOR: least of magnitudes."""
    row = tl.program_id(0)
    group = tl.arange(0, BLOCK // GROUP)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < K
    here = row.to(tl.int64) * K + column
    let_next_start(PDL)
    if gain_ptr is not None:
        gain = tl.load(gain_ptr + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    if ACTIVATION is None:
        x = tl.load(x_ptr + here, mask=inside, other=0.0).to(tl.float32)
    else:
        gate = x_ptr + here + row.to(tl.int64) * K
        up = tl.load(gate + K, mask=inside, other=0.0).to(tl.float32)
        x = activate_gated(tl.load(gate, mask=inside, other=0.0).to(tl.float32), up, ACTIVATION)
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    if gain_ptr is not None:
        x, scale = moments(x, inside, K, shift_ptr is not None, eps)
        x = x * scale * gain
        if shift_ptr is not None:
            x += tl.load(shift_ptr + column, mask=inside, other=0.0).to(tl.float32)
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # magnitudes, in whose order NaN is above infinity
    largest = tl.max(bits, 1).to(tl.float32, bitcast=True)
    scales = tl.div_rn(tl.where(largest < FLOOR, FLOOR, largest), LARGEST)
    tl.store(scales_ptr + group * M + row, scales, mask=group * GROUP < K)
    x = tl.div_rn(x, tl.broadcast_to(scales[:, None], x.shape))
    if values_ptr.dtype.element_ty == tl.int8:
        x = (x + ROUNDS) - ROUNDS
    tl.store(values_ptr + here, x.to(values_ptr.dtype.element_ty), mask=inside)


@triton.jit
def quantize_in_pieces_kernel(
    x_ptr: tensor, values_ptr: tensor, scales_ptr: tensor, K: constexpr, LARGEST: constexpr, FLOOR: constexpr,
    BLOCK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Row program_id(0), one scale for all of it."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, BLOCK)
    let_next_start(PDL)
    wait_for_previous(PDL)
    most = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, K, BLOCK):
        column = start + piece
        x = tl.load(x_ptr + row * K + column, mask=column < K, other=0.0).to(tl.float32)
        most = tl.maximum(most, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    largest = tl.max(most, 0).to(tl.float32, bitcast=True)
    scale = tl.div_rn(tl.where(largest < FLOOR, FLOOR, largest), LARGEST)
    tl.store(scales_ptr + row, scale)
    for start in range(0, K, BLOCK):
        column = start + piece
        x = tl.load(x_ptr + row * K + column, mask=column < K, other=0.0).to(tl.float32)
        x = tl.div_rn(x, tl.broadcast_to(scale, x.shape))
        if values_ptr.dtype.element_ty == tl.int8:
            x = (x + ROUNDS) - ROUNDS
        tl.store(values_ptr + row * K + column, x.to(values_ptr.dtype.element_ty), mask=column < K)


def quantize(
    x: Tensor, dtype: torch.dtype, group: int | None = None, norm: Norm | None = None, activation: str | None = None
) -> Rounded:
    """norm(x) in 8 bits; or with an activation, activation(gate) * up.

    x: [M, K], or gate and up, [M, 2 K], contiguous. dtype: int8 or e4m3. group: values with one scale, None for a row.
    """
    assert x.is_contiguous()
    m, k = x.shape[0], x.shape[1] if activation is None else x.shape[1] // 2
    values = torch.empty(m, k, dtype=dtype, device=x.device)
    scales = torch.empty(triton.cdiv(k, group or k), m, dtype=torch.float32, device=x.device)
    early, largest = starts_early(), LARGEST[dtype]
    floor = torch.finfo(torch.float32).tiny * largest  # the least magnitude whose scale is a normal number
    if norm is None and group is None and activation is None and m > MANY and k > WIDE:
        quantize_in_pieces_kernel[(m,)](
            x, values, scales, k, largest, floor, PIECE, early, num_warps=8, launch_pdl=early
        )
        return Rounded(values, scales)
    block = max(triton.next_power_of_2(k), group or 1)
    (gain, shift, eps), warps = norm or (None, None, 0.0), warps_of(block)
    quantize_kernel[(m,)](
        x, gain, shift, values, scales, m, eps, k, largest, floor, activation, group or block, block, early,
        num_warps=warps if activation is None else min(16, 2 * warps), launch_pdl=early,
    )  # fmt: skip
    return Rounded(values, scales)
