"""How many threads compute on a CPU, and how they wait for one another.

How many: as `threads` says; else one per core that this process may use, and no more than torch was given. `use`
decides it for an engine, which hands it to its kernels. Torch has one number for the whole process. It is the
program's own: `use` changes it where `threads` is given, and only then. Torch itself counts the cores that it may run
on, and knows nothing of a container's share of their time (`docker run --cpus 2`): threads beyond that share are
stopped in the middle of a step, and the others wait for them. So the command line, whose process is its own, tells
torch before it is loaded.

How they wait: on a CPU, a decode step in torch is a few hundred parallel regions of some ten microseconds, and each
region ends when its last thread does. By default a thread that has finished spins for milliseconds. On an idle machine
that is the fastest way to wait. Beside another busy program, the spinning thread uses up its share of the core, the
scheduler then takes the core away, and the next region waits a whole time slice for it. A thread that sleeps instead
keeps its claim to the core, but waking it takes longer than most waits do. So threads spin for about as long as a usual
wait, some fifty microseconds, and then sleep. `benchmarks/busy_core.py` measures both.

OpenMP libraries read these variables once, when they are loaded. A program that uses `LLM` sets them itself, before it
imports torch: importing gradus changes no environment. The command line may, because the process is its own. What an
engine can do in any process is `end_spinning`, and `own_threads`, for the thread that steps: its kernels then have all
cores.
"""

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from gradus.device.control_groups import share_of_cores

# GNU's library counts its turns of waiting; others know the policy alone, and sleep soon or at once.
BRIEFLY = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "2000"}

# Any of these in the environment is the user's own choice: of OpenMP, GNU's library, and Intel's and LLVM's.
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
SOFT = 1  # omp_pause_soft: threads end, what they keep for themselves need not
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def spin_briefly(environment: MutableMapping[str, str]) -> None:
    """Add `BRIEFLY` to a process's environment, unless it holds one of `CHOICES` or torch is loaded already."""
    if "torch" not in sys.modules and not any(name in environment for name in CHOICES):
        environment.update(BRIEFLY)


def stay_within_share(environment: MutableMapping[str, str]) -> None:
    """Limit torch to the cores that this process may use, unless one of `COUNTS` does or torch is loaded already."""
    cores = usable_cores()
    if "torch" not in sys.modules and not any(name in environment for name in COUNTS) and cores < allowed_cores():
        environment["OMP_NUM_THREADS"] = str(cores)


def use(threads: int | None) -> int:
    """How many threads an engine's kernels have on a CPU. Where a number is given, torch has it too, process-wide."""
    import torch  # here: the command line sets the environment before it is loaded

    if threads is None:
        return min(usable_cores(), torch.get_num_threads())
    torch.set_num_threads(threads)
    return threads


@contextmanager
def own_threads(count: int) -> Iterator[None]:
    """Within, torch computes what the calling thread asks for in `count` threads; other callers keep their number.

    `torch.set_num_threads` is no way to this: any thread that first uses torch meanwhile would keep the number for
    good. OpenMP and MKL have functions for the caller alone. Where torch's are not found, nothing changes.
    """
    import torch

    before = torch.get_num_threads()  # also gives a thread that is new to torch the number of the process
    openmp, mkl = _setters()
    if openmp is None:
        yield
        return
    openmp(count)
    mkl_before = mkl(count)
    try:
        yield
    finally:
        openmp(before)
        mkl(mkl_before)


@cache
def _setters() -> tuple[Callable[[int], object] | None, Callable[[int], int]]:
    """The functions of torch's OpenMP and MKL that set the calling thread's number. MKL's returns the one before.

    No OpenMP: there is none, or torch does not heed it. No MKL, as on ARM: a stand-in that does nothing.
    """
    import torch

    name = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib"}.get(sys.platform, "")
    path = Path(torch.__file__).parent / "lib" / name
    library = ctypes.CDLL(str(path)) if path.is_file() else None  # loaded already: this finds its own functions
    openmp, mkl = (getattr(library, each, None) for each in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"))
    if openmp is not None:
        before = torch.get_num_threads()
        openmp(before + 1)
        heeded = torch.get_num_threads() == before + 1
        openmp(before)
        openmp = openmp if heeded else None
    return openmp, mkl or (lambda count: count)


def end_spinning() -> None:
    """End the threads that wait for the caller's next operation in torch, unless the environment says how they wait.

    By default they spin for milliseconds, on cores that the CPU kernels want. OpenMP starts new ones when the caller
    next computes in several: a matter of microseconds. Where there are none, this takes a fraction of one.
    """
    process, pause = _pause()
    if pause is not None and process == os.getpid():
        pause(SOFT)


@cache
def _pause() -> tuple[int, Callable[[int], int] | None]:
    """OpenMP's function of torch's own library, and the process in which it may be called: in a fork of that, threads
    that OpenMP would wait for are gone. None: there is none (before OpenMP 5), or it is the user's choice."""
    function = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None) if sys.platform == "linux" else None
    return os.getpid(), None if any(name in os.environ for name in CHOICES) else function


def usable_cores() -> int:
    """Cores whose time this process may use: those it may run on, and no more than its control groups' share."""
    return max(1, math.floor(min(allowed_cores(), share_of_cores())))


def allowed_cores() -> int:
    """Cores that this process may run on, which under taskset are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
