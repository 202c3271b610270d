"""The skeleton of a race between kernels: compile all, check and time each, store results as they come, write a table.

A script says what races: its shapes, its contenders and what it reports. Times are of launches inside a CUDA graph over
buffers that together exceed the L2 cache, as in a decode step, where only activations are found in the cache. Each is
the median of several replays, in microseconds per launch.
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradus.device.capability import capability

Contender = TypeVar("Contender")
Task = TypeVar("Task")
DEVICE = ("device", "capability", "torch", "triton")  # what results and tables say of the GPU and its compilers


def arguments(doc: str) -> argparse.ArgumentParser:
    """Return a parser of the options that every race has. doc: the script's docstring."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the JSON file to write results to as they come in")
    parser.add_argument("--workers", type=int, default=14, help="processes that compile in advance")
    return parser


def table_arguments(doc: str, parts: str) -> argparse.ArgumentParser:
    """Return a parser for a race whose fastest launches become a device's file in `measured/`."""
    parser = arguments(doc)
    parser.add_argument("--parts", default=parts)
    parser.add_argument("--bandwidth", type=float, default=4.57e12, help="bytes per second of a large read on this GPU")
    parser.add_argument("--known", type=Path, help="a like device's results: race only what was fastest there")
    parser.add_argument("--table", type=Path, help="measure nothing: write the device's file from these results")
    return parser


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line. A race needs to know where results go; what only reads results does not."""
    options = parser.parse_args()
    reads = any(getattr(options, name, None) for name in ("table", "show"))
    if options.out is None and not reads:
        parser.error("--out is needed")
    return options


def device_facts(device: torch.device) -> dict[str, Any]:
    import triton

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    facts = name, list(capability(device)), torch.__version__, triton.__version__
    return dict(zip(DEVICE, facts, strict=True))


# -- compiling ---------------------------------------------------------------------------------------------------------


def compile_in_processes(compiled: Callable[[Task], Any], tasks: Iterable[Task], workers: int) -> None:
    """Run `compiled` for each task in other processes; the process that measures finds the kernels on disk.

    A task that fails is reported here, and fails again in the race.
    """
    start, tasks = time.perf_counter(), list(tasks)
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            problems = [*filter(None, pool.map(partial(problem_of, compiled), tasks, chunksize=4))]
    except BrokenProcessPool:
        problems = ["a process that compiled has died"]
    print(f"{len(tasks)} kernels compiled in {time.perf_counter() - start:.0f} s, {len(problems)} not", flush=True)
    for problem in problems[:5]:
        print(problem, flush=True)


def problem_of(compiled: Callable[[Task], Any], task: Task) -> str | None:
    """Return why a task does not compile, or None if it does."""
    try:
        with torch.inference_mode():
            compiled(task)
    except Exception as problem:
        return f"{type(problem).__name__} {problem}"[:160] + f" in {task}"[:160]
    return None


# -- checking and timing -----------------------------------------------------------------------------------------------


def copies(bytes_each: int, cache: int) -> int:
    """Return the number of buffers that together exceed a cache, between 2 and 200."""
    return max(2, min(200, math.ceil(cache / bytes_each)))


def race(contenders: Mapping[Contender, Callable[[], float]]) -> tuple[dict[Contender, float], list[str]]:
    """Return the time that each contender reports, the fastest first, and the failures with their reasons.

    A contender fails if it raises, for example because it does not fit the GPU. Raises what a failed launch leaves
    behind, a "CUDA error": nothing that follows it would be right.
    """
    times, failed = dict[Contender, float](), list[str]()
    for contender, timed in contenders.items():
        try:
            times[contender] = timed()
        except Exception as problem:
            if "CUDA error" in str(problem):
                raise
            failed.append(f"{contender}: {type(problem).__name__} {problem}"[:300])
            print(failed[-1][:200], flush=True)
    return dict(sorted(times.items(), key=lambda entry: entry[1])), failed


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill new memory with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def error(out: Tensor, reference: Tensor) -> float:
    """Return the relative error, which is NaN if an element was not written."""
    return float((out.float() - reference.float()).norm() / reference.float().norm())


# -- a device's file ---------------------------------------------------------------------------------------------------


def file_of(folder: Path, device: str) -> Path:
    """Return the path of the device's file, like measured/nvidia-h200.json."""
    return folder / f"{'-'.join(device.lower().split())}.json"


def write_table(results: Path, folder: Path, table: Callable[[dict[str, Any]], str]) -> None:
    """Write the file of the device that these results are from."""
    found = json.loads(results.read_text())
    folder.mkdir(exist_ok=True)
    file_of(folder, found["device"]).write_text(table(found))


def table_text(found: Mapping[str, Any], rows: Sequence[int], name: str, body: str) -> str:
    """Return the text of a device's file: what it was measured with, and the body under its name."""
    header = {key: found[key] for key in DEVICE} | {"rows": rows}
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items())
    return "{\n" + head + f'  "{name}": {body}\n' + "}\n"


def one_per_line(lines: Sequence[str], indent: int, brackets: str = "[]") -> str:
    """Join JSON texts into a list (or an object's members), one per line. indent: of the line that it begins on."""
    inner = "\n" + " " * (indent + 2)
    return brackets[0] + inner + ("," + inner).join(lines) + "\n" + " " * indent + brackets[1]
