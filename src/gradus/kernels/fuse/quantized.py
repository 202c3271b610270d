"""Quantized matrices in a fused model: the twin of each scheme, with the norm before it and what follows it inside.

A scheme's reference takes many operations; its twin takes one launch for 4 bits, and two for 8: one normalizes and
rounds the activations, the other multiplies them. For few rows the activation function after it, gated or not, is part
of the product. For many it is a separate launch, since a gate's two sums take the registers of a tile twice as large;
but if the next product rounds the gate's result to 8 bits, that launch does both (`hand_gates_over`). A sum with the
residual stream is part of every product except the library's.

Matrices side by side that are kept in different ways (`SideBySide`) have no twin: each part has its own.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from gradus.device.capability import capability, multiprocessors
from gradus.kernels.core.gluon import in_gluon
from gradus.kernels.core.overlap import early_launches, starts_early
from gradus.kernels.core.view import Twin, is_known, twin_of, view
from gradus.kernels.linear.epilogue import Norm
from gradus.kernels.quantized import gguf, mxfp4
from gradus.kernels.quantized.eight_bits import EightBitWeights, eight_bit_product, library_product
from gradus.kernels.quantized.hopper_launch import is_aligned, launch_for
from gradus.kernels.quantized.int4 import Int4Weights, int4_product
from gradus.kernels.quantized.pieces import piece_rows, product_in_pieces
from gradus.kernels.quantized.quantize import Rounded, quantize
from gradus.kernels.quantized.tile import Around, TileLaunch, result
from gradus.kernels.quantized.tile_tables import Scheme, choose_tile
from gradus.kernels.rows.activation import activation as activate_rows
from gradus.kernels.rows.activation import gated_activation
from gradus.models.layers import Activation, Embedding, Gated, Linear, Model, RMSNorm
from gradus.models.parts import Undescribed, parts_of
from gradus.quantization.fp8 import BLOCK, E4M3, Fp8BlockLinear, Fp8Linear
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear
from gradus.quantization.linear import QuantizedLinear
from gradus.quantization.mix import EXPERTS
from gradus.quantization.mxfp4 import Mxfp4Linear

if TYPE_CHECKING:
    from gradus.kernels.quantized.hopper_product import HopperProducts

FUSED_ROWS = 64  # up to here an activation is part of the product before it


class FusedQuantized(Twin, QuantizedLinear):
    """Subclass: `scheme`, `operand`, `by_tiles`, `by_library`, `operand_bytes`."""

    scheme: ClassVar[Scheme]
    hands_over = False
    """Whether the next product applies the gate of many rows: its input is then [m, 2 F]."""

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x.shape[0], x, None)

    def part(self, first: int, end: int) -> Linear:
        raise AssertionError("kernels multiply by all experts of a stack at once")

    def after(self, norm: RMSNorm | nn.LayerNorm | None, x: Tensor, then: Activation | None = None) -> Tensor:
        if not (is_known(norm) and is_known(then)):
            return super().after(norm, x, then)
        if then is None:
            return self.run(x.shape[0], x, norm)
        if x.shape[0] > FUSED_ROWS or x.element_size() > 2:  # nor do two sums fit registers in float32
            out = self.run(x.shape[0], x, norm)
            return out if self.hands_over else then.forward(out)
        return self.run(x.shape[0], x, norm, activation=then.name, gated=isinstance(then, Gated))

    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        return self.run(x.shape[0], x, None, residual=stream)

    def run(self, m: int, x: Tensor, norm: RMSNorm | nn.LayerNorm | None, **around: Any) -> Tensor:
        """norm(x) times the matrix, with what is around it. x: [m, K]. Logits are padded, and never start early."""
        head, gated = self.matrix_id.role == "head", around.get("gated", False)
        if head and starts_early():
            with early_launches(False):
                return self.run(m, x, norm, **around)
        n = sum(self.out_features)
        if not m:
            return result(x, m, n // 2 if gated else n, x.dtype, padded=head)
        launch, operand = self.launch(m, x.dtype, x.device, gated), self.operand(x, norm)
        if launch is not None:
            around["counters"] = self.counters
            return self.by_tiles(operand, x.dtype, launch, padded=head, bias=self.bias, **around)
        activation = around.pop("activation", None)
        around.pop("gated", None)
        out = self.by_library(operand, x.dtype, padded=head, bias=self.bias, **around)
        if activation is None:
            return out
        return gated_activation(out, activation) if gated else activate_rows(out, activation)

    def operand(self, x: Tensor, norm: RMSNorm | nn.LayerNorm | None) -> Any:
        """Return norm(x), [m, K], as products take it."""
        return x if norm is None else norm.forward(x)

    def by_tiles(self, x: Any, dtype: torch.dtype, launch: TileLaunch, **around: Unpack[Around]) -> Tensor:
        raise NotImplementedError

    def by_library(self, x: Any, dtype: torch.dtype, **around: Unpack[Around]) -> Tensor:
        """around: bias, residual and padded."""
        raise NotImplementedError

    def launch(self, m: int, dtype: torch.dtype, device: torch.device, gated: bool = False) -> TileLaunch | None:
        return choose_tile(self.scheme, m, sum(self.out_features), self.in_features, dtype, device, gated=gated)

    def scratch_bytes(self, m: int, dtype: torch.dtype, device: torch.device) -> int:
        """Return the bytes that a product of m rows needs in addition to its result."""
        n = sum(self.out_features)
        launch = self.launch(m, dtype, device)
        shared = launch.splits * m * n * 4 if launch and launch.splits > 1 else 0
        return shared + self.operand_bytes(m, launch, dtype)

    def operand_bytes(self, m: int, launch: TileLaunch | None, dtype: torch.dtype) -> int:
        """Return the bytes of the converted matrix or input."""
        raise NotImplementedError


class FusedPacked(FusedQuantized):
    """A matrix that is unpacked on its way to the product, or before it, in pieces. Subclass: `weights`, `by_tiles`."""

    weights: Int4Weights | mxfp4.Mxfp4Weights | gguf.Blocks

    def by_library(self, x: Tensor, dtype: torch.dtype, **around: Unpack[Around]) -> Tensor:
        return product_in_pieces(x, self.weights, **around)

    def operand_bytes(self, m: int, launch: TileLaunch | None, dtype: torch.dtype) -> int:
        n, k = sum(self.out_features), self.in_features
        return piece_rows(n, k, dtype.itemsize) * k * dtype.itemsize if launch is None else 0


@twin_of(Int4Linear)
class FusedInt4(FusedPacked, Int4Linear):
    scheme = "int4"
    weights: Int4Weights

    def __init__(self, part: Int4Linear) -> None:
        super().__init__(part)
        self.weights = Int4Weights(part.words, part.pairs, part.kind)

    def operand(self, x: Tensor, norm: RMSNorm | nn.LayerNorm | None) -> Tensor:
        x = super().operand(x, norm)
        return x if self.order is None else x.index_select(1, self.order)

    def by_tiles(self, x: Tensor, dtype: torch.dtype, launch: TileLaunch, **around: Unpack[Around]) -> Tensor:
        return int4_product(x, self.weights, launch, **around)


@twin_of(Mxfp4Linear)
class FusedMxfp4(FusedPacked, Mxfp4Linear):
    weights: mxfp4.Mxfp4Weights

    def __init__(self, part: Mxfp4Linear) -> None:
        super().__init__(part)
        self.weights = mxfp4.Mxfp4Weights(part.words, part.scales)

    def launch(self, m: int, dtype: torch.dtype, device: torch.device, gated: bool = False) -> TileLaunch | None:
        if m > (mxfp4.MOST_ROWS if dtype.itemsize == 2 else 16):
            return None
        outputs = sum(self.out_features) // (2 if gated else 1)
        return mxfp4.launch_for(m, outputs, self.in_features, multiprocessors(device))

    def by_tiles(self, x: Tensor, dtype: torch.dtype, launch: TileLaunch, **around: Unpack[Around]) -> Tensor:
        return mxfp4.mxfp4_product(x, self.weights, launch, **around)


@twin_of(GGUFLinear)
class FusedGGUF(FusedPacked, GGUFLinear):
    weights: gguf.Blocks

    def __init__(self, part: GGUFLinear) -> None:
        super().__init__(part)
        self.weights = gguf.Blocks(part.blocks, part.format)

    def launch(self, m: int, dtype: torch.dtype, device: torch.device, gated: bool = False) -> TileLaunch | None:
        if m > (gguf.MOST_ROWS if dtype.itemsize == 2 else 16):
            return None
        outputs = sum(self.out_features) // (2 if gated else 1)
        return gguf.launch_for(m, outputs, self.in_features, multiprocessors(device))

    def by_tiles(self, x: Tensor, dtype: torch.dtype, launch: TileLaunch, **around: Unpack[Around]) -> Tensor:
        return gguf.gguf_product(x, self.weights, launch, **around)


@twin_of(Embedding)
def twin_of_embedding(part: Embedding) -> "FusedLookup | None":
    return FusedLookup(part) if isinstance(getattr(part.lookup, "__self__", None), GGUFLinear) else None


class FusedLookup(Twin, Embedding):
    """Rows in GGUF's blocks, widened as they are looked up."""

    def __init__(self, part: Embedding) -> None:
        super().__init__(part)
        rows = getattr(part.lookup, "__self__", None)
        assert isinstance(rows, GGUFLinear)
        self.rows, self.width = gguf.Blocks(rows.blocks, rows.format), rows.in_features

    def forward(self, ids: Tensor) -> Tensor:
        return gguf.lookup(self.rows, ids, self.width, self.dtype)


