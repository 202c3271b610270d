"""A reader's attempt at an open task: the file to begin with, and the judge's findings about it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from statistics import median
from typing import Any

from gradus.course.open.declaration import Open, Trial
from gradus.course.student.ladder import Best
from gradus.course.student.progress import FOLDER
from gradus.errors import ConfigError
from gradus.exercises.declaration import repository
from gradus.phases import PhaseInfo

NAME = "yours.py"
SECONDS = 300
MOST_SEED = 10**6


@dataclass(frozen=True, slots=True)
class Found:
    """The judge's findings. error: why the attempt does not count; "" if it does. printed: what the file printed then.

    mine, base: numbers of the reader's file and of the beginning, summed over the trials; ratios: of the score, trial
    by trial. seeds: of the trials, to repeat them.
    """

    seeds: tuple[int, ...]
    error: str = ""
    printed: str = ""
    mine: Trial | None = None
    base: Trial | None = None
    ratios: tuple[float, ...] = ()
    ratio: float = 0.0

    def beyond(self, task: Open) -> dict[str, float]:
        """The bounds that are exceeded: the number's ratio to the beginning's, by its name."""
        return self.above(dict.fromkeys(task.needs, 1.0) | dict(task.bounds))

    def above(self, limits: Mapping[str, float]) -> dict[str, float]:
        """The numbers whose ratio to the beginning's is above its limit: the ratios by name."""
        assert self.mine is not None and self.base is not None
        ratios = {name: share(self.mine[name], self.base[name]) for name in limits}
        return {name: ratio for name, ratio in ratios.items() if ratio > limits[name]}

    def counts(self, task: Open) -> bool:
        return not self.error and not self.beyond(task)

    def reached(self, task: Open) -> bool:
        return self.counts(task) and not self.above(task.needs) and task.reached(self.ratio)

    def better(self, task: Open, best: Best | None) -> bool:
        """Whether this belongs on the ladder: an attempt that reaches the goal goes before one that does not."""
        if best is None or self.reached(task) != best.reached:
            return best is None or self.reached(task)
        return task.better(self.ratio, best.ratio)


def share(mine: float, base: float) -> float:
    return mine / base if base else float(mine > 0)


def task_of(phase: PhaseInfo) -> Open:
    """Raises ConfigError for a phase without an open task."""
    if not phase.has("open"):
        raise ConfigError(f"{phase.name} has no open task: phases/{phase.folder}/open.py is not there")
    task: Open = phase.module("open").TASK
    return task


def usual(phase: PhaseInfo) -> Path:
    return FOLDER / "open" / phase.name / NAME


def file_of(phase: PhaseInfo, where: Path | None) -> Path:
    """The reader's file: in the usual folder, or in the folder named, or the file named. It may not exist yet."""
    if where is None:
        return usual(phase)
    return where if where.suffix == ".py" else where / NAME


def seeds_of(task: Open, seed: int | None) -> tuple[int, ...]:
    """The seeds of a check's trials: all follow from the first, which is new in every check if it is not given."""
    first = SystemRandom().randrange(MOST_SEED) if seed is None else seed
    random = Random(first)
    return first, *(random.randrange(MOST_SEED) for _ in range(task.trials - 1))


def attempt(phase: PhaseInfo, file: Path, seed: int | None = None) -> Found:
    """Judge a file in a process of its own. It may print, hang or end the process without harm."""
    task = task_of(phase)
    seeds = seeds_of(task, seed)
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder) / "facts.json"
        command = [sys.executable, "-m", "gradus.course.open.judge", "--phase", phase.name]
        command += ["--file", str(file.resolve()), "--seeds", ",".join(map(str, seeds)), "--facts", str(facts)]
        settings = {"OMP_NUM_THREADS": "1"}  # small operations: a second thread waits for a core that others use
        if task.interpreted:
            settings["TRITON_INTERPRET"] = "1"  # read when Triton is first imported
        try:
            done = subprocess.run(
                command,
                cwd=repository(phase),
                env=os.environ | settings,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Found(seeds, f"the trials had not ended after {SECONDS} s")
        if not facts.is_file():
            return Found(seeds, f"it ended the judge's process (exit code {done.returncode})", last(done.stderr))
        return found(task, seeds, json.loads(facts.read_text(encoding="utf-8")), last(done.stdout))


def found(task: Open, seeds: tuple[int, ...], facts: dict[str, Any], printed: str) -> Found:
    if "error" in facts:
        return Found(seeds, facts["error"], printed)
    mine, base = (added(facts[side]) for side in ("mine", "base"))
    pairs = zip(facts["mine"], facts["base"], strict=True)
    ratios = tuple(share(one[task.counts], other[task.counts]) for one, other in pairs)
    ratio = median(ratios) if task.clocked else share(mine[task.counts], base[task.counts])
    return Found(seeds, mine=mine, base=base, ratios=ratios, ratio=ratio)


def added(trials: list[Trial]) -> Trial:
    return {name: sum(trial[name] for trial in trials) for name in trials[0]}


def last(printed: str, lines: int = 5) -> str:
    return "\n".join(printed.strip().splitlines()[-lines:])
