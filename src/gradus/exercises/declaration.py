"""The declaration of a phase's exercise, in its `exercise.py`."""

from dataclasses import dataclass
from pathlib import Path

from gradus.errors import ConfigError
from gradus.phases import PhaseInfo

Hints = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Exercise:
    """One file of the reference in which the student writes some functions.

    file: its path in the repository, as in "phases/p01_kv_cache/contiguous.py".
    functions: "Class.method" or "function", each with three hints: where to look, what to do, almost how.
    text: the task, in a few sentences; the lesson explains the rest.
    why: an explanation of each of our functions, shown next to the student's once that passes.
    alone: the only file of tests that judges it, as of one that no engine uses; "" for all tests of the phase.
    tests: further files of tests that judge the file in addition to the phase's own, if it is in src.
    triton: the file, or a module that it imports, needs Triton, so it can be judged only on Linux.
    interpreted: the file is a Triton kernel, which is judged in Triton's interpreter, on the CPU.
    run: the phase's engine runs the file although `alone` judges it.
    """

    file: str
    functions: dict[str, Hints]
    text: str
    why: dict[str, str]
    tests: tuple[str, ...] = ()
    alone: str = ""
    triton: bool = False
    interpreted: bool = False
    run: bool = False

    @property
    def module(self) -> str:
        """The name under which the engine imports the file."""
        return self.file.removeprefix("src/").removesuffix(".py").replace("/", ".")

    @property
    def file_name(self) -> str:
        return Path(self.file).name


def exercises_of(phase: PhaseInfo) -> tuple[Exercise, ...]:
    """The phase's `EXERCISE`, or its `EXERCISES`, one per file. Raises ConfigError if the phase has none."""
    if not phase.has("exercise"):
        raise ConfigError(f"{phase.name} has no exercise: phases/{phase.folder}/exercise.py is not there")
    module = phase.module("exercise")
    exercises: tuple[Exercise, ...] = module.EXERCISES if hasattr(module, "EXERCISES") else (module.EXERCISE,)
    return exercises


def has_kernels(phase: PhaseInfo) -> bool:
    """Whether the student writes kernels there, which Triton interprets where there is no GPU."""
    return phase.has("exercise") and any(exercise.interpreted for exercise in exercises_of(phase))


def repository(phase: PhaseInfo) -> Path:
    """The folder that holds `phases`, `src` and `tests`."""
    return phase.path.parent.parent


def reference_of(phase: PhaseInfo, exercise: Exercise) -> str:
    """The source of the file that an exercise is cut from."""
    return (repository(phase) / exercise.file).read_text(encoding="utf-8")
