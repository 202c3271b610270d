"""A lesson's page as cells: its text, its figures, its examples, and at marks in the page the cells to write in.

A mark is a comment, which no reader of the page sees:

    <!-- notebook: write NAME … -->       cells with these definitions of the phase's exercise, without their bodies
    <!-- notebook: check -->              a cell that judges what the reader wrote
    <!-- notebook: run COMMAND -->        a cell that runs a command
    <!-- notebook: say TEXT -->           text for the notebook alone
    <!-- notebook: leave out -->  …  <!-- notebook: end -->    text for the page alone

Examples run the reader's definitions, so imports of ours from the exercise's files are taken out of them.
"""

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.course.notebook.inside import definitions, first_line
from gradus.exercises.declaration import Exercise, exercises_of, reference_of, repository
from gradus.exercises.skeleton import cut
from gradus.phases import PhaseInfo

SECTIONS = ("What you need to know", "The problem", "The idea", "Predict", "Build it", "Check yourself")
"""The page's sections that a notebook has. The page itself has the code, the measurements and what to read next."""
WRITTEN = "Build it"
PARTS = re.compile(
    r"^<!-- notebook: leave out -->\n.*?^<!-- notebook: end -->\n"
    r"|^<!-- notebook: (?P<mark>write|check|run|say)\b ?(?P<of>.*?) ?-->\n"
    r"|^!\[(?P<text>[^\]]*)\]\((?P<figure>[^)\s]+\.svg)\)\n"
    r"|^```python tested\n(?P<code>.*?)^```\n(?:\n?^```text printed\n(?P<printed>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
HINTS = re.compile(r"If you are\s+stuck,\s+add\s+`--hint 1`,\s+`2`\s+or\s+`3`\.")
MATH = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Cell:
    """kind: "markdown" or "code". outputs: what the code gives, as notebook files have it, known without running it."""

    kind: str
    source: str
    outputs: tuple[dict[str, Any], ...] = ()


class Lesson:
    """One page of a phase, on its way to cells. given: the files whose imports have their cell already."""

    def __init__(self, phase: PhaseInfo, page: Path) -> None:
        self.phase = phase
        self.page = page
        self.root = repository(phase)
        self.exercises = exercises_of(phase)
        self.given: set[str] = set()

    def cells(self) -> Iterator[Cell]:
        """Yield the cells of the page's sections, below its title."""
        title, *sections = re.split(r"^(?=## )", self.page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        yield Cell("markdown", title.strip())
        for section in sections:
            heading = section.partition("\n")[0].removeprefix("## ").strip()
            if heading in SECTIONS:
                yield from self.parts(section, written=heading == WRITTEN)

    def parts(self, text: str, *, written: bool) -> Iterator[Cell]:
        """Cut a section into cells. written: its examples run what the reader wrote."""
        at = 0
        for found in PARTS.finditer(text):
            yield from self.said(text[at : found.start()])
            at = found.end()
            if found["mark"]:
                yield from self.marked(found["mark"], " ".join(found["of"].split()))
            elif found["figure"]:
                yield self.drawn(found["figure"], " ".join(found["text"].split()))
            elif found["code"]:
                yield from self.example(found["code"], found["printed"], written=written)
        yield from self.said(text[at:])

    def said(self, text: str) -> Iterator[Cell]:
        """Text, with formulas as notebooks write them and links that lead from their folder."""
        text = HINTS.sub("If you are stuck, give the check `hint=1`, then `2`, then `3`.", text)
        text = MATH.sub(lambda found: f"$$\n{found[1]}$$", text)
        text = LINK.sub(lambda found: f"]({self.from_notebooks(found[1])})", text)
        if text.strip():
            yield Cell("markdown", text.strip())

    def from_notebooks(self, link: str) -> str:
        """A link of the page, from the notebooks' folder."""
        folder = self.page.parent.relative_to(self.root).as_posix()
        return posixpath.normpath(f"../{folder}/{link}")

    def marked(self, mark: str, of: str) -> Iterator[Cell]:
        match mark:
            case "write":
                yield from self.skeletons(of.split())
            case "check":
                yield Cell("code", f'check("{self.phase.name}", In)')
            case "run":
                yield Cell("code", f"run({of!r})")
            case _:
                yield Cell("markdown", of)

    def skeletons(self, names: Iterable[str]) -> Iterator[Cell]:
        """Yield the cells in which the reader writes; before a file's first one, what the file has besides."""
        for name in names:
            exercise = next(one for one in self.exercises if name in definitions(one))
            source = reference_of(self.phase, exercise)
            if exercise.file not in self.given:
                self.given.add(exercise.file)
                yield Cell("code", self.imports(source, exercise))
            yield Cell("code", definition(cut(source, exercise.functions, self.phase.name), name))

    def imports(self, source: str, exercise: Exercise) -> str:
        """The file's imports, except from other exercises, and our definitions that the reader's code uses."""
        tree = ast.parse(source)
        mine = definitions(exercise)
        used = {node.id for each in tree.body if getattr(each, "name", "") in mine for node in ast.walk(each)
                if isinstance(node, ast.Name)}  # fmt: skip
        others = [name for node in tree.body if (name := getattr(node, "name", "")) in used and name not in mine]
        lines = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        lines += [f"from {exercise.module} import {', '.join(others)}"] if others else []
        imports = self.without_ours("\n".join(lines) + "\n").rstrip()
        return f"# your functions need these; they are in {exercise.file_name} already\n{imports}"

    def without_ours(self, code: str) -> str:
        """Drop imports of names that the reader writes."""
        files = {one.module: definitions(one) for one in self.exercises}
        lines = code.splitlines(keepends=True)
        for node in reversed(ast.parse(code).body):
            theirs = files.get(node.module or "", []) if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom) and {one.name for one in node.names} <= {*theirs}:
                del lines[node.lineno - 1 : node.end_lineno]
        return "".join(lines)

    def example(self, code: str, printed: str | None, *, written: bool) -> Iterator[Cell]:
        """Yield an example. Its output is known where ours runs; where the reader's does, it is what should come."""
        if not written:
            stream = {"output_type": "stream", "name": "stdout", "text": (printed or "").splitlines(keepends=True)}
            yield Cell("code", code.rstrip(), (stream,) if printed else ())
            return
        yield Cell("code", self.without_ours(code).strip())
        if printed:
            yield Cell("markdown", f"This is what it should print:\n\n```text\n{printed.rstrip()}\n```")

    def drawn(self, path: str, text: str) -> Cell:
        file = self.page.parent / path
        svg = file.read_text(encoding="utf-8").splitlines(keepends=True)
        shown: dict[str, Any] = {"output_type": "execute_result", "execution_count": None, "metadata": {}}
        shown["data"] = {"image/svg+xml": svg, "text/plain": [text]}
        return Cell("code", f"figure({str(file.relative_to(self.root))!r}, {text!r})", (shown,))


def definition(source: str, name: str) -> str:
    """The text of a function or class at the top of a file."""
    node = next(node for node in ast.parse(source).body if getattr(node, "name", "") == name)
    return "".join(source.splitlines(keepends=True)[first_line(node) - 1 : node.end_lineno]).rstrip()
