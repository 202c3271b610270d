"""Which pages the book has, and in which order. A page is named by its path in the repository, without `.md`.

Imports nothing of Sphinx, so that the tests can ask it without.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from gradus import phases
from gradus.exercises.declaration import exercises_of

ROOT = Path(__file__).parents[1]
ABOUT = "README"
START = "phases/p00_baseline/forward_pass"
"""Where the cover sends a reader who is new."""
MUSEUM = "phases/museum/README"
OPEN_TASKS = "docs/open-tasks"

DOCS = (
    *("install", "commands", "models", "serving", "operations", "load", "deploy", "clients", "agents", "tools"),
    *("protocol", "architecture", "parts", "results", "comparisons", "measuring", "speedrun", "glossary"),
)
"""In the order of reading. Other pages of docs/ follow them, then those of docs/design/."""
PROJECT = ("CONTRIBUTING", "SECURITY", "CHANGELOG")
MEASURED = "\n## What we measured\n"
"""A lesson's run and demo stand before this section: by then its commands have been given."""


@dataclass(frozen=True, slots=True)
class Part:
    """Pages under one caption of the navigation."""

    caption: str
    pages: tuple[str, ...]


def parts(root: Path = ROOT) -> tuple[Part, ...]:
    """All pages but those below a chapter. Search ranks pages in this order as well."""
    designs = _found(root, "docs/design/p??.md")
    others = tuple(page for page in _found(root, "docs/design/*.md") if page not in designs)
    known = tuple(f"docs/{name}" for name in DOCS)
    more = tuple(page for page in _found(root, "docs/*.md") if page not in (*known, OPEN_TASKS))
    return (
        Part("The course", (*_found(root, "phases/p*/README.md"), MUSEUM, OPEN_TASKS)),
        Part("The engine", (*known, *more, "deploy/README")),
        Part("Why it is built so", designs + others),
        Part("The project", (ABOUT, "reports/README", *PROJECT)),
    )


def below(page: str, root: Path = ROOT) -> tuple[str, ...]:
    """A page's further pages: the reports, or what else is in a chapter's folder and the folders in it."""
    if page == "reports/README":
        return _found(root, "reports/*/*/report.md")
    folder, _, name = page.rpartition("/")
    if not folder.startswith("phases/") or name != "README":
        return ()
    return tuple(other for other in _found(root, f"{folder}/**/*.md") if other != page)


def pages(root: Path = ROOT) -> tuple[str, ...]:
    """All pages in the order of the navigation."""
    return tuple(page for part in parts(root) for page in pages_of(part, root))


def pages_of(part: Part, root: Path = ROOT) -> tuple[str, ...]:
    """A part's pages, each followed by those below it."""
    return tuple(page for chapter in part.pages for page in (chapter, *below(chapter, root)))


def answers(page: str) -> frozenset[str]:
    """The files that a lesson's reader writes. Where they are asked to, a link to ours would lead to the answer."""
    lesson = next((one for one in phases.available() if page.startswith(f"phases/{one.folder}/")), None)
    return frozenset(task.file for task in exercises_of(lesson)) if lesson else frozenset()


def lesson_of(page: str) -> str | None:
    """The phase, as in p04, whose lesson a page is."""
    folder, _, name = page.rpartition("/")
    phase = folder.removeprefix("phases/")[:3]
    return phase if name == "README" and re.fullmatch(r"p\d\d", phase) else None


def lessons_among(patterns: list[str]) -> frozenset[str]:
    """The phases whose lessons a build includes: its `include_patterns` name every page."""
    return frozenset(filter(None, (lesson_of(pattern.removesuffix(".md")) for pattern in patterns)))


def before_measurements(page: str, text: str, section: str) -> str:
    """A lesson's text with one more section. Raises ValueError where the lesson has no place for it."""
    if text.count(MEASURED) != 1:
        raise ValueError(f"{page}: no place for a run: it has no section{MEASURED.rstrip()!r}")
    return text.replace(MEASURED, section + MEASURED)


def _found(root: Path, pattern: str) -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.glob(pattern)))
