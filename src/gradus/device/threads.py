"""The number of threads that compute on a CPU, and how they wait for one another.

The number is `threads`, if given; else one per core that this process may use, but no more than torch has. `use`
decides it for an engine, which passes it to its kernels. Torch has one number for the whole process, which belongs to
the program: `use` changes it only if `threads` is given. Torch itself counts the cores that it may run
on, and ignores a container's share of their time (`docker run --cpus 2`): threads beyond that share are
stopped in the middle of a step, and the others wait for them. So the command line, which owns its process, sets torch's
number before torch is loaded.

Waiting: on a CPU, a decode step in torch is a few hundred parallel regions of some ten microseconds, and each
region ends when its last thread does. By default a thread that has finished spins for milliseconds. On an idle machine
that is the fastest way to wait. But if another program is busy, the spinning thread uses up its share of the core, the
scheduler then takes the core away, and the next region waits a whole time slice for it. A thread that sleeps instead
keeps its claim to the core, but waking it takes longer than most waits do. So threads spin for about as long as a usual
wait, some fifty microseconds, and then sleep. `benchmarks/answered/busy_core.json` has both.

OpenMP libraries read these variables once, when they are loaded. A program that uses `LLM` sets them itself, before it
imports torch: importing gradus changes no environment. The command line may change it, because it owns its process. In
any process, an engine can use `end_spinning`, and `own_threads` for the thread that steps, so that its kernels have all
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

# GNU's library counts its turns of waiting; others know only the policy, and sleep soon or at once.
BRIEFLY = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "2000"}

# If the environment sets one of these variables of OpenMP, GNU's library, or Intel's and LLVM's, the user has chosen.
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
SOFT = 1  # omp_pause_soft: ends threads, but may keep their private data
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
    """Decide the number of threads for an engine's kernels on a CPU. A given number is also set in torch,
    process-wide."""
    import torch  # here, because the command line sets the environment before torch is loaded

    if threads is None:
        return min(usable_cores(), torch.get_num_threads())
    torch.set_num_threads(threads)
    return threads


@contextmanager
def own_threads(count: int) -> Iterator[None]:
    """Within the block, torch computes for the calling thread in `count` threads; other callers keep their number.

    `torch.set_num_threads` cannot do this: any thread that first uses torch meanwhile would keep the number
    forever. OpenMP and MKL have functions that affect only the caller. If torch's are not found, nothing changes.
    """
    import torch

    before = torch.get_num_threads()  # also gives the process's number to a thread that is new to torch
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
    """Find the functions of torch's OpenMP and MKL that set the calling thread's number. MKL's returns the previous
    one.

    OpenMP's is None if there is none, or torch ignores it. Without MKL, as on ARM, its function does nothing.
    """
    import torch

    name = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib"}.get(sys.platform, "")
    path = Path(torch.__file__).parent / "lib" / name
    library = ctypes.CDLL(str(path)) if path.is_file() else None  # loaded already, so this only looks functions up
    openmp, mkl = (getattr(library, each, None) for each in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"))
    if openmp is not None:
        before = torch.get_num_threads()
        openmp(before + 1)
        heeded = torch.get_num_threads() == before + 1
        openmp(before)
        openmp = openmp if heeded else None
    return openmp, mkl or (lambda count: count)


def end_spinning() -> None:
    """End the threads that wait for the caller's next operation in torch, unless the environment decides how they wait.

    By default they spin for milliseconds, on cores that the CPU kernels need. OpenMP starts new ones when the caller
    next computes in several threads, which takes microseconds. Without such threads, the call takes less than one.
    """
    process, pause = _pause()
    if pause is not None and process == os.getpid():
        pause(SOFT)


@cache
def _pause() -> tuple[int, Callable[[int], int] | None]:
    """Find the pause function of torch's OpenMP, and the process in which it may be called: in a fork of it, OpenMP
    would wait for threads that are gone. None: OpenMP has none (before version 5), or the user has chosen how threads
    wait."""
    function = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None) if sys.platform == "linux" else None
    return os.getpid(), None if any(name in os.environ for name in CHOICES) else function


def usable_cores() -> int:
    """Cores whose time this process may use: those it may run on, but no more than its control groups' share."""
    return max(1, math.floor(min(allowed_cores(), share_of_cores())))


def allowed_cores() -> int:
    """Cores that this process may run on, which under taskset are fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
