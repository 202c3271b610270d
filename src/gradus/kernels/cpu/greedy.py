"""The greedy choice while logits are made: each chunk of the head leaves its winner, and no logit goes to memory.

A winner is one number that is ordered as the choice is: above, a float's bits as an integer that is ordered as floats
are; below, the column, counted down. So the largest of such words is the largest logit, and of equal ones the first. In
which order they are compared does not matter, nor which thread had which chunk. The torch reference is
`gradus.sampling.sampler.greedy`.
"""

from typing import Any

import numpy as np
from numba import njit

from gradus.kernels.cpu.machine import FLAGS, bits

INFINITY, NAN = 0x7F800000, 0x7FFFFFFF  # a float's bits without its sign; all NaN become one
COLUMNS = (1 << 32) - 1
NOTHING = np.iinfo(np.int64).min


@njit(**FLAGS)
def winner(x: Any, count: int, first: int) -> int:
    """Of x[:count], float32, logits of the columns from `first` on."""
    best = NOTHING
    for i in range(count):
        best = max(best, word(x[i], first + i))
    return best


@njit(**FLAGS)
def word(logit: Any, column: int) -> int:
    number = bits(logit)
    magnitude = number & NAN
    ordered = magnitude if number >= 0 else -magnitude  # zero is zero, whatever its sign
    if magnitude > INFINITY:
        ordered = NAN  # the largest, as torch has it
    return (ordered << 32) | (COLUMNS - column)


@njit(**FLAGS)
def token(best: int) -> int:
    """Of a row's largest word: the column; -1 where the logit is not finite."""
    return COLUMNS - (best & COLUMNS) if abs(best >> 32) < INFINITY else -1
