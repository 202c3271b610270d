"""What the documentation shows works: every ```python tested block runs, those of a page one after the other."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from gradus import cli
from gradus.server.config import ServerConfig
from gradus.server.schemas import GenerateRequest

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


# -- commands ----------------------------------------------------------------------------------------------------------


def commands(text: str) -> list[str]:
    """Every `gradus …` line: after a prompt on a page, indented in a help text. Without comments, pipes, redirects."""
    found = re.findall(r"^(?:\$ | +)(?:[A-Z_]+=\S+ )?(gradus .*)$", text, flags=re.MULTILINE)
    return [re.split(r"\s{2,}| [|<>#] ", line)[0] for line in found]


SHOWN = {str(page.relative_to(ROOT)): commands(page.read_text(encoding="utf-8")) for page in PAGES}
SHOWN |= {f"gradus {info.callback.__name__}": commands(info.callback.__doc__) for info in cli.app.registered_commands}
SHOWN["gradus"] = commands(cli.gradus_command.__doc__)


@pytest.mark.parametrize("line", [line for lines in SHOWN.values() for line in lines])
def test_every_command_that_is_shown_can_be_given(line):
    """It is parsed as the command line would be, and not run."""
    group = typer.main.get_command(cli.app)
    name, *arguments = shlex.split(line)[1:]
    if name == "--help":
        return
    command = group.commands[name]
    if "--help" not in arguments:
        command.make_context(name, arguments)


def test_commands_are_found_where_they_are_shown():
    assert len(SHOWN["README.md"]) >= 6
    assert all(len(SHOWN[f"gradus {info.callback.__name__}"]) >= 2 for info in cli.app.registered_commands)


def test_the_request_in_the_readme_is_one_that_the_server_takes():
    (body,) = re.findall(r"/generate .*? -d '(.*?)'", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    request = GenerateRequest.parse(json.loads(body), ServerConfig())
    assert request.prompt and request.params.max_tokens == 40
