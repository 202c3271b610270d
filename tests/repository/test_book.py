"""The book's pages, without building it: every page is in the navigation, and every link and anchor leads somewhere.

`make book` checks the same as Sphinx sees it; here it costs no installation.
"""

import gzip
import json
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from book import contents, demos, search
from book.progress import Progress
from gradus import phases
from gradus.course.views.demos import DEMOS, Recorded, Shown
from gradus.course.xray.scenes import SCENES

ROOT = contents.ROOT
PAGES = [ROOT / f"{page}.md" for page in contents.pages()]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
NOT_PAGES = {".venv", "build", "node_modules"}


def prose(text: str) -> str:
    """A page without its code, where brackets are no links and # is no heading."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """List the headings of a page, which links can name."""
    return {section.anchor for section in search.sections(page.read_text(encoding="utf-8"))}


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
    assert sorted(PAGES) == sorted([*written, *ROOT.glob("*.md"), ROOT / "deploy" / "README.md"])
    assert len(PAGES) == len(set(PAGES))


def test_chapters_come_in_the_courses_order_and_before_the_documentation():
    course, *others = contents.parts()
    chapters = [f"phases/{phase.folder}/README" for phase in phases.available()]
    assert list(course.pages) == [*chapters, "phases/museum/README", "docs/open-tasks"]
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


def test_where_a_reader_writes_a_file_no_link_leads_to_ours():
    files = contents.answers("phases/p00_baseline/forward_pass")
    assert {"phases/p00_baseline/embedding.py", "phases/p00_baseline/scheduler.py"} < files
    assert "phases/p00_baseline/forward.py" not in files  # written already, and to be read
    assert contents.answers("phases/p07_quantization/calibration") >= {"phases/p07_quantization/awq.py"}
    assert not contents.answers("docs/serving") and not contents.answers("phases/museum/README")


@pytest.mark.parametrize("page", contents.parts()[0].pages[:-2])
def test_every_engine_s_lesson_has_a_run_and_a_place_for_it(page):
    lesson = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    phase = contents.lesson_of(page)
    assert phase in SCENES or not phases.find(phase).has("engine")
    assert "\n## A run\n\n## What we measured\n" in contents.before_measurements(page, lesson, "\n## A run\n")


def test_only_a_lesson_s_first_page_is_the_lesson_and_one_without_the_place_is_refused():
    assert contents.lesson_of("phases/p04_paged_cache/README") == "p04"
    others = ("phases/p00_baseline/forward_pass", "phases/museum/README", "docs/design/p04", "README")
    assert [contents.lesson_of(page) for page in others] == [None] * 4
    with pytest.raises(ValueError, match="page: no place for a run"):
        contents.before_measurements("page", "# A lesson\n", "\n## A run\n")


def test_a_demo_s_section_asks_then_shows_then_answers():
    demo = DEMOS["p04"]
    found = Recorded(Shown(demo, {}, [("steps", "137", "32", "4.3 times fewer")]), "a model", "2 CPU cores")
    section = demos.section(found)
    parts = [
        f"**{demo.question}** 16 requests at once, 8 to 32 tokens in, 8 to 32 out, in p03 and in p04:",
        '<img class="demo" src="../../demo/p04.svg" alt="sequences that run, by step: p03 and p04">',
        demo.look,
        "|  | p03 | p04 |  |\n| --- | ---: | ---: | --- |\n| steps | 137 | 32 | 4.3 times fewer |",
        "One run each of a model on 2 CPU cores.",
    ]
    places = [section.index(part) for part in parts]
    assert places == sorted(places)


def built(name):
    """A module of the book that only a build imports; skipped without Sphinx."""
    pytest.importorskip("sphinx", reason="needs the extra `book`")
    return import_module(f"book.{name}")


def test_the_cover_shows_what_the_readme_says_was_measured():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = built("cover").facts(readme)
    assert len(shown) == 3
    for (number, what), mark in zip(shown, ("tokens/s", "tokens/s", "chapters"), strict=True):
        assert number.endswith(mark) and what and not set("<[]|") & set(number + what)
        assert what.split()[0] in readme
    assert shown[0][0].count("→") == 1


def test_the_cover_shows_the_first_exhibit_and_a_function_that_fits_its_card():
    cover, tour = built("cover"), (ROOT / f"{contents.MUSEUM}.md").read_text(encoding="utf-8")
    name, seen = cover.symptom(tour)
    assert f"## 1. {name}\n" in tour and seen.count("\n") == 2
    excerpt = built("flat").excerpt(cover.EXCERPT)
    assert excerpt.startswith(f"def {cover.EXCERPT}(") and '"""' not in excerpt
    assert max(map(len, excerpt.splitlines())) <= 40 and excerpt.count("\n") <= 6


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("https://name:token@forge.example/us/gradus.git", "https://forge.example/us/gradus"),
        ("git@forge.example:us/gradus.git", "https://forge.example/us/gradus"),
        ("ssh://git@forge.example/us/gradus", "https://forge.example/us/gradus"),
        ("http://localhost:3000/gradus", "http://localhost:3000/gradus"),
        ("/srv/gradus", None),
        ("", None),
    ],
)
def test_the_cover_links_to_where_the_checkout_came_from_without_a_secret(remote, page):
    assert built("cover").browsable(remote) == page


def test_columns_of_words_get_room():
    tables = built("tables")
    assert tables.kind_of(["batch 1: one request, 128 tokens in", "burst"]) == "sentence"
    assert tables.kind_of(["llama-3.1-8b, int4", "p00"]) == "name"
    assert [tables.kind_of(column) for column in (["1,444 (1,437–1,472)"], ["p04", "yes"], [])] == ["", "", ""]
    assert tables.is_whole("qwen3-0.6b") and not tables.is_whole("two words") and not tables.is_whole("x" * 21)


