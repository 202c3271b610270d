"""Experts on several ranks: what is exchanged, if every rank has some of the experts?

    python -m phases.p14_experts.ranks
    python -m phases.p14_experts.ranks --model qwen3-30b-a3b --rows 64

Either every rank has all rows, computes what its own experts add, and all sum up (as p12's row-parallel matrices do).
Or every rank has its own tokens, sends each row to the ranks whose experts it takes, and gets results back. Bytes are
computed, of one layer, and of the rank that sends an average share. Nothing here is measured.

Shapes: N tokens, D values per row, E experts, k of them chosen, R ranks.
"""

import argparse
from collections.abc import Callable
from math import comb

import torch
from torch import Tensor

from gradus.errors import ConfigError
from gradus.models import SHAPES
from phases.p14_experts.dispatch import combine, sort_by_expert
from phases.p14_experts.distinct import WIDTH, expected_distinct, experts_of
from phases.p14_experts.grouped import grouped

RANKS = (2, 4, 8, 16, 32, 64)


def own_experts(count: int, rank: int, ranks: int) -> range:
    """The experts of a rank, equally many for each. Raises ConfigError if they cannot be dealt out so."""
    if count % ranks:
        raise ConfigError(f"{count} experts cannot be dealt out evenly to {ranks} ranks")
    each = count // ranks
    return range(rank * each, (rank + 1) * each)


def summand(
    rows: Tensor, chosen: Tensor, weights: Tensor, count: int, own: range, expert: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """Compute what a rank's own experts add: [N, D] → [N, D]. The sum over the ranks is the mixture's result."""
    pairs, starts = sort_by_expert(chosen, count)
    first, end = starts[own.start], starts[own.stop]  # pairs are sorted by expert, so a rank's lie together
    mine = [start - first for start in starts[own.start : own.stop + 1]]
    results = torch.zeros(len(pairs), rows.shape[1], dtype=rows.dtype, device=rows.device)
    tokens = pairs[first:end] // chosen.shape[1]
    results[first:end] = grouped(rows[tokens], mine, lambda number, x: expert(own.start + number, x))
    return combine(results, pairs, weights)


def sum_bytes(rows: int, width: int, ranks: int) -> float:
    """Bytes that each rank sends in a ring's all-reduce of rows [N, D]."""
    return 2 * (ranks - 1) / ranks * rows * width * WIDTH


def other_ranks(count: int, chosen: int, ranks: int) -> float:
    """How many ranks other than its own a token's row is expected to visit. Experts are chosen alike."""
    each = count // ranks
    missed = comb(count - each, chosen) / comb(count, chosen)  # none of the chosen is on a given rank
    return (ranks - 1) * (1 - missed)


def exchange_bytes(rows: int, width: int, count: int, chosen: int, ranks: int) -> float:
    """Bytes that each rank sends in two all-to-alls, rows and results, if each has N / R of the rows."""
    return 2 * rows / ranks * other_ranks(count, chosen, ranks) * width * WIDTH


def main() -> None:
    parser = argparse.ArgumentParser(description="What ranks that share the experts send, per layer.")
    parser.add_argument("--model", default="qwen3-30b-a3b", choices=sorted(SHAPES), metavar="SHAPE")
    parser.add_argument("--rows", type=int, default=256, help="tokens of the step, on all ranks together (256)")
    asked = parser.parse_args()
    config, rows = SHAPES[asked.model], asked.rows
    try:
        experts = experts_of(config)[0]
    except ConfigError as error:
        parser.error(str(error))
    print("ranks  experts read by each  KB sent: a sum  rows and back  a row visits")
    for ranks in RANKS:
        if experts.count % ranks or ranks == experts.count:
            continue
        read = expected_distinct(experts.count, experts.chosen, rows) / ranks
        two = (
            sum_bytes(rows, config.hidden_size, ranks),
            exchange_bytes(rows, config.hidden_size, experts.count, experts.chosen, ranks),
        )
        visits = other_ranks(experts.count, experts.chosen, ranks)
        print(f"{ranks:5}{read:22.1f}" + "".join(f"{sent / 1e3:15,.0f}" for sent in two) + f"{visits:14.2f}")


if __name__ == "__main__":
    main()