class FusedEightBits(FusedQuantized):
    """Subclass: `kind`, `group`."""

    kind: ClassVar[torch.dtype]
    group: ClassVar[int | None] = None
    """Activations with one scale; None is a whole row."""
    gate: str | None = None
    """The activation that the previous product leaves to this one."""

    def __init__(self, part: Int8Linear | Fp8Linear | Fp8BlockLinear) -> None:
        super().__init__(part)
        self.weights = EightBitWeights(part.values, part.scales, getattr(part, "block_of_row", None))

    def operand(self, x: Tensor, norm: RMSNorm | nn.LayerNorm | None) -> Rounded:
        if self.gate is not None and x.shape[1] == 2 * self.in_features:
            return quantize(x, self.kind, activation=self.gate)
        before = None if norm is None else Norm(norm.weight, getattr(norm, "bias", None), norm.eps)
        return quantize(x, self.kind, self.group, before)

    def by_tiles(self, x: Rounded, dtype: torch.dtype, launch: TileLaunch, **around: Unpack[Around]) -> Tensor:
        return eight_bit_product(x, self.weights, dtype, launch, **around)

    def by_library(self, x: Rounded, dtype: torch.dtype, **around: Unpack[Around]) -> Tensor:
        out, residual = library_product(x, self.weights, dtype, around.get("bias")), around.get("residual")
        return out if residual is None else residual.add_(out)

    def operand_bytes(self, m: int, launch: TileLaunch | None, dtype: torch.dtype) -> int:
        n, k = sum(self.out_features), self.in_features
        sums = 8 * m * n if launch is None and self.kind == torch.int8 else 0  # int32, and those in float32
        return sums + m * (k + 4 * -(-k // (self.group or k)))


@twin_of(Int8Linear)
class FusedInt8(FusedEightBits, Int8Linear):
    scheme, kind = "int8", torch.int8

    def __init__(self, part: Int8Linear) -> None:
        super().__init__(part)
        self.hopper = hopper_products(part.values.device)

    def by_tiles(self, x: Rounded, dtype: torch.dtype, launch: TileLaunch, **around: Unpack[Around]) -> Tensor:
        """Multiply by tiles; a prompt on Hopper by its own kernel, if only the residual sum is fused."""
        residual, padded = around.get("residual"), around["padded"]
        more = any(around.get(name) is not None for name in ("bias", "activation"))
        if self.hopper is None or dtype != torch.bfloat16 or more or not (residual is None or is_aligned(residual)):
            return super().by_tiles(x, dtype, launch, **around)
        (m, k), n = x.values.shape, self.weights.rows
        taken = launch_for(m, n, k, self.hopper.processors, onto=residual is not None)
        if taken is None:
            return super().by_tiles(x, dtype, launch, **around)
        out = result(x.values, m, n, dtype, padded) if residual is None else residual
        self.hopper.multiply(x.values, x.scales, self.weights.values, self.weights.scales, out, taken, residual)
        return out


@cache
def hopper_products(device: torch.device) -> "HopperProducts | None":
    """The kernel for prompts on such a GPU. None without the Gluon that it was written in.

    Its instructions (warpgroup products) are those of compute capability 9.0 and of no later one.
    """
    if device.type != "cuda" or capability(device) != (9, 0):
        return None
    kernel = in_gluon("quantized.hopper_product", "HopperProducts")
    return None if kernel is None else kernel(multiprocessors(device))


@twin_of(Fp8Linear)
class FusedFp8(FusedEightBits, Fp8Linear):
    scheme, kind = "fp8", E4M3


@twin_of(Fp8BlockLinear)
class FusedFp8Block(FusedEightBits, Fp8BlockLinear):
    scheme, kind, group = "fp8-block", E4M3, BLOCK


def hand_gates_over(model: Model) -> None:
    """Let a view's 8-bit products that follow a gated one, and have a scale per token, compute its gate.

    A model that does not describe its layers may compute something between the two, so its gates stay in place.
    """
    try:
        layers = parts_of(model)
    except Undescribed:
        return
    for layer in layers:
        first, gate, second = layer.up, layer.activation, layer.down
        if not (isinstance(first, FusedQuantized) and isinstance(gate, Gated) and isinstance(second, FusedEightBits)):
            continue
        if second.group is None and is_known(gate):
            first.hands_over, second.gate = True, gate.name


def scratch_bytes(model: Model, rows: int, sampled: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the most bytes that a step's quantized products need at once in addition to their results.

    sampled: how many of the rows have logits. The model may be on torch's "meta" device. Products follow each other, so
    the largest counts; it may be that of few rows, whose sums are shared.
    """
    most = 0
    for part in model.modules():
        if not isinstance(part, QuantizedLinear) or part.matrix_id.role in EXPERTS:
            continue  # experts are unpacked in registers, however many rows there are
        if isinstance(twin := view(part), FusedQuantized):
            here = sampled if twin.matrix_id.role == "head" else rows
            most = max(most, *(twin.scratch_bytes(min(count, here), dtype, device) for count in (FUSED_ROWS, here)))
    return most
