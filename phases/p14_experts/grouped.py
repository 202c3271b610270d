"""The grouped product: each expert's matrices times its own rows.

The plainest right form is a loop over experts, on slices of the sorted rows. The padded form makes all slices as long
as the longest, so that one batched product does them all: fewer launches, and rows that are padding.

Shapes: P sorted rows, E experts of F features, D values per row.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor


def grouped(rows: Tensor, starts: list[int], expert: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Give each expert its slice of the rows: [P, D] → [P, D], in the same order.

    starts: as `sort_by_expert` returns them. expert: computes one expert's MLP, by its number, [n, D] → [n, D]. It
    reads all weights of that expert, so it is called once for an expert that has rows, and never for another.
    """
    out = torch.empty_like(rows)
    for number, (start, end) in enumerate(pairwise(starts)):
        if end > start:
            out[start:end] = expert(number, rows[start:end])
    return out


def padded(rows: Tensor, starts: list[int], gates: Tensor, features: Tensor, down: Tensor) -> Tensor:
    """The same by three batched products, for experts with a SiLU gate.

    gates, features: [E, F, D]; down: [E, D, F]. All of them are read, chosen or not.
    """
    sizes = [end - start for start, end in pairwise(starts)]
    block = rows.new_zeros(len(sizes), max(sizes), rows.shape[1])
    for number, size in enumerate(sizes):
        block[number, :size] = rows[starts[number] : starts[number + 1]]
    hidden = torch.nn.functional.silu(block @ gates.mT) * (block @ features.mT)
    out = hidden @ down.mT
    return torch.cat([out[number, :size] for number, size in enumerate(sizes)])


def padding(starts: list[int]) -> float:
    """The share of the padded form's rows that are padding."""
    sizes = [end - start for start, end in pairwise(starts)]
    return 1 - sum(sizes) / (len(sizes) * max(sizes))
