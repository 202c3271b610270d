"""Launch shapes of the products of experts in fewer bits, and which of them a number of rows takes."""

from typing import NamedTuple

import triton

from gradus.kernels.experts.packed_tiles import GGUF, Form

FEWEST_TOKENS, MOST_TOKENS = 16, 128  # of a tile


class PackedLaunch(NamedTuple):
    """tokens: rows of x in a tile. rows, columns: of a tile of weights, gates and features together. stages: tiles in
    flight. warps: of a program."""

    tokens: int
    rows: int
    columns: int
    stages: int
    warps: int


Matrix = tuple[str, int, int]  # the form's name; an expert's outputs and inputs

# The fastest on an H200 (benchmarks/kernels/packed_experts.json), by rows of an expert at most, in ascending order.
FASTEST: dict[Matrix, dict[int, PackedLaunch]] = {
    ("mxfp4", 2880, 2880): {
        16: PackedLaunch(16, 32, 128, 3, 2),
        32: PackedLaunch(32, 64, 64, 3, 4),
    },
}


def launch_of(form: Form, n: int, k: int, rows: int, item: int) -> PackedLaunch:
    """The launch for that many rows of an expert at most. n, k: an expert's matrix. item: bytes of an activation.

    Each takes at most 96 KB of shared memory, which every GPU has.
    """
    raced = FASTEST.get((form.name, n, k), {}) if item == 2 else {}
    most = min((most for most in raced if most >= rows), default=None)
    return unraced(form, rows, item) if most is None else raced[most]


def unraced(form: Form, rows: int, item: int) -> PackedLaunch:
    """Choose by a rule, for GPUs and sizes that no race has measured."""
    if item == 4:
        return PackedLaunch(FEWEST_TOKENS, 32, form.columns if form.fixed else 64, 2, 4)
    if rows <= 32:
        tokens = max(FEWEST_TOKENS, triton.next_power_of_2(rows))
        return PackedLaunch(tokens, 64, form.columns, 3, 4)
    tokens = min(triton.next_power_of_2(rows), MOST_TOKENS // 2 if form.number == GGUF.value else MOST_TOKENS)
    return PackedLaunch(tokens, 128, form.columns if form.fixed else 64, 3 if tokens <= 64 else 2, 8)
