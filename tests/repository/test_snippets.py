"""The documentation's examples work: every ```python tested block runs, those of a page one after the other."""

import ast
import json
import os
import re
import shlex
from pathlib import Path
from unittest import mock

import pytest

from gradus import cli
from gradus.course import printed
from gradus.server.api.generate import Generate
from gradus.server.config import ServerConfig
from tests.repository.test_statements import command_line

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "phases").rglob("*.md")])
FENCED = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # language, marks, text
CONTINUED = re.compile(r" \\\n +")
BLOCKS = {"README.md": 1, "docs/parts.md": 13, "docs/serving.md": 1}  # those that run, on each page but the lessons


def blocks(text: str, *, tested: bool) -> list[str]:
    """The Python on a page that is marked as tested, or the Python that is not."""
    found = FENCED.findall(text)
    return [code for language, marks, code in found if language == "python" and ("tested" in marks.split()) == tested]


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


TESTED = [page for page in PAGES if blocks(read(page), tested=True)]


def run(page: Path, model: str | None) -> None:
    """Run a page's blocks one after the other; `model` replaces the real default model, whose output differs.

    What a block prints must be what the page shows: `python -m gradus.course.printed` renews it.
    """
    running = printed.Page(page.stem)
    with mock.patch.dict(os.environ):
        for block in printed.blocks(read(page)):
            code = block.code if model is None else block.code.replace(DEFAULT, f'"{model}"')
            out = running.run(code)
            if block.printed is not None and code == block.code:
                assert out == block.printed, f"{page}: python -m gradus.course.printed renews it"


def test_every_block_of_every_page_is_found_whole():
    pages = {str(page.relative_to(ROOT)): page for page in TESTED if "phases" not in page.parts}
    assert {name: len(blocks(read(page), tested=True)) for name, page in pages.items()} == BLOCKS
    for page in TESTED:
        found = printed.blocks(read(page))
        assert len(found) == len(blocks(read(page), tested=True)) == read(page).count("```python tested\n"), page
        assert sum(block.printed is not None for block in found) == read(page).count("```text printed\n"), page
        assert not any("```" in block.code for block in found), page


DEFAULT = '"smollm2-135m"'
PAGE = """# A page

```python tested
value = 1
```

```python
value = 2
```

```console
$ value = 3
```

```python tested
assert value == {expected}
```
"""


def test_a_pages_blocks_run_in_order_and_only_those_that_are_marked(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(expected=1))
    run(page, model=None)


def test_output_that_is_not_what_the_code_prints_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python tested\nprint(2)\n```\n\n```text printed\n3\n```\n")
    with pytest.raises(AssertionError, match=r"gradus\.course\.printed renews it"):
        run(page, model=None)


def test_a_broken_block_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(expected=2))
    with pytest.raises(AssertionError):
        run(page, model=None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_is_not_run_is_python_at_least(page):
    for code in blocks(read(page), tested=False):
        ast.parse(code)


@pytest.mark.parametrize("page", TESTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(page):
    run(page, model="random:tiny-llama")


@pytest.mark.weights("smollm2-135m")
@pytest.mark.parametrize("page", TESTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run_with_the_model_they_name(page):
    run(page, model=None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", FENCED.sub("", read(page)))  # kernel[grid](x) is none
    assert not [link for link in links if not (page.parent / link).exists()]


# -- commands ----------------------------------------------------------------------------------------------------------


def commands(text: str) -> list[str]:
    """Every `gradus …` line, with a prompt or indented or neither. Without comments, pipes, redirects.

    A line that goes on below a backslash is one line.
    """
    found = re.findall(r"^(?:\$ | +)?(?:[A-Z_]+=\S+ )?(gradus .*)$", CONTINUED.sub(" ", text), flags=re.MULTILINE)
    return [re.split(r"\s{2,}| [|<>#] ", line)[0] for line in found]


def shells(text: str) -> str:
    """Return the shell commands of a page."""
    return "\n".join(code for language, _, code in FENCED.findall(text) if language in ("console", "bash"))


SHOWN = {str(page.relative_to(ROOT)): commands(shells(read(page))) for page in PAGES}
SHOWN |= {f"gradus {info.callback.__name__}": commands(info.callback.__doc__) for info in cli.app.registered_commands}
SHOWN["gradus"] = commands(cli.gradus_command.__doc__)


@pytest.mark.parametrize("line", [line for lines in SHOWN.values() for line in lines])
def test_every_command_that_is_shown_can_be_given(line):
    """It is parsed as the command line would be, and not run."""
    group = command_line()
    name, *arguments = shlex.split(line)[1:]
    if name == "--help":
        return
    command = group.commands[name]
    if "--help" not in arguments:
        command.make_context(name, arguments)


def test_commands_are_found_where_they_are_shown():
    assert commands("$ gradus load --seed 1 \\\n    --requests 2    # both\n") == ["gradus load --seed 1 --requests 2"]
    assert len(SHOWN["docs/commands.md"]) >= 6
    assert all(len(lines) >= 3 for page, lines in SHOWN.items() if re.fullmatch(r"phases/p\d\d_\w+/README.md", page))
    assert all(len(SHOWN[f"gradus {info.callback.__name__}"]) >= 2 for info in cli.app.registered_commands)


def test_the_request_in_the_readme_is_one_that_the_server_takes():
    (body,) = re.findall(r"/generate .*? -d '(.*?)'", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    request = Generate.parse(json.loads(body), ServerConfig())
    assert request.ask.prompt and request.ask.params.max_tokens == 40
