"""The book as a reader sees it: some of its pages, built, in Chromium on a phone, a small and a usual screen.

Wide tables, code and figures scroll by themselves; the page never does. Skipped without Sphinx or Chromium.
"""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from book import contents
from tests.server.page.browser import BROWSER, Browser

pytestmark = pytest.mark.slow

LESSONS = ("phases/p04_paged_cache/README", "phases/p11_structured_output/README")
BUILT = ("README", "phases/p00_baseline/forward_pass", *LESSONS, "docs/results", "docs/comparisons")
MADE = ("index", "search", "flat/p06", "source/phases/p11_structured_output/masks.py")
PHONE, SMALL, USUAL, LARGE = 390, 1000, 1440, 1920

OVERFLOWING = """(() => {
  const scrolls = (one) =>
    one && (/auto|scroll|hidden/.test(getComputedStyle(one).overflowX) || scrolls(one.parentElement));
  const wide = [...document.querySelectorAll("article *, article")].filter((one) =>
    one.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !scrolls(one.parentElement));
  const page = document.scrollingElement.scrollWidth - document.documentElement.clientWidth;
  return wide.map((one) => one.outerHTML.slice(0, 100)).concat(page > 0 ? [`the page, by ${page} px`] : []);
})()"""
SWALLOWED = """(() => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  const swallows = (one) => one.innerText.replaceAll("\\n", " ") !== one.textContent;
  return [...document.querySelectorAll("article code")].filter(swallows).map((one) => one.outerHTML);
})()"""
CUT = """(selector) => [...document.querySelectorAll(selector)]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText.slice(0, 100))"""
LINES = """(selector) => [...document.querySelectorAll(selector)]
  .map((one) => ({ text: one.innerText, lines: one.clientHeight / parseFloat(getComputedStyle(one).lineHeight) }))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if BROWSER is None:
        pytest.skip("needs Chromium")
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The folder of a book that has a few pages: links to the others lead nowhere, which is not its subject."""
    if find_spec("furo") is None or find_spec("myst_parser") is None:
        pytest.skip("needs the extra `book`")
    folder = tmp_path_factory.mktemp("book")
    pages = f"include_patterns={','.join(f'{page}.md' for page in BUILT)}"
    command = [sys.executable, "-m", "sphinx", "--quiet", "--conf-dir", "book", "--doctree-dir", str(folder / "trees")]
    done = subprocess.run(
        [*command, "-D", pages, ".", str(folder / "book")], cwd=contents.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "book"


@pytest.fixture(scope="module")
def seen(browser, book):
    """seen(page, width, script) → the script's value on that page."""

    def look(page, width, script, dark=False):
        with browser.tab((book / f"{page}.html").as_uri(), width=width, dark=dark) as tab:
            return tab.run(script)

    return look


@pytest.mark.parametrize("width", [PHONE, SMALL, USUAL, LARGE])
@pytest.mark.parametrize("page", [*BUILT, *MADE])
def test_no_page_is_wider_than_its_screen(seen, page, width):
    assert seen(page, width, OVERFLOWING) == []


@pytest.mark.parametrize("page", LESSONS)
def test_code_in_a_sentence_keeps_its_blanks(seen, page):
    assert seen(page, USUAL, SWALLOWED) == []


def test_there_are_blanks_to_keep(seen):
    begins = "[...document.querySelectorAll('article code')].filter((one) => one.textContent.startsWith(' ')).length"
    assert seen(LESSONS[1], USUAL, begins) >= 1


@pytest.mark.parametrize("width", [PHONE, USUAL])
@pytest.mark.parametrize("page", LESSONS)
def test_no_code_and_no_printed_table_wraps(seen, page, width):
    kinds = (
        "[...new Set([...document.querySelectorAll('.highlight pre')].map((one) => getComputedStyle(one).whiteSpace))]"
    )
    assert seen(page, width, kinds) == ["pre"]


@pytest.mark.parametrize("page", LESSONS)
def test_no_code_of_a_lesson_is_cut_on_a_usual_screen(seen, page):
    assert seen(page, USUAL, f"({CUT})('.highlight pre')") == []
    assert seen(page, PHONE, f"({CUT})('.highlight pre')")  # there it scrolls


@pytest.mark.parametrize("page", ["docs/results", "docs/comparisons"])
def test_tables_of_results_show_their_last_column_on_a_usual_screen(seen, page):
    assert seen(page, USUAL, f"({CUT})('.table-wrapper')") == []


def test_no_cell_of_a_comparison_is_a_tower(seen):
    cells = seen("docs/comparisons", USUAL, f"({LINES})('article td p')")
    assert len(cells) > 100 and not [cell["text"] for cell in cells if cell["lines"] > 4]


@pytest.mark.parametrize("width", [USUAL, LARGE])
def test_sentences_end_where_the_eye_finds_the_next_line(seen, width):
    """Characters per line, of paragraphs that are long enough to count."""
    paragraphs = [
        one for one in seen(LESSONS[0], width, f"({LINES})('article section > p')") if one["text"] and one["lines"] > 3
    ]
    assert len(paragraphs) > 10
    assert 60 < sum(len(one["text"]) for one in paragraphs) / sum(one["lines"] for one in paragraphs) < 90


def test_a_figure_on_a_phone_keeps_its_size_scrolls_and_says_so(seen):
    script = """[...document.querySelectorAll("article p:has(> img:not(.demo))")].map((one) => ({
      scrolls: getComputedStyle(one).overflowX === "auto" && one.scrollWidth > one.clientWidth,
      says: getComputedStyle(one, "::before").content,
      width: one.querySelector("img").clientWidth }))"""
    figures = seen(LESSONS[0], PHONE, script)
    assert len(figures) >= 3
    assert all(one["scrolls"] and "swipe" in one["says"] and one["width"] >= 600 for one in figures)
    assert not any("swipe" in one["says"] for one in seen(LESSONS[0], SMALL, script))


def test_a_formula_scrolls_sideways_alone(seen):
    script = """[...document.querySelectorAll(".formula")].map((one) => one.scrollHeight <= one.clientHeight)"""
    found = seen("phases/p00_baseline/forward_pass", USUAL, script)
    assert len(found) >= 3 and all(found)


def test_what_is_cut_has_a_shadow_at_its_edge_by_day_and_by_night(seen):
    script = "getComputedStyle(document.querySelector('.highlight pre')).backgroundImage"
    for dark in (False, True):
        assert seen(LESSONS[0], PHONE, script, dark).count("linear-gradient") == 4


def test_a_phone_gets_the_narrow_picture_on_the_cover(seen):
    script = """(() => { const one = document.querySelector(".cover picture img");
      return [one.currentSrc.split("/").at(-2), one.naturalWidth > 0, one.clientWidth <= innerWidth]; })()"""
    assert seen("index", PHONE, script) == ["cover", True, True]
    assert seen("index", USUAL, script) == ["_images", True, True]
