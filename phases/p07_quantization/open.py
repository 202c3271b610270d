"""The open task: the least error in four and a quarter bits.

The bits are those of everything that a matrix is unpacked from: codes, scales, offsets, tables, orders. GPTQ with one
grid for 128 weights spends exactly as many. Where else could the quarter bit go, and what else could be rounded to?
"""

from typing import Any

import torch
from torch import Tensor

from gradus.course.open.declaration import Open, Refused, Trial
from gradus.course.open.judge import again
from phases.p07_quantization.one_layer import relative_error

START = '''"""p07's open task. So far this is p07's GPTQ with groups of 128, which scores 1.00."""

from torch import Tensor

from phases.p07_quantization import gptq
from phases.p07_quantization.packing import pack as two_in_a_byte
from phases.p07_quantization.packing import unpack as two_of_a_byte
from phases.p07_quantization.rounding import dequantize_groups


def pack(w: Tensor, x: Tensor) -> list[Tensor]:
    """w: [N, K] and inputs x: [T, K] that the layer has seen, float64. Returns tensors of any types: they are the
    matrix, and their bytes are counted."""
    codes, scale, offset = gptq.quantize(w, x, group=128)
    return [two_in_a_byte(codes), scale.half(), offset.half()]


def unpack(parts: list[Tensor]) -> Tensor:
    """Make the matrix [N, K] from what `pack` has returned."""
    codes, scale, offset = parts
    return dequantize_groups(two_of_a_byte(codes), scale.double(), offset.double())
'''

TOKENS, INPUTS, OUTPUTS, SHARED, LOUD = 512, 256, 64, 24, 6
MOST_BITS = 4.25


def layer(seed: int) -> tuple[Tensor, Tensor]:
    """x [T, K] and w [N, K] float64, as in `one_layer`: channels that move together, and a few that are loud."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    x = normal(2 * TOKENS, SHARED) @ normal(SHARED, INPUTS) / SHARED**0.5 + 0.5 * normal(2 * TOKENS, INPUTS)
    x[:, torch.randperm(INPUTS, generator=random)[:LOUD]] *= 12
    return x, 0.05 * normal(OUTPUTS, INPUTS)


def bits(parts: list[Tensor], w: Tensor) -> float:
    """Bits per weight. Raises Refused for anything but tensors."""
    if any(type(part) is not Tensor for part in parts):
        raise Refused("`pack` must return tensors: their bytes are what is counted")
    return 8 * sum(part.numel() * part.element_size() for part in parts) / w.numel()


def trial(yours: Any, seed: int) -> Trial:
    """Judge a made-up layer by inputs that `pack` has not seen. The matrix is unpacked by a second import of the file:
    it has the packed bytes alone."""
    x, w = layer(seed)
    seen, unseen = x.chunk(2)
    parts = yours.pack(w.clone(), seen.clone())
    if (spent := bits(parts, w)) > MOST_BITS:
        raise Refused(f"{spent:.3f} bits per weight, and {MOST_BITS} is the most")
    made = again(yours).unpack([part.clone() for part in parts])
    if made.shape != w.shape or not made.isfinite().all():
        raise Refused(f"`unpack` must return a finite matrix of shape {list(w.shape)}, not {list(made.shape)}")
    return {"error": 100 * relative_error(unseen, w, made.double())}


TASK = Open(
    goal="Make the error of a layer's output 35 % smaller than that of GPTQ with groups of 128, in the same 4.25 bits "
    "per weight.",
    counts="error",
    unit="percent of the output, in error (the sum of all trials)",
    reach=0.65,
    trial=trial,
    start=START,
    trials=4,
)
