"""What the documentation shows works: every ```python tested block runs, those of a page one after the other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "phases").rglob("*.md")])
BLOCK = re.compile(r"^```python(.*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, mark: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [code for marks, code in found if (mark in marks.split())]


TESTED = [page for page in PAGES if blocks(page, "tested")]


def run(page: Path, model: str | None) -> None:
    """Run a page's blocks in one namespace; `model` stands in for the real default model."""
    namespace: dict = {"__name__": page.stem}
    for code in blocks(page, "tested"):
        if model is not None:
            code = code.replace('"smollm2-135m"', f'"{model}"')
        exec(compile(code, str(page), "exec"), namespace)


def test_the_pages_that_show_code_are_among_them():
    assert {"README.md", "parts.md"} <= {page.name for page in TESTED}


@pytest.mark.parametrize("page", TESTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(page):
    run(page, model="random:tiny-llama")


@pytest.mark.weights("smollm2-135m")
@pytest.mark.parametrize("page", TESTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run_with_the_model_they_name(page):
    run(page, model=None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]
