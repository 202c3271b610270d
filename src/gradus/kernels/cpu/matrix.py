"""A weight matrix as the kernels see it: its kind, and the addresses of its parts.

It is a record of numbers, so that one compiled kernel takes any matrix of any model. The memory belongs to the model;
the owner of records keeps the model as well.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from gradus.models.layers import Linear
from gradus.models.precision import NarrowLinear
from gradus.quantization.gguf import FORMATS, GGUFLinear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear
from gradus.quantization.parts import SideBySide

FLOAT32, BFLOAT16, INT8, INT4, INT4_HALF, BLOCKS = range(6)
"""How a matrix is stored. INT4 has scales and offsets in bfloat16, INT4_HALF in float16. From BLOCKS on: GGUF's
formats, in the order of NAMES."""

NAMES = tuple(FORMATS)
KINDS = {FLOAT32: "float32", BFLOAT16: "bfloat16", INT8: "int8", INT4: "int4", INT4_HALF: "int4"} | {
    BLOCKS + number: name for number, name in enumerate(NAMES)
}

MATRIX = np.dtype(
    [
        ("kind", np.int64),
        ("first", np.int64),  # its first column of the result
        ("rows", np.int64),
        ("width", np.int64),
        ("values", np.int64),  # an address, like scales, order and bias; 0: none
        ("scales", np.int64),  # int8: float32 [rows]; int4: pairs
        ("group", np.int64),  # int4: weights that share a pair
        ("pairs", np.int64),  # int4: pairs per row
        ("stride", np.int64),  # blocks: bytes per row
        ("blocks", np.int64),  # blocks: per row
        ("rounds", np.int64),  # int4, blocks: whether each 32 activations are rounded to int8
        ("order", np.int64),  # int4: int64 [width], the original column of each stored column
        ("bias", np.int64),  # float32 [rows]
    ]
)

FLOATS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


class Unsupported(Exception):
    """A part of the model has no kernel. The message names it."""


class Matrices:
    """The records of a model's matrices, and the tensors that must stay in memory for them.

    records: MATRIX [count]. A fused matrix whose parts are stored in different ways takes several.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.kept: list[torch.Tensor] = []

    @property
    def records(self) -> NDArray[np.void]:
        return np.array(self.rows, MATRIX)

    def add(self, *linears: Linear) -> tuple[int, int]:
        """Add matrices side by side. Returns the index of their first record, and their number. Raises Unsupported."""
        start = len(self.rows)
        first = 0
        for linear in linears:
            for part in linear.parts if type(linear) is SideBySide else [linear]:
                assert isinstance(part, Linear)
                self._add(part, first)
                first += sum(part.out_features)
        return start, len(self.rows) - start

    def alike(self, first: int, count: int) -> bool:
        """Whether `count` records, from `first` on, take activations that are prepared in the same way."""
        records = np.array(self.rows[first : first + count], MATRIX)
        blocks = (records["kind"] >= BLOCKS).all() and len(set(records["rounds"])) == 1
        return count == 1 or bool(blocks or (records["kind"] <= BFLOAT16).all())

    def _add(self, linear: Linear, first: int) -> None:
        rows, width = sum(linear.out_features), linear.in_features
        bias = 0 if linear.bias is None else self.address(linear.bias.float())
        scales = group = pairs = stride = blocks = order = rounds = 0
        if type(linear) in (Linear, NarrowLinear) and linear.weight.dtype in FLOATS:
            kind, values = FLOATS[linear.weight.dtype], linear.weight
        elif type(linear) is Int8Linear:
            kind, values, scales = INT8, linear.values, self.address(linear.scales)
        elif type(linear) is Int4Linear:
            kind = INT4 if linear.kind == torch.bfloat16 else INT4_HALF
            linear.use_lanes()
            rounds = int(linear.rounds)
            values, scales, group, pairs = linear.words, self.address(linear.pairs), linear.group, linear.pairs.shape[1]
            order = 0 if linear.order is None else self.address(linear.order)
        elif type(linear) is GGUFLinear:
            kind, values = BLOCKS + NAMES.index(linear.format.name), linear.blocks
            stride, blocks, rounds = linear.blocks.shape[1], width // linear.format.values, int(linear.rounds)
        else:
            raise Unsupported(f"{type(linear).__name__} with {next(linear.parameters()).dtype} weights")
        record = (
            kind,
            first,
            rows,
            width,
            self.address(values),
            scales,
            group,
            pairs,
            stride,
            blocks,
            rounds,
            order,
            bias,
        )
        self.rows.append(record)

    def address(self, tensor: torch.Tensor) -> int:
        """The address of a tensor's values, contiguous; the tensor is kept alive."""
        tensor = tensor.detach().contiguous()
        self.kept.append(tensor)
        return tensor.data_ptr()
