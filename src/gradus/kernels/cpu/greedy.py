"""The greedy choice while logits are computed: each chunk of the head stores its winner, and no logits.

A winner is one 64-bit word. Its upper half holds the float's bits as an integer with the same order as floats, its
lower half the column, counted down. So the largest word is the largest logit, and among equals the first column.
Neither the order of comparisons nor the distribution of chunks among threads matters. The torch reference is
`gradus.sampling.sampler.greedy`.
"""

from typing import Any

import numpy as np
from numba import njit

from gradus.kernels.cpu.machine import FLAGS, bits

INFINITY, NAN = 0x7F800000, 0x7FFFFFFF  # a float's bits without its sign; all NaNs become this one
COLUMNS = (1 << 32) - 1
NOTHING = np.iinfo(np.int64).min


@njit(**FLAGS)
def winner(x: Any, count: int, first: int) -> int:
    """Find the largest word of x[:count], float32, the logits of columns `first`, `first + 1`, …"""
    best = NOTHING
    for i in range(count):
        best = max(best, word(x[i], first + i))
    return best


@njit(**FLAGS)
def word(logit: Any, column: int) -> int:
    number = bits(logit)
    magnitude = number & NAN
    ordered = magnitude if number >= 0 else -magnitude  # both zeros are equal
    if magnitude > INFINITY:
        ordered = NAN  # the largest, as in torch
    return (ordered << 32) | (COLUMNS - column)


@njit(**FLAGS)
def token(best: int) -> int:
    """The column in a row's largest word; -1 if the logit is not finite."""
    return COLUMNS - (best & COLUMNS) if abs(best >> 32) < INFINITY else -1
