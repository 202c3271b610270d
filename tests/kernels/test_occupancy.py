"""How many programs of a kernel live at once on a multiprocessor: of kernels compiled ahead of time, for every GPU."""

from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch
from triton.compiler import CompiledKernel

from gradus.device.capability import Capability
from gradus.kernels.attention.launch import bytes_needed, launches
from gradus.kernels.attention.work import Work
from gradus.kernels.core.occupancy import live_programs
from tests.kernels.ahead_of_time import EVERY, H200
from tests.kernels.test_every_gpu import attention, name_of

KIB = 1024


# By NVIDIA's occupancy calculator. The least of: shared memory (with 1 KiB of the driver's own for each program),
# registers (8 of a thread make a unit; four parts of a multiprocessor have a quarter each), warps, programs.
@pytest.mark.parametrize(
    "able, warps, shared, registers, programs",
    [
        (H200, 2, 38 * KIB, 204, 4),  # 208 registers of 64 threads: 9 warps, of which 8 are in quarters
        (H200, 4, 64 * KIB, 32, 3),
        (H200, 4, 75 * KIB, 32, 3),
        (H200, 4, 76 * KIB, 32, 2),
        (H200, 1, 0, 16, 32),  # 32 programs, whatever they take
        (H200, 8, 0, 16, 8),  # 64 warps
        (H200, 4, 0, 255, 2),
        (H200, 16, 227 * KIB, 128, 1),
        (H200, 16, 227 * KIB, 160, 0),  # 16 warps with 160 registers are too many for one
        (Capability(8, 6), 2, 38 * KIB, 204, 2),
        (Capability(8, 6), 4, 0, 16, 12),  # 48 warps
        (Capability(8, 6), 1, 0, 16, 16),
        (Capability(8, 9), 1, 0, 16, 24),
        (Capability(13, 7), 1, 0, 16, 16),  # never heard of: as the least of those known
    ],
)
def test_programs_live_at_once_until_one_thing_that_they_take_runs_out(able, warps, shared, registers, programs):
    assert able.programs(warps=warps, shared=shared, registers=registers) == programs