def test_a_quiet_build_says_what_it_does_but_not_all_the_time(capsys):
    now = iter([0.0, 1.0, 4.5, 5.0, 9.0])
    progress = Progress(clock=lambda: next(now))
    for what in ("a", "b", "c", "d"):
        progress.say(what)
    assert capsys.readouterr().err.splitlines() == [f"… still building the book: {what}" for what in ("b", "d")]


def test_a_build_of_some_pages_makes_only_their_runs():
    assert contents.lessons_among(["README.md", "phases/p04_paged_cache/README.md", "docs/load.md"]) == {"p04"}


def test_a_new_page_finds_its_place(tmp_path):
    for page in ("docs/zebra.md", "docs/serving.md", "docs/design/p00.md", "phases/museum/slow/README.md"):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).touch()
    assert contents.parts(tmp_path)[1].pages[-2:] == ("docs/zebra", "deploy/README")
    assert contents.below(contents.MUSEUM, tmp_path) == ("phases/museum/slow/README",)


def test_the_cover_leads_to_pages_that_exist():
    named = re.findall(r"pathto\('([^'_]+)'\)", (ROOT / "book/templates/cover.html").read_text(encoding="utf-8"))
    assert {"docs/serving", "docs/architecture", "docs/measuring"} <= set(named)
    assert {contents.START, *named} <= set(contents.pages())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(page):
    assert not broken(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_link_to_a_page_leads_to_one_of_the_book(page):
    """Sphinx refuses a link to any other Markdown file."""
    paths = [page.parent / path for path, _ in LINK.findall(prose(page.read_text(encoding="utf-8"))) if path]
    assert {path.resolve() for path in paths if path.suffix == ".md"} <= {each.resolve() for each in PAGES}


def test_the_check_for_links_catches(tmp_path):
    (tmp_path / "other.md").write_text("# A title\n\n## Where it loses: `code`, and more\n\n## A title\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#where-it-loses-code-and-more) [c](other.md#a-title-1) [d](https://x.y/z)\n"
        "[e](gone.md) [f](other.md#gone) [g](#gone) [h](other.md#a-title-2) `[i](gone.md)`\n"
        "```text\n[j](gone.md)\n# gone\n```\n"
    )
    assert broken(page) == ["gone.md", "other.md#gone", "#gone", "other.md#a-title-2"]


# -- search ------------------------------------------------------------------------------------------------------------


def found(query: str, known: list[search.Page] | None = None) -> list[dict[str, str]]:
    """Search the book, or the pages given, with static/search.js. Best first."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("runs the search's script, which takes node")
    ask = f"""const results = find(PAGES, {json.dumps(query)}).map(({{ page, title, section, words }}) =>
        ({{ link: page.link, title, heading: section.heading, excerpt: excerpt(section.text, words).join("") }}));
        console.log(JSON.stringify(results));"""
    known = search.pages() if known is None else known
    text = search.script(known) + (ROOT / "book/static/search.js").read_text(encoding="utf-8") + ask
    return json.loads(subprocess.run([node], input=text, capture_output=True, text=True, check=True).stdout)


def shelved(shelf: int, title: str, text: str) -> search.Page:
    return search.Page(f"{title}.html", shelf, "a part", search.sections(f"# {title}\n\n{text}\n"))


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("preemption", "p04: the paged cache"),
        ("radix tree", "p05: prefix cache"),
        ("SERVING", "Serving"),
    ],
)
def test_the_book_is_searched_lessons_first_unless_a_page_is_named_so(query, title):
    assert found(query)[0]["title"] == title


def test_search_goes_by_part_then_by_how_often_and_a_title_counts_more():
    pages = [
        shelved(0, "rare lesson", "evict"),
        shelved(0, "lesson", "evict, evicted and evicting"),
        shelved(0, "other lesson", "the word is not here: revictual"),
        shelved(1, "document", "evict " * 50),
        shelved(1, "what is evicted", ""),
        shelved(2, "why evict", ""),
        shelved(3, "report on what was evicted", ""),
    ]
    assert [result["title"] for result in found("eviction", pages)] == [
        "what is evicted", "lesson", "rare lesson", "why evict", "document", "report on what was evicted",
    ]  # fmt: skip


def test_search_wants_all_words_and_shows_the_section_that_has_most_of_them():
    text = "a page\n\n## First\n\na page, a page, a page\n\n## Second\n\n" + "word " * 99 + "one (page) of a *pool*\n"
    (result,) = found("Pool (pages)", [shelved(0, "title", text), shelved(0, "half", "a pool")])
    assert (result["title"], result["heading"]) == ("title", "Second")
    assert result["excerpt"].startswith("… word") and result["excerpt"].endswith("one (page) of a pool")
    assert found(" ( ", [shelved(0, "title", text)]) == []


def test_text_to_search_has_no_markup_and_headings_in_code_are_code():
    markdown = """# A `title`

> **See** [a lesson](other.md#part), *twice*.<!-- cpu/p01: x -->

| name | meaning |
|---|---|
| `a` | 2 * 3 |

```console
# no heading
```
"""
    text = "See a lesson, twice. name · meaning. a · 2 * 3. # no heading"
    assert search.sections(markdown) == [search.Section("a-title", "A title", text)]


def test_the_text_to_search_stays_small_enough_for_a_phone():
    script = search.script(search.pages()).encode()
    assert len(script) < 1_350_000 and len(gzip.compress(script)) < 430_000
