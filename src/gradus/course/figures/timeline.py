"""p10's figure of a recording: a few steps of decodes on host and GPU, launched, replayed, and one step ahead.

Drawn from benchmarks/lessons/timeline.json, which benchmarks/lessons/timeline.py writes on a GPU. No torch here.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gradus.bench.statistics import median
from gradus.course.drawing import BOX, FREE, KEPT, NEW, WASTE, WIDTH, Drawing, Kind

RECORDING = Path(__file__).parents[4] / "benchmarks" / "lessons" / "timeline.json"
SHOWN = 8  # steps
SCENE = "decodes"
NAMES = {
    "p09": "p09: the host launches every kernel",
    "final-overlap": "final without overlap: it launches a graph",
    "final": "final engine: and does so while the GPU works",
}
MOSTLY = 0.5  # of a step on the GPU; if its kernels take less, it waits for launches

Interval = tuple[float, float]
LEFT, RIGHT = 58, WIDTH - 4
LANE, GROUP = 26, 116  # heights


@dataclass(frozen=True, slots=True)
class Recorded:
    """One engine's steps in order, and the window of SHOWN steps to draw. Times in microseconds.

    kernels: the time of one step's kernels; None without a GPU.
    """

    engine: str
    kernels: float | None
    steps: list[dict[str, Any]]
    window: Interval

    @property
    def period(self) -> float:
        """The time from one step to the next."""
        return (self.window[1] - self.window[0]) / SHOWN

    @property
    def at_work(self) -> Iterator[Interval]:
        """The intervals in which the host plans, launches or commits."""
        for step in self.steps:
            yield step["schedule"], step["schedule_end"]
            yield step["run"], step["run_end"]
            yield step["commit"] + step["wait"], step["commit_end"]  # a commit begins with its wait

    @property
    def waits(self) -> Iterator[Interval]:
        """The intervals in which the host waits for the GPU."""
        return ((step["commit"], step["commit"] + step["wait"]) for step in self.steps)

    @property
    def on_gpu(self) -> Iterator[Interval]:
        """The intervals in which a step is on the GPU."""
        return ((step["gpu"], step["gpu_end"]) for step in self.steps if step["gpu"] is not None)

    @property
    def starved(self) -> bool:
        """Whether the GPU waits for launches while it has a step."""
        longest = [end - start for start, end in self.on_gpu]
        return self.kernels is not None and bool(longest) and self.kernels < MOSTLY * median(longest)


def recorded(file: Path = RECORDING) -> dict[str, Recorded]:
    """Read the recording of the scene, by engine; {} if there is no file."""
    if not file.is_file():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    return {each["engine"]: _recorded(each) for each in found["recordings"] if each["scene"] == SCENE}


def _recorded(each: dict[str, Any]) -> Recorded:
    steps = [dict(zip(each["fields"], step, strict=True)) for step in each["steps"]]
    starts = [step["schedule"] for step in steps]
    usual = median([following - start for start, following in pairwise(starts)])
    # choose the most typical window, neither the luckiest nor a disturbed one; start at the second step, because the
    # work that was still on the GPU when the first one began was not recorded
    windows = zip(starts[1:], starts[1 + SHOWN :], strict=False)
    window = min(windows, key=lambda window: abs(window[1] - window[0] - SHOWN * usual))
    return Recorded(each["engine"], each["kernels_us"], steps, window)


# -- the drawing -------------------------------------------------------------------------------------------------------


def steps(file: Path = RECORDING) -> Drawing:
    """Draw host and GPU of SHOWN steps, one engine below the other, each at its own scale; then all at one scale."""
    found = recorded(file)
    shown = [found[name] for name in NAMES]
    said = ", ".join(f"{_milliseconds(each.period)} in {_short(each)}" for each in shown)
    drawing = Drawing(f"{SHOWN} steps of decodes on host and GPU. From one step to the next: {said}", 508)
    for row, each in enumerate(shown):
        _engine(drawing, row * (GROUP + 12), each)
    top = 3 * (GROUP + 12) + 18
    drawing.words(0, top, f"The same {SHOWN} steps, at one scale", bold=True)
    longest = max(each.period for each in shown)
    for row, each in enumerate(shown):
        y, width = top + 10 + row * 22, (RIGHT - 180) * each.period / longest
        drawing.words(0, y + 15, _short(each))
        drawing.rectangle(180, y + 2, width, 14, BOX)
    drawing.legend(top + 102, [(KEPT, "host works"), (FREE, "host waits"), (NEW, "a step on the GPU")])
    if any(each.starved for each in shown):
        drawing.legend(top + 102, [(WASTE, "GPU mostly waits for launches")], x=494)
    return drawing


def _engine(drawing: Drawing, top: float, each: Recorded) -> None:
    drawing.words(0, top + 17, NAMES[each.engine], bold=True)
    said = f"{_milliseconds(each.period)} a step"
    if each.starved and each.kernels is not None:  # not for graphs, whose kernels overlap: their sum exceeds their time
        said += f", kernels run {_milliseconds(each.kernels)} of it"
    drawing.words(RIGHT, top + 17, said, anchor="end")
    drawing.words(0, top + 27 + 18, "host")
    _bars(drawing, top + 27, each, each.waits, FREE)
    _bars(drawing, top + 27, each, each.at_work, KEPT)
    drawing.words(0, top + 59 + 18, "GPU")
    _bars(drawing, top + 59, each, each.on_gpu, WASTE if each.starved else NEW, apart=True)
    _axis(drawing, top + 91, each)


def _bars(
    drawing: Drawing, y: float, each: Recorded, intervals: Iterable[Interval], kind: Kind, apart: bool = False
) -> None:
    """Draw the parts of the intervals within the window. Neighbors share one bar, unless `apart`."""
    start, end = each.window
    scale = (RIGHT - LEFT) / (end - start)
    bars: list[list[float]] = []
    for first, last in sorted(intervals):
        left, right = (LEFT + scale * (min(max(time, start), end) - start) for time in (first, last))
        if last <= start or first >= end:
            continue
        if bars and not apart and left - bars[-1][1] < 2:
            bars[-1][1] = max(bars[-1][1], right)
        else:
            bars.append([left, right])
    for left, right in bars:
        drawing.rectangle(left, y, max(1.0, right - left - (2 if apart else 0)), LANE, kind, radius=1)


def _axis(drawing: Drawing, y: float, each: Recorded) -> None:
    """Draw a time axis from the window's start, with ticks at round numbers."""
    length = each.window[1] - each.window[0]
    size = round_step(length / 8)
    drawing.arrow((LEFT, y), (RIGHT, y), head=False)
    for tick in range(math.floor(length / size) + 1):
        x = LEFT + (RIGHT - LEFT) * tick * size / length
        drawing.arrow((x, y), (x, y + 5), head=False)
        if x < RIGHT - 24:
            drawing.words(x, y + 20, _milliseconds(tick * size) if tick else "0", size=15, anchor="middle")


def round_step(least: float) -> float:
    """Find the smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = 10 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _short(each: Recorded) -> str:
    return NAMES[each.engine].split(":")[0]


def _milliseconds(microseconds: float) -> str:
    """Format three digits: "0.52 ms", "12.3 ms"."""
    return f"{microseconds / 1e3:.3g} ms"
