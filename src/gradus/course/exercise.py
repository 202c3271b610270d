"""What a phase asks the student to write, declared in its `exercise.py`."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
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
    """

    file: str
    functions: dict[str, Hints]
    text: str

    @property
    def module(self) -> str:
        """The name under which the engine imports the file."""
        return self.file.removeprefix("src/").removesuffix(".py").replace("/", ".")

    @property
    def file_name(self) -> str:
        return Path(self.file).name


def exercise_of(phase: PhaseInfo) -> Exercise:
    """Raises ConfigError if the phase has none."""
    name = f"phases.{phase.folder}.exercise"
    if find_spec(name) is None:
        raise ConfigError(f"{phase.name} has no exercise: phases/{phase.folder}/exercise.py is not there")
    exercise: Exercise = import_module(name).EXERCISE
    return exercise


def repository(phase: PhaseInfo) -> Path:
    """The folder that holds `phases`, and beside it `src` and `tests`."""
    return phase.path.parent.parent


def reference_of(phase: PhaseInfo) -> str:
    """The source of the file that the exercise is cut out of."""
    return (repository(phase) / exercise_of(phase).file).read_text(encoding="utf-8")
