"""Notebooks in the folder notebooks/, one for each page that has them. The same pages give the same files.

    python -m gradus.course.notebook.build    # rewrite what is stale

A test builds and compares, so a lesson and its notebook never differ.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from gradus import phases
from gradus.course.notebook.pages import Cell, Lesson
from gradus.errors import GradusError
from gradus.exercises.declaration import repository

PAGES = {
    "p00_forward_pass": ("p00", "forward_pass.md"),
    "p00": ("p00", "README.md"),
    "p01": ("p01", "README.md"),
    "p02": ("p02", "README.md"),
    "p03": ("p03", "README.md"),
}
"""By notebook, the phase and the page in its folder. Later phases need more of a machine than free hosts have."""
ABOUT = """This is [the lesson]({page}) as a notebook: read, predict, run the cells, and write the missing
functions. Start with the cell below. Where the course is not there yet, it clones it and installs what it needs, with
PyTorch for CPUs."""
BEGIN = 'begin()  # opened alone on a host? begin("https://github.com/OWNER/gradus"): the repository that it is from'
CALLS = "from gradus.course.notebook.inside import check, figure, run"
ENDS = """## Where to go on

[The lesson]({page}) goes on with its code and ours next to yours, a run to watch, what we measured,
where the idea loses, and the way from there to the engine that serves. Your functions are in
`exercises/notebook/{phase}`."""


def notebook(name: str) -> str:
    """Build a notebook's file, as JSON. Raises ConfigError for a phase that is not there."""
    phase, page = PAGES[name]
    info = phases.find(phase)
    place = f"../phases/{info.folder}/{page}"
    title, *cells = Lesson(info, info.path / page).cells()
    first = [title, Cell("markdown", ABOUT.format(page=place)), Cell("code", first_cell()), Cell("code", CALLS)]
    last = Cell("markdown", ENDS.format(page=place, phase=info.name))
    made = {
        "cells": [_as_json(number, cell) for number, cell in enumerate([*first, *cells, last])],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def first_cell() -> str:
    """The text of setup.py below its docstring, and the call."""
    source = Path(__file__).with_name("setup.py").read_text(encoding="utf-8")
    begins = ast.parse(source).body[0].end_lineno or 0
    return "".join(source.splitlines(keepends=True)[begins:]).strip() + f"\n\n\n{BEGIN}"


def _as_json(number: int, cell: Cell) -> dict[str, object]:
    made: dict[str, object] = {"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}}
    made["source"] = cell.source.splitlines(keepends=True)
    if cell.kind == "code":
        made |= {"execution_count": None, "outputs": list(cell.outputs)}
    return made


def stale(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the notebooks that differ from what their pages give, with what they should be."""
    for name in PAGES:
        file, built = folder / f"{name}.ipynb", notebook(name)
        if not file.is_file() or file.read_text(encoding="utf-8") != built:
            yield file, built


def main() -> int:
    folder = repository(phases.highest()) / "notebooks"
    try:
        folder.mkdir(exist_ok=True)
        for file, built in list(stale(folder)):
            file.write_text(built, encoding="utf-8")
            print(f"{file}: rewritten")
    except GradusError as error:
        sys.exit(f"notebooks: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
