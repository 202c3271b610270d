"""Tiles of experts' weights in each form that they are kept in, unpacked to the type of the activations.

A turn of a product's loop takes COLUMNS columns of some rows of a stack, and adds their products with x to the sums.
`gradus.quantization` defines each form's storage, and `kernels/quantized` how it is unpacked.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.quantized import gguf
from gradus.kernels.quantized.eight_bits import EightBitWeights
from gradus.kernels.quantized.gguf import weights_of_group
from gradus.kernels.quantized.int4 import KINDS, Int4Weights, weights_of_planes, words_of_rows
from gradus.kernels.quantized.mxfp4 import Mxfp4Weights, mxfp4_summed

PLAIN, BY_ROW, BY_BLOCK, INT4, MXFP4, GGUF = (constexpr(number) for number in range(6))

Weights = Tensor | EightBitWeights | Int4Weights | Mxfp4Weights | gguf.Blocks


class Form(NamedTuple):
    """name: of the scheme. number: one of the constants above. tensors: of weights and of scales. rows: of the stack.
    columns: of a turn, at most. detail: a GGUF format's number, or int4's groups per 128 columns. paired: the type of
    activations for which a GPU unpacks two weights at once. stride: bytes of a row of blocks."""

    name: str
    number: int
    tensors: tuple[Tensor, Tensor | None]
    rows: int
    columns: int
    detail: int = 0
    paired: torch.dtype | None = None
    stride: int = 0

    @property
    def fixed(self) -> bool:
        """Whether a turn cannot have fewer columns."""
        return self.number in (BY_BLOCK.value, INT4.value, GGUF.value)

    def constants(self, x: Tensor) -> tuple[Any, ...]:
        """FORM, DETAIL, KIND and PAIRED of kernels with these activations."""
        kind = KINDS[self.paired] if self.number == INT4.value and self.paired is not None else None
        return self.number, self.detail, kind, x.is_cuda and x.dtype == self.paired


def form_of(weights: Weights) -> Form:
    """How kernels take these weights."""
    if isinstance(weights, Int4Weights):
        return Form("int4", INT4.value, (weights.words, weights.pairs), weights.rows, 128, weights.groups, weights.kind)
    if isinstance(weights, Mxfp4Weights):
        return Form("mxfp4", MXFP4.value, (weights.words, weights.scales), weights.rows, 256, paired=torch.bfloat16)
    if isinstance(weights, gguf.Blocks):
        name, stride = weights.format.name, weights.bytes.shape[1]
        return Form(name, GGUF.value, (weights.bytes, None), weights.rows, 128, gguf.NUMBERS[name], stride=stride)
    if isinstance(weights, EightBitWeights):
        tensors = weights.values, weights.scales
        if weights.block_of_row is not None:
            return Form("fp8-block", BY_BLOCK.value, tensors, weights.rows, 128)
        name = "int8" if weights.values.dtype == torch.int8 else "fp8"
        return Form(name, BY_ROW.value, tensors, weights.rows, 128)
    return Form("plain", PLAIN.value, (weights, None), weights.shape[0], 128)


@triton.jit
def add_products(
    sums: tensor, weight_ptr: tensor, scale_ptr: tensor, row: tensor, block: tensor, x: tensor, there: tensor,
    start: tensor, ROWS: int, STRIDE: int, K: int,
    FORM: constexpr, DETAIL: constexpr, KIND: constexpr, PAIRED: constexpr, COLUMNS: constexpr, EVEN: constexpr,
) -> tensor:  # fmt: skip
    """sums [rows, BLOCK_M], and the products of COLUMNS columns from `start` on.

    row: [rows], numbers below ROWS, the stack's. block: each row's row of scales (BY_BLOCK). x: addresses
    of its rows, [1, BLOCK_M]; there: which of them exist. STRIDE: bytes of a row of blocks (GGUF).
    """
    every = row >= 0
    if FORM == INT4:
        tile = start // 128
        words = words_of_rows(weight_ptr, tile * ROWS + row, every)
        planes = weights_of_planes(
            words, scale_ptr, tile, row, every, ROWS, DETAIL, KIND, PAIRED, x.dtype.element_ty
        )  # fmt: skip
        for plane in tl.static_range(4):
            sums = _added(sums, planes[plane], x, there, start + 32 * plane, K, 32, EVEN)
    elif FORM == MXFP4:
        sums = mxfp4_summed(sums, weight_ptr, scale_ptr, row, x, there, start, K, COLUMNS, EVEN, PAIRED)
    elif FORM == GGUF:
        blocks = weight_ptr + row.to(tl.int64) * STRIDE
        for group in tl.static_range(4):
            column = start + 32 * group
            inside = every if EVEN else every & (column < K)
            weights = weights_of_group(blocks, column // 32, inside, DETAIL)
            sums = _added(sums, weights.to(x.dtype.element_ty), x, there, column, K, 32, EVEN)
    else:
        k = start + tl.arange(0, COLUMNS)[None, :]
        here = weight_ptr + row.to(tl.int64)[:, None] * K + k
        tile = tl.load(here) if EVEN else tl.load(here, mask=k < K, other=0.0)
        if FORM == BY_BLOCK:
            scale = tl.load(scale_ptr + block * ((K + 127) // 128) + start // 128)
            nothing = tl.zeros(sums.shape, tl.float32)
            tile = tile.to(x.dtype.element_ty)
            sums += _added(nothing, tile, x, there, start, K, COLUMNS, EVEN) * scale[:, None]
        else:
            sums = _added(sums, tile.to(x.dtype.element_ty), x, there, start, K, COLUMNS, EVEN)
    return sums


@triton.jit
def _added(
    sums: tensor, weights: tensor, x: tensor, there: tensor, start: tensor, K: int, WIDTH: constexpr, EVEN: constexpr
) -> tensor:  # fmt: skip
    """sums, and the products of WIDTH columns from `start` on."""
    column = start + tl.arange(0, WIDTH)[:, None]
    inside = there if EVEN else there & (column < K)
    return tl.dot(weights, tl.load(x + column, mask=inside, other=0.0), sums, input_precision="ieee")
