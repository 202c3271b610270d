"""Matrices that keep integers, and a model whose layers are made of them.

Both widen their weights anew for each product. The weights are small in memory, but the products read wide ones,
because torch has no product that reads packed integers. (A kernel that widens in registers needs no wide copy.)
"""

import copy
from math import gcd

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.errors import ConfigError
from gradus.models import Linear, LinearFactory, Model
from gradus.models.create import shorten_lookups
from gradus.models.layers import parameter
from phases.p07_quantization.packing import pack, unpack
from phases.p07_quantization.rounding import GROUP, dequantize_groups, dequantize_rows, quantize_groups, quantize_rows


class QuantizedLinear(Linear):
    """Round weights as they come in, and widen them for each product. Biases stay. Both schemes share this."""

    def assign(self, name: str, start: int, value: Tensor) -> None:
        if name == "weight":
            self.round_to_nearest(slice(start, start + len(value)), value.to(self.weight.device, torch.float32))
        else:
            super().assign(name, start, value)

    def round_to_nearest(self, rows: slice, w: Tensor) -> None:
        """Keep these rows of the matrix. w: [rows, K] float32."""
        raise NotImplementedError

    def dequantized(self) -> Tensor:
        """[N, K] float32: the matrix that this one represents."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.dequantized().to(x.dtype), self.bias)


class Int8Linear(QuantizedLinear):
    """A byte per weight and a scale per row."""

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        rows = sum(self.out_features)
        self.weight = parameter((rows, self.in_features), torch.int8, device)
        self.scale = parameter((rows,), torch.float32, device)

    def round_to_nearest(self, rows: slice, w: Tensor) -> None:
        self.weight[rows], self.scale[rows] = quantize_rows(w)

    def dequantized(self) -> Tensor:
        return dequantize_rows(self.weight, self.scale)


class Int4Linear(QuantizedLinear):
    """Half a byte per weight, and 32 bits of scale and offset per group: 4.5 bits per weight with groups of 64.

    Where K is no multiple of 64, groups are as large as a power of two can be that divides both.
    """

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        rows, self.group = sum(self.out_features), gcd(self.in_features, GROUP)
        self.weight = parameter((rows, self.in_features // 2), torch.uint8, device)
        self.scale = parameter((rows, self.in_features // self.group), torch.float16, device)
        self.offset = parameter((rows, self.in_features // self.group), torch.float16, device)

    def round_to_nearest(self, rows: slice, w: Tensor) -> None:
        codes, self.scale[rows], self.offset[rows] = quantize_groups(w, self.group)
        self.weight[rows] = pack(codes)

    def dequantized(self) -> Tensor:
        return dequantize_groups(unpack(self.weight), self.scale.float(), self.offset.float())


def with_layers_of(linear: LinearFactory, model: Model) -> Model:
    """Copy the model, with its layers' matrices made by `linear` from the present ones.

    All else is shared: norms, the embedding, and the head, whose errors would go straight into the choice of a token.
    `model` itself is unchanged.
    """
    kept = [model.config, *model.parameters(), *(part for name, part in model.named_children() if name != "layers")]
    instead: dict[int, object] = {id(each): each for each in kept}
    instead |= {id(matrix): remade(matrix, linear, model.dtype) for matrix in matrices(model)}
    made = copy.deepcopy(model, instead)  # a part listed in `instead` is replaced, not copied
    shorten_lookups(made)
    return made


def matrices(model: Model) -> list[Linear]:
    """List the matrices of the layers."""
    return [part for part in model.layers.modules() if isinstance(part, Linear)]


def remade(old: Linear, linear: LinearFactory, dtype: torch.dtype) -> Linear:
    """Make a matrix from an old one. Raises ConfigError if the old one is not stored as floats."""
    if not hasattr(old, "weight"):
        raise ConfigError("p07 rounds weights itself, and this model's are quantized already: leave quantize out")
    new = linear(old.matrix_id, old.in_features, old.out_features, old.has_bias, dtype, old.weight.device)
    new.assign("weight", 0, old.weight)
    if old.bias is not None:
        new.assign("bias", 0, old.bias)
    return new
