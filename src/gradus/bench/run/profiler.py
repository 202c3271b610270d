"""Break a step's time down into kernels, launches and the host, with torch's profiler.

Profiling slows a step, because every launch is recorded. So the step is timed first, unprofiled. The profiler supplies
only what it does not disturb: the kernels' times and their number.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gradus.bench.contenders.workbench import Room, Workbench
from gradus.bench.measure.drive import synchronize
from gradus.bench.statistics import median, significant
from gradus.bench.workloads import Workload, burst
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams

STEPS = 8
LONGEST_RUN = 3 * STEPS + 4  # tokens that a profiled sequence generates
TOP = 5


@dataclass(frozen=True)
class StepProfile:
    """A contender's average decode step. Times in milliseconds.

    context, batch: tokens stored per sequence, and sequences. step_ms: unprofiled, on the host's clock. device_ms: the
    sum of all kernels (on a GPU; on a CPU of all operations' own time). kernels: launched in a step (on a CPU:
    operations).
    top: (name, percent of device_ms, how often in a step), the longest first. prefill_ms: the step of the prompt.
    """

    contender: str
    device: str
    context: int
    batch: int
    step_ms: float
    device_ms: float
    kernels: float
    prefill_ms: float
    top: list[tuple[str, float, float]]

    @property
    def idle_percent(self) -> float:
        """Share of a step in which no kernel ran: the device waits for the host."""
        return max(0.0, 100 * (1 - self.device_ms / self.step_ms))

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"idle_percent": significant(self.idle_percent, 3)}


@dataclass
class Steps:
    """An engine brought to the point where it decodes: `batch` sequences of `context` tokens each."""

    engine: Engine
    device: torch.device
    prefill_s: float = 0.0
    times: list[float] = field(default_factory=list)

    @classmethod
    def prepare(cls, bench: Workbench, contender: str, workload: Workload) -> "Steps":
        engine = bench.engine(contender, Room(workload.longest, len(workload.jobs)))
        steps = cls(engine, bench.device)
        for index, arrival in enumerate(workload.arrivals(bench.model.config.vocab_size)):
            params = SamplingParams(max_tokens=arrival.max_tokens, ignore_eos=True)
            engine.submit(Request.create(str(index), arrival.prompt, params, engine.limits))
        steps.prefill_s = steps.timed(1)[0]
        return steps

    def timed(self, count: int) -> list[float]:
        """Seconds of each of the next steps, synchronized."""
        times = []
        for _ in range(count):
            synchronize(self.device)
            start = time.perf_counter()
            self.engine.step()
            synchronize(self.device)
            times.append(time.perf_counter() - start)
        return times


def profile_steps(
    bench: Workbench, contender: str, *, context: int = 256, batch: int = 1, trace: Path | None = None
) -> StepProfile:
    """Take `STEPS` decode steps of a phase apart. trace: where to write a timeline for chrome://tracing or Perfetto."""
    workload = burst(batch, context, LONGEST_RUN)
    Steps.prepare(bench, contender, workload).timed(4)  # warm-up for this context's prefill and decode
    steps = Steps.prepare(bench, contender, workload)
    steps.timed(STEPS)
    unprofiled = median(steps.timed(STEPS))
    with without_markers(), profile(activities=_activities(bench.device), acc_events=True) as recorded:
        steps.timed(STEPS)
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(trace))
    spent, count = _spent(recorded, bench.device)
    total = sum(spent.values()) or 1.0
    return StepProfile(
        contender=contender,
        device=bench.device.type,
        context=context,
        batch=batch,
        step_ms=significant(1e3 * unprofiled),
        device_ms=significant(1e-3 * total / STEPS),
        kernels=significant(sum(count.values()) / STEPS),
        prefill_ms=significant(1e3 * steps.prefill_s),
        top=[
            (short(name), significant(100 * us / total, 3), significant(count[name] / STEPS))
            for name, us in spent.most_common(TOP)
        ],
    )


@contextmanager
def without_markers() -> Iterator[None]:
    """Keep the profiler's `USDT:` lines, marks for tracing tools, off stderr. All other output appears at the end.

    C++ writes them, so no Python handler sees them. KINETO_LOG_LEVEL silences a whole process, errors included, and
    only if it is set before torch is loaded.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said:
        before = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            said.seek(0)
            os.write(2, b"".join(line for line in said if not line.startswith(b"USDT:")))


def sustain(bench: Workbench, contender: str, *, context: int, batch: int, seconds: float) -> None:
    """Prefill and decode for `seconds`, while something observes the device."""
    workload = burst(batch, context, LONGEST_RUN)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        steps = Steps.prepare(bench, contender, workload)
        while steps.engine.has_work and time.perf_counter() < end:
            steps.engine.step()


def _activities(device: torch.device) -> Sequence[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]


def _spent(recorded: profile, device: torch.device) -> tuple[Counter[str], Counter[str]]:
    """(microseconds, occurrences) by name: of kernels on a GPU, of operations' own time on a CPU."""
    spent: Counter[str] = Counter()
    count: Counter[str] = Counter()
    on_gpu = device.type == "cuda"
    for event in recorded.key_averages():
        if on_gpu and not str(event.device_type).endswith("CUDA"):
            continue
        own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if own > 0:
            spent[event.key] += own
            count[event.key] += event.count
    return spent, count


def short(name: str, most: int = 70) -> str:
    """A kernel's name without its template arguments and return type."""
    plain, depth = "", 0
    for letter in name.replace("(anonymous namespace)::", ""):
        depth += (letter == "<") - (letter == ">")
        if depth == 0 and letter != ">":
            plain += letter
    words = plain.split("(")[0].replace("at::native::", "").split()
    return (words[-1] if words else name)[:most]


def render(found: StepProfile, say: Callable[[str], None]) -> None:
    """Print the profile, one fact per line."""
    what = "kernels" if found.device == "cuda" else "operations"
    say(f"{found.contender}, decode of {found.batch} x 1 token after {found.context}:")
    say(f"  a step takes          {found.step_ms:.3f} ms (the prompt's step: {found.prefill_ms:.3f} ms)")
    say(f"  {what} run for {'':<{8 if what == 'kernels' else 5}}{found.device_ms:.3f} ms, {found.kernels:.0f} of them")
    if found.device == "cuda":
        say(f"  the GPU is idle for   {found.idle_percent:.0f} % of the step: it waits for the host")
    for name, share, times in found.top:
        say(f"  {share:5.1f} %  {times:6.1f} x  {name}")
