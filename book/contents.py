"""Which pages the book has, and in which order. A page is named by its path in the repository, without `.md`.

Imports nothing but the standard library, so that the tests can ask it without Sphinx.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = "README"

DOCS = (
    *("install", "commands", "serving", "architecture", "parts"),
    *("results", "comparisons", "measuring", "glossary"),
)
"""In the order of reading; docs/design/ follows them."""
PROJECT = ("CONTRIBUTING", "SECURITY", "CHANGELOG")


@dataclass(frozen=True, slots=True)
class Part:
    """Pages under one caption of the navigation."""

    caption: str
    pages: tuple[str, ...]


def parts(root: Path = ROOT) -> tuple[Part, ...]:
    """Everything but the home page and what stands below a chapter."""
    return (
        Part("The course", (*_found(root, "phases/p*/README.md"), "phases/museum/README")),
        Part("The engine", tuple(f"docs/{name}" for name in DOCS)),
        Part("Why it is built so", _found(root, "docs/design/*.md")),
        Part("The project", ("reports/README", *PROJECT)),
    )


def below(page: str, root: Path = ROOT) -> tuple[str, ...]:
    """A page's further pages: the reports, or what else is in a chapter's folder."""
    if page == "reports/README":
        return _found(root, "reports/*/*/report.md")
    folder, _, name = page.rpartition("/")
    if not folder.startswith("phases/") or name != "README":
        return ()
    return tuple(other for other in _found(root, f"{folder}/*.md") if other != page)


def pages(root: Path = ROOT) -> tuple[str, ...]:
    """All pages in the order of the navigation, the home page first."""
    listed = [page for part in parts(root) for page in part.pages]
    return (HOME, *(page for chapter in listed for page in (chapter, *below(chapter, root))))


def _found(root: Path, pattern: str) -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.glob(pattern)))
