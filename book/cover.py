"""The front page: what Gradus is and what was measured, where to begin, what to look at, the chapters and their times.

Its words are in templates/cover.html. The chapters come from the syllabus, what was measured from the README, and the
rest from what it invites to: a run, an engine in one file, an exhibit of the museum. On every page the book's name
leads here.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from book import contents, demos, flat, search, xray
from gradus import phases
from gradus.course import museum
from gradus.course.figures import scene
from gradus.course.views.demos import DEMOS

if TYPE_CHECKING:
    from sphinx.application import Sphinx

COVER = "index"
PICTURE = "cover/three_chats.svg"
SHOWN = "p04"
"""The run and the figure that invite to all runs."""
EXCERPT = "evict"
"""The function that invites to read the engine in one file: an idea in four short lines."""


def setup(app: "Sphinx") -> None:
    app.connect("builder-inited", draw_for_phones)
    app.connect("html-collect-pages", cover)
    app.connect("html-page-context", lead_here)


def draw_for_phones(app: "Sphinx") -> None:
    """Draw the first figure in half its width."""
    file = Path(app.outdir, PICTURE)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(scene.three_chats_narrow().svg(), encoding="utf-8")


def cover(app: "Sphinx") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the page, with no list of its headings at the side."""
    lessons = [(f"phases/{phase.folder}/README", phase, _hours(phase.number)) for phase in phases.available()]
    context = {
        "start": contents.START,
        "facts": facts((contents.ROOT / "README.md").read_text(encoding="utf-8")),
        "chapters": lessons,
        "hours": sum(hours for *_, hours in lessons),
        "repository": repository(),
        "picture": PICTURE,
        "shown": phases.find(SHOWN),
        "flat": flat.PAGE,
        "lines": flat.text().count("\n"),
        "excerpt": flat.excerpt(EXCERPT),
        "exhibits": len(museum.exhibits()),
        "symptom": symptom((contents.ROOT / f"{contents.MUSEUM}.md").read_text(encoding="utf-8")),
        "runs": xray.PHASES,
        "demos": DEMOS,
        "demo": search.anchors_of([demos.HEADING])[0],
        "furo_hide_toc": True,
    }
    yield COVER, context, "cover.html"


def _hours(number: int) -> float:
    """A phase that is not in the syllabus, such as a reader's own, has no estimate."""
    return phases.SYLLABUS[number].hours if number in phases.SYLLABUS else 0


def facts(readme: str) -> list[tuple[str, str]]:
    """The rows of the README's first table, as plain text: a number and its meaning."""
    table = re.search(r"^\| \| \|\n\|---\|---\|\n((?:\|.*\n)+)", readme, re.MULTILINE)
    assert table is not None, "the README opens with what was measured"
    rows = [row.strip("| ").split(" | ") for row in table[1].splitlines()]
    return [(search.plain(number), re.sub(r" \([^()]*\)$", "", search.plain(what))) for number, what in rows]


def symptom(tour: str) -> tuple[str, str]:
    """The museum's first exhibit: its name, and what a user saw."""
    found = re.search(r"^## 1\. (.+)\n\n```text\n((?:(?!```).*\n)+)```", tour, re.MULTILINE)
    assert found is not None, "the tour begins with an exhibit and its symptom"
    return found[1], found[2]


def repository() -> str | None:
    """Where this checkout comes from, as an address for a browser; None for one that was copied from no server."""
    asked = ["git", "-C", str(contents.ROOT), "remote", "get-url", "origin"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return browsable(done.stdout.strip())


def browsable(remote: str) -> str | None:
    """The web page of a git remote, without a name or a token that may be in its address."""
    remote = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", remote)
    parts = urlsplit(remote)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path.removesuffix('.git')}"


def lead_here(app: "Sphinx", page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Make the cover what the theme calls the main page, though Sphinx's own is the page that holds the navigation."""
    context["master_doc"] = COVER
