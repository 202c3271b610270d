"""Norms of a row, and of a head, in float32. The output may be the input. Torch references: `RMSNorm`, `LayerNorm`."""

from typing import Any

import numpy as np
from numba import njit

from gradus.kernels.cpu.machine import FLAGS, floats

f32 = np.float32


@njit(**FLAGS)
def normalize(x: Any, width: int, weight: int, bias: int, eps: Any, out: Any) -> None:
    """Apply RMSNorm, or LayerNorm if there is a bias. weight, bias: addresses of float32 [width], 0 for none."""
    scales = floats(weight, (width,))
    mean = f32(0)
    if bias:
        for j in range(width):
            mean += x[j]
        mean /= f32(width)
    squares = f32(0)
    for j in range(width):
        centered = x[j] - mean
        squares += centered * centered
    factor = f32(1) / np.sqrt(squares / f32(width) + eps)
    for j in range(width):
        out[j] = (x[j] - mean) * factor * scales[j]
    if bias:
        shifts = floats(bias, (width,))
        for j in range(width):
            out[j] += shifts[j]
