"""The bug museum: exhibits found, run, judged and explained. The exhibits themselves are in phases/museum.

Each exhibit is a folder with an engine that has a fault, a test that fails on it, the functions that repair it, and a
label. A student repairs a copy of the engine; the test takes any module that has the engine's names. There are two
wings, numbered apart: engines that are wrong, and in the slow wing engines that are right and slow.
"""

import io
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from gradus import phases
from gradus.course.student.progress import FOLDER
from gradus.course.student.solved import Pair, text_of
from gradus.errors import ConfigError
from gradus.exercises.declaration import Hints
from gradus.exercises.skeleton import functions


@dataclass(frozen=True, slots=True)
class Label:
    """An exhibit's explanation of its fault. phase: the phase whose idea the fault belongs to.

    story: the engines in which it happened. sources: the text and the address of each link. moral: how to catch it.
    """

    fault: str
    phase: str
    hints: Hints
    story: str
    sources: tuple[tuple[str, str], ...]
    moral: str


@dataclass(frozen=True, slots=True)
class SlowLabel(Label):
    """The label of an engine that is right and slow.

    look: a shell command that profiles the copy. seen: what in its output leads to the fault. gave: what the repair was
    worth, there and here.
    """

    look: str
    seen: str
    gave: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One test of an exhibit. failure: the finding that contradicts the claim; "" if the claim holds."""

    claim: str
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A folder of the museum: "m03_eviction" is number 3, called eviction. "s03_pool" is number 3 of the slow wing."""

    number: int
    name: str
    path: Path

    @property
    def slow(self) -> bool:
        return self.path.name.startswith("s")

    @property
    def command(self) -> str:
        """The command that visits it."""
        return f"gradus museum {'--slow ' if self.slow else ''}{self.number}"

    @property
    def label(self) -> Label:
        label: Label = self.module("label").LABEL
        return label

    @property
    def symptom(self) -> str:
        """The symptom that a user saw: the last line of the engine's docstring."""
        return (self.module("engine").__doc__ or "").strip().splitlines()[-1]

    @property
    def source(self) -> str:
        """The engine with its fault."""
        return (self.path / "engine.py").read_text(encoding="utf-8")

    @property
    def copy(self) -> Path:
        """The path of the student's engine, which may not exist yet."""
        return FOLDER / "museum" / f"{self.name}.py"

    def module(self, part: str) -> ModuleType:
        """Import one of its modules: "engine", "test", "fixed" or "label"."""
        return import_module(f"phases.museum.{self.path.name}.{part}")


def exhibits(*, slow: bool = False) -> list[Exhibit]:
    """List a wing's exhibits in the order of the tour. Raises ConfigError if the course is not installed."""
    museum = phases.highest().path.parent / "museum"
    wing = "s" if slow else "m"
    found = [(path, re.fullmatch(rf"{wing}(\d\d)_(\w+)", path.name)) for path in museum.iterdir()]
    return sorted((Exhibit(int(match[1]), match[2], path) for path, match in found if match), key=lambda e: e.number)


def find(wanted: str, *, slow: bool = False) -> Exhibit:
    """Find the exhibit of that number or name in a wing. Raises ConfigError for any other."""
    everything = exhibits(slow=slow)
    for exhibit in everything:
        if wanted in (str(exhibit.number), exhibit.name):
            return exhibit
    tour = "gradus museum --slow" if slow else "gradus museum"
    raise ConfigError(f"exhibit must be a number from 1 to {len(everything)}, as `{tour}` lists, got {wanted!r}")


def shown(engine: ModuleType) -> str:
    """Run the engine's `show`, and return what it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        engine.show()
    return printed.getvalue()


def load(exhibit: Exhibit) -> ModuleType:
    """Import a student's copy of an exhibit. Raises ConfigError if it does not exist or cannot be imported."""
    file = exhibit.copy
    if not file.is_file():
        raise ConfigError(f"{file} is not there: `{exhibit.command}` writes it")
    return imported(file)


def imported(file: Path) -> ModuleType:
    """Import an engine's file, again if it was imported before. Raises ConfigError if it cannot be imported."""
    file = file.resolve()
    try:
        return executed(file, f"museum_copy_{file.stem}")
    except Exception as error:
        raise ConfigError(f"{file} cannot be imported: {described(error, file)}") from error


def executed(file: Path, name: str) -> ModuleType:
    """Import a file as the module of that name, again if it was imported before. Raises what the file raises."""
    spec = spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, file
    sys.modules[name] = module = module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def judge(exhibit: Exhibit, engine: ModuleType) -> Iterator[Finding]:
    """Run the exhibit's tests, in order, on an engine."""
    file = Path(engine.__file__ or "")
    for name, test in vars(exhibit.module("test")).items():
        if name.startswith("test_"):
            claim = name.removeprefix("test_").replace("_", " ")
            try:
                test(engine)
            except Exception as error:
                yield Finding(claim, described(error, file))
            else:
                yield Finding(claim)


def described(error: Exception, file: Path) -> str:
    """Describe an exception in one line: a test's own words, or the error and its place in the student's file."""
    if isinstance(error, AssertionError):
        return str(error) or f"this does not hold: {extract_tb(error.__traceback__)[-1].line}"
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename) == file]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"


def repairs(exhibit: Exhibit) -> Iterator[Pair]:
    """Pair the functions of the fix with those of the fault. A new function has no counterpart."""
    fixed = (exhibit.path / "fixed.py").read_text(encoding="utf-8")
    for name in functions(fixed):
        yield Pair(name, theirs=text_of(exhibit.source, name), ours=text_of(fixed, name), why="")
