"""The likeliest tokens of a row with their log-probabilities, by the model's own distribution, without sorting it.

The n best tokens lie in the n groups with the largest maxima, which are noted (`narrowing.py`): so one program looks
into as many groups as narrowing does, and takes the best token n times. The logarithm of the row's mass comes from the
same statistics.
"""

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from gradus.kernels.sampling.narrowing import BEYOND, FINE, Row, earlier, members
from gradus.kernels.sampling.slot_settings import INFINITY, widened

TAKEN = constexpr(BEYOND.value * FINE.value)  # the number of no token


@triton.jit
def store_pair(pair_ptr: tensor, token: tensor, logprob: tensor) -> None:
    """A token and the bits of its log-probability: int32 both, so that one copy brings a step's to the host."""
    tl.store(pair_ptr, token)
    tl.store(pair_ptr + 1, logprob.to(tl.int32, bitcast=True))


@triton.jit
def report(row: Row, groups: tensor, total: tensor, count: tensor, pairs_ptr: tensor) -> None:
    """Store the `count` likeliest tokens of a row's groups, best first.

    total: the logarithm of the sum of exponentials of the row's logits.
    """
    token = members(groups, FINE)
    inside = token < row.vocab_size
    below = -widened(row.logits, token, inside, inside)
    for rank in range(count):
        least, likeliest = tl.reduce((below, token), 0, earlier)
        store_pair(pairs_ptr + 2 * rank, likeliest, -least - total)
        taken = token == likeliest
        below, token = tl.where(taken, INFINITY, below), tl.where(taken, TAKEN, token)  # behind logits of -inf too
