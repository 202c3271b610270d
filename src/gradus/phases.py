"""The course: what each phase adds, which phases exist, and loading one by name.

The phases live in the repository's `phases/` folder, which an editable install makes importable. They build on
gradus, so gradus never imports them by name in its source: `load` does it at run time. In the same way `solution` puts
a student's functions in a phase's place, so that no engine imports the course's tools. No torch here.

A phase is a folder with an engine (engine.py), or with a program around the engines of others (__main__.py). Numbers
may have gaps: a phase that is planned has no folder.
"""

import re
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from gradus.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Lesson:
    """One phase of the syllabus. hours: to read it, run it and do its exercises (an estimate)."""

    title: str
    idea: str
    hours: float


SYLLABUS: dict[int, Lesson] = {
    0: Lesson(
        "Baseline",
        "one forward pass by hand; then recompute everything for every token: the reference for tokens and for speed",
        3.5,
    ),
    1: Lesson("KV cache", "keep keys and values, so a token costs one row instead of the whole sequence", 2),
    2: Lesson("Static batching", "read the weights once for several sequences, padded to one length", 2),
    3: Lesson("Continuous batching", "a finished sequence leaves and a waiting one enters at every step", 3),
    4: Lesson("Paged cache", "keys and values in small pages, handed out as they are needed", 4),
    5: Lesson("Prefix cache", "share the pages of a common beginning through a radix tree", 4),
    6: Lesson("Chunked prefill", "cut long prompts to a token budget, so they no longer stall the others", 3),
    7: Lesson("Quantization", "fewer bits for each weight, with the loss of quality measured", 6),
    8: Lesson("Speculative decoding", "guess several tokens, verify them in one pass, keep the same output", 4),
    9: Lesson("Triton attention", "read the pages inside the kernel instead of gathering them first", 5),
    10: Lesson("CUDA graphs and overlap", "prepare the next step while the GPU still runs this one", 4),
    11: Lesson("Structured output", "mask every token that would break the form that an answer must have", 3),
    12: Lesson("Parallelism", "more than one GPU, more than one machine", 5),
    13: Lesson("Serving", "all of it behind HTTP, under load and faults", 6),
    14: Lesson("Mixtures of experts", "many small MLPs, of which each token reads only those that it chooses", 4),
}


@dataclass(frozen=True, slots=True)
class PhaseInfo:
    """A phase that exists. name: "p01"; folder: "p01_kv_cache", also its module's name inside `phases`."""

    name: str
    number: int
    folder: str
    title: str
    idea: str
    path: Path

    def has(self, part: str) -> bool:
        """Whether there is a module of that name in its folder: "engine", "exercise", "benchmark"."""
        return (self.path / f"{part}.py").is_file()

    def require_engine(self) -> None:
        """Raise ConfigError, naming the program to run instead, if the phase has no engine of its own."""
        if not self.has("engine"):
            names = ", ".join(phase.name for phase in engines())
            raise ConfigError(
                f"{self.name} has no engine of its own: run `python -m phases.{self.folder}`, or name one of {names}"
            )

    def module(self, part: str) -> ModuleType:
        """Import that module."""
        return import_module(f"phases.{self.folder}.{part}")


def available() -> list[PhaseInfo]:
    """The phases of this installation, in the course's order; [] where the repository is not there."""
    root = _root()
    if root is None:
        return []
    found = [(int(match[1]), path) for path in root.iterdir() if (match := re.fullmatch(r"p(\d\d)_\w+", path.name))]
    every = [_info(number, path) for number, path in sorted(found)]
    return [phase for phase in every if phase.has("engine") or phase.has("__main__")]


def engines() -> list[PhaseInfo]:
    """The phases that have an engine of their own, in the course's order."""
    return [phase for phase in available() if phase.has("engine")]


def highest() -> PhaseInfo:
    """The last phase that exists. Raises ConfigError when there is none."""
    phases = available()
    if not phases:
        raise ConfigError(
            "the phases are not installed: they live in the repository, so clone it and run pip install -e . inside"
        )
    return phases[-1]


def find(name: str) -> PhaseInfo:
    """The phase called so: "p01", or its folder's name. Raises ConfigError for any other, listing those there are."""
    highest()  # refuses where there are none
    for phase in available():
        if name in (phase.name, phase.folder):
            return phase
    names = ", ".join(phase.name for phase in available())
    raise ConfigError(f"phase must be one of {names} (or none, for the final engine), got {name!r}")


def load(name: str) -> ModuleType:
    """The engine module of a phase (see `find`), which has `build(model, options) -> Engine`.

    Raises ConfigError for a phase without an engine.
    """
    phase = find(name)
    phase.require_engine()
    return phase.module("engine")


class Solution(Protocol):
    """A phase with a student's functions in place of ours. note: which of its files are the student's."""

    note: str

    def module(self, part: str) -> ModuleType: ...

    def build(self, model: Any, options: Any) -> Any: ...


def solution(name: str, where: Path) -> Solution:
    """The phase with the functions of a student's folder or file: see `gradus.exercises.solution.load`."""
    return import_module(_EXERCISES).load(name, where)


def phase_in(where: Path) -> str:
    """The one phase that a student's folder or file has functions of: see `gradus.exercises.solution.phase_in`."""
    return import_module(_EXERCISES).phase_in(where)


_EXERCISES = "gradus.exercises.solution"


def _root() -> Path | None:
    """The folder of the `phases` package, wherever the import system finds it."""
    spec = find_spec("phases")
    return Path(spec.origin).parent if spec and spec.origin else None


def _info(number: int, path: Path) -> PhaseInfo:
    words = path.name.split("_", 1)[1].replace("_", " ")
    lesson = SYLLABUS.get(number, Lesson(words.capitalize(), "not in the syllabus", 0))
    return PhaseInfo(f"p{number:02}", number, path.name, lesson.title, lesson.idea, path)
