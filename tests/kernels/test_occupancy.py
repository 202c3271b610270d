"""How many programs of a kernel live at once on a multiprocessor: of kernels compiled ahead of time, for every GPU."""

from collections import defaultdict
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch

from gradus.device.capability import Capability
from gradus.kernels.attention import work as attention_work
from gradus.kernels.attention.launch import launches
from gradus.kernels.attention.work import Work, live_programs
from tests.kernels.ahead_of_time import EVERY, H200
from tests.kernels.test_every_gpu import attention, name_of

KIB = 1024


# By NVIDIA's occupancy calculator. The least of: shared memory (with 1 KiB of the driver's own for each program),
# registers (8 of a thread make a unit; four parts of a multiprocessor have a quarter each), warps, programs.
@pytest.mark.parametrize(
    "able, warps, shared, registers, programs",
    [
        (H200, 2, 38 * KIB, 204, 4),  # 208 registers of 64 threads: 9 warps, or 2 in each part
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
        (Capability(13, 7), 1, 0, 16, 16),  # never heard of: as the most modest one
    ],
)
def test_programs_live_at_once_until_one_thing_that_they_take_runs_out(able, warps, shared, registers, programs):
    assert able.programs(warps=warps, shared=shared, registers=registers) == programs


# of decodes with heads of 128, two to a group: 38 KiB of shared memory, and about 200 registers of 64 threads
LIVE = {
    Capability(8, 0): 4, Capability(8, 6): 2, Capability(8, 9): 2, H200: 4, Capability(10, 0): 4, Capability(12, 0): 2,
}  # fmt: skip
SOME = (Capability(8, 6), H200, Capability(12, 0))


@pytest.mark.parametrize(
    "able", [pytest.param(able, id=name_of(able), marks=() if able in SOME else pytest.mark.stress) for able in EVERY]
)
def test_a_decode_aims_at_what_its_compiled_kernel_leaves_room_for(able):
    name, case = next(iter(attention(able, 128, 2, torch.bfloat16)))
    used = case.compiled(able, early=able.starts_early)
    launch = launches(128, torch.bfloat16, 2, able=able)[0]
    assert name == "decode 128 bfloat16 16 2"
    assert min(launch.live, launch.fits) == LIVE[able], "before anything is compiled"
    found = SimpleNamespace(
        run=None, n_regs=used.registers, metadata=SimpleNamespace(num_warps=launch.warps, shared=used.shared)
    )
    assert min(launch.live, live_programs.__wrapped__(found, able)) == LIVE[able]


def test_work_aims_at_no_more_programs_than_a_multiprocessor_has_room_for(monkeypatch):
    """For Gemma 3's heads, 64 processors: 3 of the first kernel, then 2 of another one, whichever runs next."""
    launch = launches(256, torch.bfloat16, 4, 64)[0]
    work = Work(launch, tiles=8, group=4, kv_heads=1, window=None, device=torch.device("cpu"))
    room = iter((3, 2, 4))
    monkeypatch.setattr(attention_work, "CompiledKernel", int)
    monkeypatch.setattr(attention_work, "live_programs", lambda kernel, able: next(room))
    monkeypatch.setattr(attention_work, "_lay_out", defaultdict(lambda: lambda *arguments, **options: None))
    aims, numbers = [], torch.zeros(9, dtype=torch.int32)
    for kernel in ("being compiled", 1, 2, 3, None):
        work.lay_out(numbers[1:], numbers, numbers[1:], most=1)
        aims.append(work.aim // 64)
        work.kernels.add(kernel)
    assert aims == [3, 3, 3, 2, 2]
