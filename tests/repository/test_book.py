"""The book's pages, without building it: every page is in the navigation, and every link and anchor leads somewhere.

`make book` checks the same as Sphinx sees it; here it costs no installation.
"""

import re
from pathlib import Path

import pytest

from book import contents
from gradus import phases

ROOT = contents.ROOT
PAGES = [ROOT / f"{page}.md" for page in contents.pages()]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
NOT_PAGES = {".venv", "build", "node_modules"}


def prose(text: str) -> str:
    """A page without its code, where brackets are no links and # is no heading."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What can be linked to in a page: its headings, as GitHub names them, a repeated one with a number."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def broken(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there."""
    wrong = []
    for path, anchor in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        target = page.parent / path if path else page
        if not target.is_file() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(f"{path}#{anchor}" if anchor else path)
    return wrong


def test_every_page_is_in_the_navigation_once():
    written = [
        path
        for folder in ("docs", "phases", "reports")
        for path in (ROOT / folder).rglob("*.md")
        if NOT_PAGES.isdisjoint(path.parts)
    ]
    assert sorted(PAGES) == sorted([*written, *ROOT.glob("*.md")])
    assert len(PAGES) == len(set(PAGES))


def test_chapters_come_in_the_courses_order_and_before_the_documentation():
    course, *others = contents.parts()
    assert list(course.pages) == [f"phases/{phase.folder}/README" for phase in phases.available()]
    assert not any(page.startswith("phases/") for part in others for page in part.pages)


def test_a_chapter_is_followed_by_its_further_pages(tmp_path):
    folder = tmp_path / "phases" / "p00_first"
    folder.mkdir(parents=True)
    for name in ("README.md", "more.md", "even_more.md", "engine.py"):
        (folder / name).touch()
    assert contents.below("phases/p00_first/README", tmp_path) == (
        "phases/p00_first/even_more",
        "phases/p00_first/more",
    )
    assert contents.below("phases/p00_first/more", tmp_path) == ()


def test_no_two_pages_of_a_part_have_the_same_title_apart_from_the_phase():
    for part in contents.parts():
        titles = [(ROOT / f"{page}.md").read_text(encoding="utf-8").splitlines()[0] for page in part.pages]
        assert all(title.startswith("# ") for title in titles)
        assert len({re.sub(r"^# (p\d\d: )?", "", title) for title in titles}) == len(titles)


def test_the_cover_leads_to_pages_that_exist():
    named = re.findall(r"pathto\('([^'_]+)'\)", (ROOT / "book/templates/cover.html").read_text(encoding="utf-8"))
    assert {"docs/serving", "docs/architecture", "docs/measuring"} <= set(named)
    assert {contents.START, *named} <= set(contents.pages())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(page):
    assert not broken(page)


def test_the_check_for_links_catches(tmp_path):
    (tmp_path / "other.md").write_text("# A title\n\n## Where it loses: `code`, and more\n\n## A title\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#where-it-loses-code-and-more) [c](other.md#a-title-1) [d](https://x.y/z)\n"
        "[e](gone.md) [f](other.md#gone) [g](#gone) [h](other.md#a-title-2) `[i](gone.md)`\n"
        "```text\n[j](gone.md)\n# gone\n```\n"
    )
    assert broken(page) == ["gone.md", "other.md#gone", "#gone", "other.md#a-title-2"]
