"""Products of 16-bit and of quantized matrices, with what their kernels fuse, in torch."""

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.kernels.linear.epilogue import Epilogue, Norm
from gradus.kernels.quantized.eight_bits import BLOCK, EightBitWeights
from gradus.kernels.quantized.gguf import Blocks
from gradus.kernels.quantized.int4 import TILE, Int4Weights
from gradus.kernels.quantized.quantize import Rounded
from gradus.kernels.rows.reference import (
    activation_reference,
    add_layer_norm_reference,
    add_rms_norm_reference,
    gated_activation_reference,
)
from gradus.quantization import fp8, int8
from gradus.quantization.int4 import unpacked


def product_reference(x: Tensor, weight: Tensor, *, norm: Norm | None = None, **epilogue: Unpack[Epilogue]) -> Tensor:
    """residual + activation(norm(x) weightᵀ + bias), of any number of rows."""
    wide = x.float()
    if norm is not None and norm.bias is not None:
        wide = add_layer_norm_reference(wide, None, norm.weight, norm.bias, norm.eps)
    elif norm is not None:
        wide = add_rms_norm_reference(wide, None, norm.weight, norm.eps)
    return finish_reference(wide @ weight.float().T, x.dtype, **epilogue)


def finish_reference(
    sums: Tensor,
    dtype: torch.dtype,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """sums: float32 [M, N], or [M, 2 N] if gated; the bias is as wide. residual: [M, N], takes the sum in place.

    Returns [M, N] in dtype, or the residual.
    """
    if bias is not None:
        sums = sums + bias.float()
    if activation is not None:
        sums = gated_activation_reference(sums, activation) if gated else activation_reference(sums, activation)
    return sums.to(dtype) if residual is None else residual.copy_(residual.float() + sums)


def eight_bit_reference(
    x: Rounded, weights: EightBitWeights, dtype: torch.dtype, **epilogue: Unpack[Epilogue]
) -> Tensor:
    k = x.values.shape[1]
    wide, scales = x.values.double(), weights.scales.unsqueeze(1)
    if weights.block_of_row is not None:
        wide *= x.scales.t().repeat_interleave(BLOCK, 1)[:, :k]
        scales = weights.scales[weights.block_of_row].repeat_interleave(BLOCK, 1)[:, :k]
    else:
        wide *= x.scales.t()
    out = (wide @ (weights.values.double() * scales).t()).float()
    return finish_reference(out, dtype, **epilogue)


def int4_reference(x: Tensor, weights: Int4Weights, **epilogue: Unpack[Epilogue]) -> Tensor:
    out = x.float() @ widened_reference(weights, x.shape[1], x.dtype).float().t()
    return finish_reference(out, x.dtype, **epilogue)


def widened_reference(weights: Int4Weights, k: int, dtype: torch.dtype) -> Tensor:
    """The matrix [N, K] in dtype."""
    group = TILE // weights.groups
    pairs = weights.pairs.t().flatten().view(weights.kind).view(weights.rows, -1, 2).float()
    values = unpacked(weights.words).unflatten(1, (-1, group))
    return torch.addcmul(pairs[..., 1:], values.float(), pairs[..., :1]).flatten(1)[:, :k].to(dtype)


def quantize_reference(x: Tensor, dtype: torch.dtype, group: int | None = None, norm: Norm | None = None) -> Rounded:
    if norm is not None and norm.bias is not None:
        x = add_layer_norm_reference(x, None, norm.weight, norm.bias, norm.eps)
    elif norm is not None:
        x = add_rms_norm_reference(x, None, norm.weight, norm.eps)
    if dtype == torch.int8:
        values, scales = int8.to_int8(x)
        return Rounded(values, scales.t())
    if group is None:
        values, scales = fp8.to_fp8(x)
        return Rounded(values, scales.t())
    values, scales = fp8.to_fp8(F.pad(x, (0, -x.shape[1] % group)).unflatten(1, (-1, group)))
    return Rounded(values.flatten(1)[:, : x.shape[1]].contiguous(), scales.squeeze(2).t().contiguous())


def quantize_gated_reference(gate_up: Tensor, dtype: torch.dtype, activation: str) -> Rounded:
    return quantize_reference(gated_activation_reference(gate_up, activation), dtype)


def gguf_reference(x: Tensor, weights: Blocks, **epilogue: Unpack[Epilogue]) -> Tensor:
    wide = widened_blocks_reference(weights, x.shape[1], x.dtype)
    return finish_reference(x.float() @ wide.float().t(), x.dtype, **epilogue)


def widened_blocks_reference(weights: Blocks, k: int, dtype: torch.dtype) -> Tensor:
    """The matrix [N, K] in dtype."""
    return weights.format.unpack(weights.bytes.view(-1, weights.format.size)).view(weights.rows, k).to(dtype)
