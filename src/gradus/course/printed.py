"""Output on the lessons' pages: each `python tested` block runs, and the `text printed` block after it is its output.

    python -m gradus.course.printed            # run all pages that show output, and rewrite what is stale
    python -m gradus.course.printed PAGE …     # these pages

A test runs the pages and compares. The code of a page is one module, in the order of its blocks.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from pathlib import Path
from types import ModuleType

from gradus import phases
from gradus.errors import ConfigError, GradusError
from gradus.exercises.declaration import repository

BLOCK = re.compile(
    r"^```python tested\n(?P<code>.*?)^```\n(?:\n?^```text printed\n(?P<printed>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Block:
    """Code that runs, and its output on the page; None if the page shows no output."""

    code: str
    printed: str | None


def blocks(text: str) -> list[Block]:
    return [Block(found["code"], found["printed"]) for found in BLOCK.finditer(text)]


class Page:
    """Runs blocks one after the other in one module, each from a separate file, so that errors name their lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module: ModuleType | None = None
        self._blocks = 0

    def run(self, code: str) -> str:
        """Run the code, and return its output."""
        self._blocks += 1
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()) as printed:
            file = Path(folder) / f"{self.name}_block_{self._blocks}.py"
            file.write_text(code, encoding="utf-8")
            spec = spec_from_file_location(self.name, file)
            assert spec is not None and spec.loader is not None
            self.module = self.module or module_from_spec(spec)
            spec.loader.exec_module(self.module)
        return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def refreshed(text: str, name: str = "page") -> str:
    """Return the page's text with every `text printed` block renewed."""
    page = Page(name)

    def renew(found: re.Match[str]) -> str:
        out = page.run(found["code"])
        if found["printed"] is None:
            return found[0]
        start, end = (place - found.start() for place in found.span("printed"))
        return found[0][:start] + out + found[0][end:]

    return BLOCK.sub(renew, text)


def shown(root: Path) -> Iterator[Path]:
    """List the pages that show their code's output."""
    for page in sorted(root.glob("phases/*/*.md")):
        if any(block.printed is not None for block in blocks(page.read_text(encoding="utf-8"))):
            yield page


def rewrite(page: Path) -> bool:
    """Renew a page. Returns whether it was stale. Raises ConfigError if there is no such page."""
    if not page.is_file():
        raise ConfigError(f"there is no page {page}: give a lesson's README.md, or no page for all of them")
    text = page.read_text(encoding="utf-8")
    fresh = refreshed(text, page.parent.name)
    if fresh != text:
        page.write_text(fresh, encoding="utf-8")
    return fresh != text


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the code on the lessons' pages and renew the output they show.")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="by default every page that shows output")
    asked = parser.parse_args()
    try:
        for page in asked.pages or shown(repository(phases.highest())):
            print(f"{page}: {'rewritten' if rewrite(page) else 'current'}")
    except GradusError as error:
        sys.exit(f"printed: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
