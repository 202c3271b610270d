"""Count an attention kernel's cycles per score: what hides behind its products, and the share of the peak that is left.

Three kinds of units of a GPU's multiprocessor work on a score. They can work at the same time, if the kernel gives each
something to do. A kernel that waits for one kind before it starts the next pays for the sum. No torch here.

Rates are those of Hopper (H100 and H200): FlashAttention-3, Shah et al. 2024, section 3.1, has 989 TFLOP/s of products
and 3.9 T/s of exponentials, which are 4,096 and 16 per cycle of each of 132 multiprocessors at 1.83 GHz.
"""

from dataclasses import dataclass

FLOPS = 4096  # of the matrix units, per cycle and multiprocessor, in bfloat16
EXPONENTIALS = 16  # of the special-function units, per cycle
LANES = 128  # other instructions, per cycle
OTHERS = 3.5  # per score: the largest so far, scale and subtract, the sum, half of a conversion of two scores


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of one multiprocessor per score, by the units that work on it."""

    products: float
    exponentials: float
    others: float

    @property
    def in_turn(self) -> float:
        """Only one unit works at a time."""
        return self.products + self.exponentials + self.others

    @property
    def overlapped(self) -> float:
        """All units work at once, so the slowest decides. (Exponentials and the others run in turn: both belong to the
        same few warps.)"""
        return max(self.products, self.exponentials + self.others)


def per_score(head_dim: int) -> Cycles:
    """Count the cycles of one score. head_dim: numbers of a head; each is in two products, so it takes 4 FLOPs."""
    return Cycles(4 * head_dim / FLOPS, 1 / EXPONENTIALS, OTHERS / LANES)


def reached(head_dim: int, overlapped: bool) -> float:
    """Return the share of the matrix units' peak that attention can reach."""
    cycles = per_score(head_dim)
    return cycles.products / (cycles.overlapped if overlapped else cycles.in_turn)
