"""Tables of the fastest launch for a grouped product: measured per device, or chosen by a rule.

`benchmarks/kernels/grouped_experts.py --table` writes a device's file in `measured/`: for each use, up and down, each
expert's matrix [outputs, inputs] and each number of rows per expert on average, the fastest launch. Other numbers take
the next larger one, or else the last.

Without a file, a rule chooses: few rows per expert are limited by the bytes of weights in flight, many by the matrix
units. The rule's launches are not measured.
"""

from functools import cache
from typing import Literal, cast

import torch

from gradus.device.capability import Capability, capability
from gradus.kernels.core import tuning
from gradus.kernels.core.gluon import in_gluon
from gradus.kernels.experts.grouped_launch import DEEP, AnyLaunch, GroupedLaunch, HopperLaunch

Use = Literal["up", "down"]
USES: tuple[Use, ...] = ("up", "down")
MOST_TOKENS = 128  # of a tile
hopper_grouped = in_gluon("experts.hopper.grouped", "hopper_grouped")
hopper_streamed = in_gluon("experts.hopper.streamed", "hopper_streamed")


class MeasuredGroups(tuning.Measured):
    """A device's file: launches by use."""

    package = "gradus.kernels.experts"

    def choose(self, use: Use, rows: int, n: int, k: int) -> AnyLaunch | None:
        return cast(AnyLaunch | None, self.nearest(use, min(rows, self.rows[-1]), n, k))


@cache
def choose_launch(
    use: Use, pairs: int, experts: int, n: int, k: int, dtype: torch.dtype, gated: bool, device: torch.device
) -> AnyLaunch:
    """Choose how to multiply `pairs` rows, divided among experts, by their matrices [n, k].

    gated: the first product is, so that an output takes two rows.
    """
    rows, able, item = -(-pairs // experts), capability(device), dtype.itemsize
    table = table_of(device) if item == 2 else None
    launch = None if table is None else table.choose(use, rows, n, k)
    if isinstance(launch, HopperLaunch) and suits_hopper(able, k, item) and gated == (use == "up"):
        return launch
    if not isinstance(launch, GroupedLaunch):
        launch = unmeasured(rows, item)
    return fitted(launch, able, gated=gated, item=item)._replace(copied=launch.copied and copies(able, k, item))


def suits_hopper(able: Capability, k: int, item: int) -> bool:
    """Whether kernels for Hopper are there, and multiply rows of k values of `item` bytes."""
    return able == (9, 0) and item == 2 and k % DEEP == 0 and hopper_grouped is not None and hopper_streamed is not None


@cache
def table_of(device: torch.device) -> MeasuredGroups | None:
    return MeasuredGroups.of(device)


def copies(able: Capability, k: int, item: int) -> bool:
    """Whether a matrix's rows of k values can be read by the copy engine, from Hopper on."""
    return able >= (9, 0) and k * item % 16 == 0


def unmeasured(rows: int, item: int = 2) -> GroupedLaunch:
    """A launch for that many rows per expert: weights stream past few, and large tiles are shared by many."""
    if item == 4:
        return GroupedLaunch(tokens=16 if rows <= 16 else 32, rows=32, columns=32, stages=2, warps=4)
    if rows <= 16:
        return GroupedLaunch(tokens=16, rows=64, columns=128, stages=3, warps=4, early=True)
    if rows <= 64:
        return GroupedLaunch(tokens=32 if rows <= 32 else 64, rows=64, columns=64, stages=4, warps=4, early=True)
    return GroupedLaunch(tokens=MOST_TOKENS, rows=128, columns=64, stages=3, warps=8)


def fitted(launch: GroupedLaunch, able: Capability, *, gated: bool, item: int) -> GroupedLaunch:
    """Cut a launch to what a GPU has of shared memory: stages go first, down to two, and then columns."""
    while launch.shared_bytes(gated=gated, item=item) > able.shared_memory - ROOM:
        if launch.stages > 2:
            launch = launch._replace(stages=launch.stages - 1)
        else:
            launch = launch._replace(columns=launch.columns // 2)
    return launch


ROOM = 2048  # bytes of shared memory that a kernel needs in addition to its tiles
