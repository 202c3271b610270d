"""What a phase asks the student to write, declared in its `exercise.py`."""

from dataclasses import dataclass
from pathlib import Path

from gradus.errors import ConfigError
from gradus.phases import PhaseInfo

Hints = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Exercise:
    """One file of the reference, of which the student writes some functions again.

    file: its path in the repository, as in "phases/p01_kv_cache/contiguous.py".
    functions: "Class.method" or "function", each with three hints: where to look, what to do, almost how.
    text: the task, in a few sentences; the lesson has said the rest.
    why: for each function, why ours is as it is: read beside the student's, once that passes.
    alone: the one file of tests that judges it, where no engine uses it; "" for all tests of the phase.
    tests: what judges the file beside the phase's own tests: the files that test the part alone, if it lives in src.
    triton: the file, or a module that it imports, needs Triton, so it can be judged on Linux alone.
    interpreted: the file is a Triton kernel, which is judged in Triton's interpreter, on the CPU.
    """

    file: str
    functions: dict[str, Hints]
    text: str
    why: dict[str, str]
    tests: tuple[str, ...] = ()
    alone: str = ""
    triton: bool = False
    interpreted: bool = False

    @property
    def module(self) -> str:
        """The name under which the engine imports the file."""
        return self.file.removeprefix("src/").removesuffix(".py").replace("/", ".")

    @property
    def file_name(self) -> str:
        return Path(self.file).name


def exercises_of(phase: PhaseInfo) -> tuple[Exercise, ...]:
    """The phase's `EXERCISE`, or its `EXERCISES`: one a file. Raises ConfigError if the phase has none."""
    if not phase.has("exercise"):
        raise ConfigError(f"{phase.name} has no exercise: phases/{phase.folder}/exercise.py is not there")
    module = phase.module("exercise")
    exercises: tuple[Exercise, ...] = module.EXERCISES if hasattr(module, "EXERCISES") else (module.EXERCISE,)
    return exercises


def repository(phase: PhaseInfo) -> Path:
    """The folder that holds `phases`, and beside it `src` and `tests`."""
    return phase.path.parent.parent


def reference_of(phase: PhaseInfo, exercise: Exercise) -> str:
    """The source of the file that an exercise is cut out of."""
    return (repository(phase) / exercise.file).read_text(encoding="utf-8")
