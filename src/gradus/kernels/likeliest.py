"""The likeliest tokens of a row with their log-probabilities, by the model's own distribution, without sorting it.

The n best tokens lie in the n groups with the largest maxima, which are noted (`gradus.kernels.narrowing`): so one
program looks into as many groups as narrowing does, and takes the best token n times. The logarithm of the row's mass
comes from the same statistics.
"""

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from gradus.kernels.narrowing import FINE, Statistics, groups_looked_into, members, total_mass
from gradus.kernels.online_softmax import LOG2_E
from gradus.kernels.slot_settings import widened

TAKEN = constexpr(float("nan"))  # equal to nothing, and no maximum: -inf is a logit that others may have


@triton.jit
def store_pair(pair_ptr: tensor, token: tensor, logprob: tensor) -> None:
    """A token and the bits of its log-probability: int32 both, so that one copy brings a step's to the host."""
    tl.store(pair_ptr, token)
    tl.store(pair_ptr + 1, logprob.to(tl.int32, bitcast=True))


@triton.jit
def report(
    logits_ptr: tensor, V: int, raw: Statistics, row: tensor, count: tensor, total_ptr: tensor, pairs_ptr: tensor,
    GROUPS: constexpr, BLOCKS: constexpr,
) -> None:  # fmt: skip
    """Store the logarithm of the sum of exponentials of one row's logits, and its `count` likeliest, best first."""
    groups, _ = groups_looked_into(raw, row, GROUPS)
    token = members(groups, FINE)
    inside = token < V
    x = widened(logits_ptr, token, inside, inside)
    top = tl.max(x, 0)
    total = top + tl.log(total_mass(raw, row, top, LOG2_E, BLOCKS))
    tl.store(total_ptr, total)
    for rank in range(count):
        best = tl.max(x, 0)
        likeliest = tl.min(tl.where(x == best, token, V - 1), 0)
        store_pair(pairs_ptr + 2 * rank, likeliest, best - total)
        x = tl.where(token == likeliest, TAKEN, x)
