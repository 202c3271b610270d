"""A student's own functions of a phase: found in a folder, whatever the files' names, and run in place of ours.

    yours = solution.load("p01", Path("exercises"))
    engine = yours.build(model, options)       # like phases.load("p01").build, with the student's functions

A function is identified by its name in the exercise, as in "Contiguous.stored". A file with all functions of an
exercise, written, replaces our module. Our other modules, and earlier phases, are unchanged. `build` makes a
second copy of the phase, so both run in one process and can be compared.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from types import FrameType, ModuleType
from typing import Any

from gradus import phases
from gradus.errors import ConfigError, GradusError
from gradus.exercises.declaration import Exercise, exercises_of
from gradus.exercises.skeleton import functions, unwritten
from gradus.exercises.substitute import Loader, apart
from gradus.phases import PhaseInfo


class Unfinished(ConfigError):
    """A student has begun exercises of a phase, but finished none."""


@dataclass(frozen=True, slots=True)
class Found:
    """The file with a student's functions of one exercise. missing, unwritten: functions that it lacks, or only begins.

    broken: the error if the file does not parse, "line 3: invalid syntax"; nothing else is known about it then.
    """

    exercise: Exercise
    file: Path
    missing: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    broken: str = ""

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unwritten or self.broken)

    @property
    def untouched(self) -> bool:
        """True if the file is still as `gradus exercise` wrote it."""
        return len(self.unwritten) == len(self.exercise.functions)


@dataclass(slots=True)
class Solution:
    """A phase with a student's functions in place; `build` makes its engine, as a phase's engine module would.

    files: by the module that each replaces. note: says which of the files are the student's.
    """

    phase: PhaseInfo
    files: dict[str, Path]
    note: str
    modules: dict[str, ModuleType] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of a student's phase: "your p01"."""
        return f"your {self.phase.name}"

    def module(self, part: str = "engine") -> ModuleType:
        """Import a module of the phase, such as "engine", with the student's functions in place.

        Raises ConfigError, naming file and line, if the student's file does not import.
        """
        with self._in_place():
            return self.phase.module(part)

    def build(self, model: Any, options: Any) -> Any:
        """Call the phase's `build(model, options) -> Engine`. Raises ConfigError if the phase has no engine, or if it
        runs no file of the student's."""
        self.phase.require_engine()
        with self._in_place():  # a phase may import some of its modules only here
            engine = self.phase.module("engine").build(model, options)
        if not any(module in self.modules for module in self.files):
            raise ConfigError(
                f"{self.phase.name}'s engine runs nothing of {listed(_names(self.files.values()))}: "
                f"`gradus check {self.phase.name}` runs it by itself"
            )
        return engine

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        try:
            with apart(f"phases.{self.phase.folder}", self.files, self.modules):
                yield
        except GradusError:
            raise
        except Exception as error:
            if isinstance(error, ImportError) and error.name in self.files:
                raise ConfigError(f"{self.files[error.name]}: {lacks(str(error))}") from error
            raise blamed(error) or error from error


def load(phase: str, where: Path, part: str = "engine") -> Solution:
    """Load the phase ("p01") with the functions of a student's folder or file.

    Ours replace exercises that are not finished, and the note says so. part: the module that the caller will build; if
    it is an exercise itself, the note counts it. Raises ConfigError for a folder that does not exist or has no function
    of the phase, for files that do not parse, and if no exercise is finished.
    """
    info = phases.find(phase)
    found = search(info, files_in(where, info))
    if not found:
        raise ConfigError(f"{where} has no function of {info.name}: {expected(info)}")
    for one in found:
        if one.broken:
            raise ConfigError(f"{one.file}, {one.broken}")
    whole = [one for one in found if one.complete]
    if not whole:
        raise Unfinished(_unfinished(info, found))
    return Solution(info, {one.exercise.module: one.file.resolve() for one in whole}, _note(info, found, part))


def phase_in(where: Path) -> str:
    """Find the one phase whose functions a folder or file has, as in "p01". Raises ConfigError for none or several."""
    found = {info.name: search(info, files_in(where, info)) for info in phases.available() if info.has("exercise")}
    every = [name for name, each in found.items() if each]
    # two phases may ask for functions of one name: the folder that `gradus exercise` wrote decides, or what is whole
    whole = [name for name in every if any(not one.missing for one in found[name])]
    having = [where.name] if where.name in every else whole or every
    if len(having) == 1:
        return having[0]
    if not having:
        raise ConfigError(f"{where} has no function of any phase: `gradus exercise p01` writes a file to begin with")
    raise ConfigError(f"{where} has functions of {listed(having)}: say which with --phase, as in --phase {having[-1]}")


def has_functions(info: PhaseInfo, where: Path) -> bool:
    """Whether a folder or file has functions of the phase."""
    return info.has("exercise") and bool(search(info, files_in(where, info)))


def files_in(where: Path, info: PhaseInfo) -> list[Path]:
    """List the file, or a folder's Python files and those in its subfolder named after the phase. Raises
    ConfigError."""
    if where.is_dir():
        return sorted([*where.glob("*.py"), *(where / info.name).glob("*.py")])
    if where.is_file() and where.suffix == ".py":
        return [where]
    raise ConfigError(f"{where}: {'not a Python file' if where.exists() else 'no such file or folder'}")


