"""Exponentials and activations that become vector instructions, where the C library would be called for one value at a
time; and norms of a row, and of a head, in float32 (torch references: `RMSNorm`, `LayerNorm`)."""

import math
from typing import Any

import numpy as np
from numba import njit

from gradus.kernels.cpu.machine import ENTERED, FLAGS, floats, power_of_two
from gradus.models import config

f32 = np.float32
LOG2_E, LN_2 = f32(1.4426950408889634), f32(0.6931471805599453)
TAYLOR = tuple(f32(1 / math.factorial(n)) for n in range(8))
"""Coefficients of eᶻ, from z⁰ on."""

LOWEST, HIGHEST = f32(-87), f32(88)  # beyond, float32 has no exponential

SILU, GELU, GELU_TANH, CLAMPED_SILU = range(4)
ACTIVATIONS = {"silu": SILU, "gelu": GELU, "gelu_tanh": GELU_TANH, config.CLAMPED: CLAMPED_SILU}
LIMIT, STEEPNESS = f32(config.CLAMP), f32(config.STEEPNESS)


@njit(**FLAGS)
def exp(x: Any) -> Any:
    """Compute eˣ to a few units in the last place: 2ⁿ by its bits, times the Taylor series of the rest, |z| ≤ ln 2 /
    2."""
    x = min(max(x, LOWEST), HIGHEST)
    n = np.rint(x * LOG2_E)
    z = x - n * LN_2
    series = TAYLOR[5] + z * (TAYLOR[6] + z * TAYLOR[7])
    series = TAYLOR[0] + z * (TAYLOR[1] + z * (TAYLOR[2] + z * (TAYLOR[3] + z * (TAYLOR[4] + z * series))))
    return series * power_of_two(np.int32(n))


@njit(**ENTERED)
def exp_of(x: Any) -> Any:
    """`exp`, for Python to call. Python cannot call the others: they have no entry point, and the process would
    crash."""
    return exp(x)


@njit(**FLAGS)
def tanh(x: Any) -> Any:
    return f32(1) - f32(2) / (exp(f32(2) * x) + f32(1))


@njit(**FLAGS)
def copy(x: Any, out: Any) -> None:
    """Copy a vector to the beginning of another.

    Assigning slices would check their lengths, and compile the error message with it: 25 functions.
    """
    for j in range(x.shape[0]):
        out[j] = x[j]


@njit(**FLAGS)
def add_scaled(x: Any, y: Any, scale: Any) -> None:
    """x = (x + y) scale, of two vectors that do not overlap."""
    for j in range(x.shape[0]):
        x[j] = (x[j] + y[j]) * scale


@njit(**FLAGS)
def scale_by(x: Any, factor: Any) -> None:
    for j in range(x.shape[0]):
        x[j] *= factor


@njit(**FLAGS)
def multiply_each(x: Any, y: Any, out: Any) -> None:
    """out = x times y, value by value, for all of x."""
    for j in range(x.shape[0]):
        out[j] = x[j] * y[j]


@njit(**FLAGS)
def activate(kind: int, x: Any) -> None:
    """Apply the activation to each value, in place."""
    if kind == SILU:
        for j in range(x.shape[0]):
            x[j] = x[j] / (f32(1) + exp(-x[j]))
    elif kind == GELU_TANH:
        for j in range(x.shape[0]):
            v = x[j]
            inner = f32(math.sqrt(2 / math.pi)) * (v + f32(0.044715) * v * v * v)
            x[j] = f32(0.5) * v * (f32(1) + tanh(inner))
    else:
        for j in range(x.shape[0]):
            x[j] = f32(0.5) * x[j] * f32(1 + math.erf(x[j] * math.sqrt(0.5)))


@njit(**FLAGS)
def gate_each(kind: int, gates: Any, features: Any, out: Any) -> None:
    """out = the activated gates times features, value by value. Overwrites the gates. One kind clamps both first, gates
    from above alone, and adds one to features."""
    if kind != CLAMPED_SILU:
        activate(kind, gates)
        multiply_each(gates, features, out)
        return
    for j in range(gates.shape[0]):
        gate, feature = gates[j], features[j]
        gate = LIMIT if gate > LIMIT else gate  # not min: NaN stays
        feature = LIMIT if feature > LIMIT else -LIMIT if feature < -LIMIT else feature
        out[j] = gate / (f32(1) + exp(-STEEPNESS * gate)) * (feature + f32(1))


@njit(**FLAGS)
def normalize_plainly(x: Any, width: int, eps: Any, out: Any) -> None:
    """Apply RMSNorm without weights. The output may be the input."""
    squares = f32(0)
    for j in range(width):
        squares += x[j] * x[j]
    factor = f32(1) / np.sqrt(squares / f32(width) + eps)
    for j in range(width):
        out[j] = x[j] * factor


@njit(**FLAGS)
def normalize(x: Any, width: int, weight: int, bias: int, eps: Any, out: Any) -> None:
    """Apply RMSNorm, or LayerNorm if there is a bias. weight, bias: addresses of float32 [width], 0 for none.

    The output may be the input.
    """
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
