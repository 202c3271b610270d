"""Sorted dispatch: rows are put in the order of their experts, and results back in the order of their tokens.

A token that takes k experts is k pairs of a token and an expert. Pair number p belongs to token p // k. Sorted by
expert, the pairs of one expert lie together, so it multiplies one block of rows and its weights are read once.

Shapes: N tokens, k experts for each, P = N k pairs, E experts, D values per row.
"""

from torch import Tensor


def sort_by_expert(chosen: Tensor, count: int) -> tuple[Tensor, list[int]]:
    """Sort the pairs by expert; those of one expert stay in the order of their tokens.

    chosen: int64 [N, k]; count: E. Returns the numbers of the pairs in their new order, int64 [P], and E + 1 starts:
    expert e has the sorted pairs from starts[e] to before starts[e + 1].
    """
    experts = chosen.flatten()
    sizes = experts.bincount(minlength=count)
    return experts.argsort(stable=True), [0, *sizes.cumsum(0).tolist()]


def combine(results: Tensor, pairs: Tensor, weights: Tensor) -> Tensor:
    """Add up each token's results, each times its weight, in float32: [P, D] → [N, D].

    results: one row per pair, sorted by expert. pairs: their numbers, in the same order. weights: [N, k].
    """
    own = results.new_empty(results.shape).float()
    own[pairs] = results.float()  # the pairs of a token lie side by side again
    return (own.unflatten(0, weights.shape) * weights[..., None]).sum(dim=1)