def search(info: PhaseInfo, files: Iterable[Path]) -> list[Found]:
    """Find, for each exercise of the phase, the file with most of its functions, if any file has some.

    Raises ConfigError if a file cannot be read, or if two files have all functions of the same exercise.
    """
    sources = {file: read(file) for file in files}
    exercises = exercises_of(info)
    taken = [found for exercise in exercises if (found := _whole(exercise, sources)) is not None]
    busy = {one.file for one in taken}
    for exercise in exercises:
        # a helper that happens to share its name with another exercise's function does not begin that exercise
        if not any(one.exercise is exercise for one in taken):
            taken += _begun(exercise, {file: source for file, source in sources.items() if file not in busy})
    return sorted(taken, key=lambda one: exercises.index(one.exercise))


def _whole(exercise: Exercise, sources: dict[Path, str]) -> Found | None:
    having = [one for file, source in sources.items() if not (one := look(exercise, file, source)).missing]
    having = [one for one in having if not one.broken]
    if len(having) > 1:
        raise ConfigError(
            f"{listed(str(one.file) for one in having)} all have {next(iter(exercise.functions))}: keep one of them, "
            "or name it with --impl"
        )
    return having[0] if having else None


def _begun(exercise: Exercise, sources: dict[Path, str]) -> list[Found]:
    looked = [look(exercise, file, source) for file, source in sources.items()]
    having = [one for one in looked if one.broken or len(one.missing) < len(exercise.functions)]
    named = [one for one in having if not one.broken or one.file.name == exercise.file_name or len(sources) == 1]
    return sorted(named, key=lambda one: len(one.missing))[:1]


def look(exercise: Exercise, file: Path, source: str) -> Found:
    """Check which functions of the exercise a file with this source has."""
    try:
        written = functions(source)
    except SyntaxError as error:
        return Found(exercise, file, broken=f"line {error.lineno}: {error.msg}")
    missing = tuple(name for name in exercise.functions if name not in written)
    return Found(exercise, file, missing, tuple(unwritten(source, exercise.functions)))


def read(file: Path) -> str:
    """Read a file. Raises ConfigError if it cannot be read, or is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 ({error.reason} at byte {error.start})") from error


# -- messages ----------------------------------------------------------------------------------------------------------


def listed(names: Iterable[object]) -> str:
    """a, b and c"""
    *most, last = map(str, names)
    return f"{', '.join(most)} and {last}" if most else last


def expected(info: PhaseInfo) -> str:
    """Describe the functions to look for in a student's file."""
    names = [name for exercise in exercises_of(info) for name in exercise.functions]
    return f"its exercise asks for {listed(names)}" if len(names) < 6 else f"as {', '.join(names[:4])}, …"


def _names(files: Iterable[Path]) -> list[str]:
    return list(dict.fromkeys(file.name for file in files))


def _unfinished(info: PhaseInfo, found: list[Found]) -> str:
    one = found[0]
    if one.unwritten:
        are = "is" if len(one.unwritten) == 1 else "are"
        what = f"{listed(one.unwritten)} {are} still to be written"
    else:
        what = f"it has no {listed(one.missing)}"
    return f"{one.file}: {what}, so there is no {info.name} of yours to run yet"


def _note(info: PhaseInfo, found: list[Found], part: str) -> str:
    """ "your p04: cache.py; ours: attention.py, scheduler.py (PagedBatching.preempt still to be written)" """
    # hardly any engine runs exercises that are judged alone; a phase that is a program runs all of its own
    program = not info.has("engine")
    run = [one for one in exercises_of(info) if not one.alone or one.run or program or one.file_name == f"{part}.py"]
    theirs = _names(one.file for one in found if one.complete and one.exercise in run)
    ours = [_ours(one, found) for one in run if not _is_theirs(one, found)]
    return f"your {info.name}: {', '.join(theirs) or 'nothing'}" + (f"; ours: {', '.join(ours)}" if ours else "")


def _is_theirs(exercise: Exercise, found: list[Found]) -> bool:
    return any(one.exercise is exercise and one.complete for one in found)


def _ours(exercise: Exercise, found: list[Found]) -> str:
    begun = [name for one in found if one.exercise is exercise for name in (*one.missing, *one.unwritten)]
    return exercise.file_name + (f" ({listed(begun)} still to be written)" if begun else "")


def blamed(error: BaseException) -> ConfigError | None:
    """Turn an exception from a student's file into one line with file and line; None if it comes from elsewhere."""
    own = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _of_a_student(frame)]
    if not own:
        return None
    frame, line = own[-1]
    if isinstance(error, SyntaxError):  # raised in the file that imports it
        return ConfigError(f"{error.filename}, line {error.lineno}: {error.msg}")
    said = str(error).splitlines()[0] if str(error) else ""
    return ConfigError(f"{frame.f_code.co_filename}, line {line}: {type(error).__name__}{said and f': {said}'}")


def _of_a_student(frame: FrameType) -> bool:
    return isinstance(frame.f_globals.get("__loader__"), Loader)


def lacks(message: str) -> str:
    """Explain "cannot import name 'Contiguous' from …" in a student's terms."""
    name = re.match(r"cannot import name '(\w+)'", message)
    return f"it does not define {name[1]}, which the rest of the phase imports" if name else message
