"""Functions that a notebook's cells call: `figure`, `run`, and `check`, which judges the reader's definitions.

    check("p01", In)    # In: the notebook's list of all cells that have run, which every notebook has

Put the reader's newest definitions into a copy of our file, in exercises/notebook, and let `gradus check` judge it.
So a notebook's exercise is judged by the tests that judge every other one.
"""

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradus import phases
from gradus.course.student.progress import FOLDER as EXERCISES
from gradus.exercises.declaration import Exercise, exercises_of, reference_of
from gradus.exercises.skeleton import cut
from gradus.phases import PhaseInfo

FOLDER = EXERCISES / "notebook"
"""The folder of the files that `check` makes; it has a folder per phase."""

COLORS = ("FORCE_COLOR", "CLICOLOR_FORCE")
"""Kernels of notebooks set these, and a progress bar would then move its cursor through a cell's output."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing that notebooks show as a cell's value. text: what it shows, in words."""

    path: Path
    text: str

    def _repr_svg_(self) -> str:
        return self.path.read_text(encoding="utf-8")


def figure(path: str, text: str) -> Figure:
    return Figure(Path(path), text)


def run(command: str) -> None:
    """Run a `gradus` or `python` command, and print its output as it comes, here and not in another terminal."""
    name, *arguments = shlex.split(command)
    module = ["-m", "gradus"] if name == "gradus" else []
    plain = {name: value for name, value in os.environ.items() if name not in COLORS}
    with subprocess.Popen(
        [sys.executable, *module, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=plain
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="")


def check(phase: str, inputs: Sequence[str], hint: int = 0) -> None:
    """Judge what the notebook's cells define of a phase's exercises, as `gradus check` does.

    inputs: the source of every cell that has run, oldest first. hint: show the hints up to this one, of three.
    """
    info = phases.find(phase)
    written = [file for exercise in exercises_of(info) if (file := write(info, exercise, inputs)) is not None]
    if not written:
        print("No cell that defines a function of the exercise has run yet: run those above, then this one.")
        return
    run(f"gradus check {phase} --impl {shlex.quote(str(FOLDER / info.name))}" + (f" --hint {hint}" if hint else ""))


def write(info: PhaseInfo, exercise: Exercise, inputs: Sequence[str]) -> Path | None:
    """Write the file of an exercise with the reader's definitions. None if no cell has any of them."""
    skeleton = cut(reference_of(info, exercise), exercise.functions, info.name)
    source = assembled(skeleton, definitions(exercise), inputs)
    if source is None:
        return None
    file = FOLDER / info.name / exercise.file_name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    return file


def definitions(exercise: Exercise) -> list[str]:
    """The names at the top of the file that a reader writes or completes: functions, and classes with methods to
    write."""
    return list(dict.fromkeys(name.partition(".")[0] for name in exercise.functions))


def assembled(skeleton: str, names: Sequence[str], inputs: Sequence[str]) -> str | None:
    """Put the newest cell that defines a name in the place of the skeleton's definition. None without such a cell.

    A cell comes whole, with the reader's helpers and imports, and once, though it may define several names.
    """
    newest = {name: cell for cell in inputs for name in defined(cell) if name in names}
    if not newest:
        return None
    lines = skeleton.splitlines(keepends=True)
    placed: set[str] = set()
    pieces: list[str] = []
    at = 0
    for node in ast.parse(skeleton).body:
        name = getattr(node, "name", "")
        if name not in newest:
            continue
        pieces += lines[at : first_line(node) - 1]
        if newest[name] not in placed:
            pieces.append(newest[name].rstrip() + "\n")
        placed.add(newest[name])
        at = node.end_lineno or node.lineno
    return "".join([*pieces, *lines[at:]])


def first_line(node: ast.stmt) -> int:
    """The line in which a definition begins, with its decorators."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def defined(cell: str) -> list[str]:
    """The functions and classes that a cell defines at its top; none if it is not plain Python (%time, !ls)."""
    try:
        body = ast.parse(cell).body
    except SyntaxError:
        return []
    return [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
