"""Every command that a page shows runs as it is written, from a clone: here, or where the table says."""

import re
import tomllib

import pytest

from gradus.loading.fetch import catalogue
from tests.commands.clone import SERVERS, Clone
from tests.commands.pages import PAGES, ROOT, SHELL, UNMARKED, Command, commands

SHOWN = [command for page in PAGES for command in commands(page)]

ELSEWHERE = {
    r"make |git clone|source .*activate$|\.venv/bin/pytest|PYTHONPATH=tests/like_a_mac": "CI, and whoever sets this up",
    r"gradus (exercise|check|museum)\b|.*--impl exercises/": "tests/cli, tests/course: they need a solution",
    r"gradus (bench|report|profile|train-heads)\b": "tests/bench, tests/cli, tests/training, for less than minutes",
    r"(PYTHONPATH=src:\. )?python benchmarks/": "tests/benchmarks; some need a GPU and vLLM",
    r".*--device cuda\b": "needs a GPU",
    r"pip install |export CMAKE_ARGS": "test_extras_exist, tests/clients: they install packages",
    r"gradus deploy ray\b": "tests/deploy, with Ray",
    r"lm_eval\b": "tests/clients, with lm-eval",
    r"gradus serve .*--host 0\.0\.0\.0": "tests/cli: it would open a port to the network",
}
"""Commands that are not run here, by pattern, and what runs them or what they need."""

GIVEN = {
    "person.json": '{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}',
    "requests.jsonl": '{"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "Hi", "max_tokens": 4}}\n',
    "book.txt": "It was the best of times, it was the worst of times, it was the age of wisdom. " * 400,
}
"""Files that a reader has."""

QUICK = re.compile(r"gradus (models|phases|keys|serve .*--dry-run)\b")


def is_elsewhere(command: Command) -> bool:
    return any(re.match(pattern, command.text) for pattern in ELSEWHERE)


HERE = [command for command in SHOWN if not is_elsewhere(command)]


def test_the_table_has_no_line_too_many():
    for pattern in ELSEWHERE:
        assert any(re.match(pattern, command.text) for command in SHOWN), pattern


def test_every_command_is_in_a_block_that_says_so():
    """Else nothing here would find it."""
    for page in PAGES:
        assert not UNMARKED.search(page.read_text(encoding="utf-8")), f"{page}: mark its commands as console"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=lambda page: page.name)
def test_a_page_activates_the_environment_before_it_calls_gradus(page):
    """`make serve` puts gradus into .venv, where no terminal finds it by itself."""
    blocks = [text for _, text in SHELL.findall(page.read_text(encoding="utf-8"))]
    uses = [text for text in blocks if re.search(r"^\$ gradus ", text, re.MULTILINE)]
    if uses:
        before = "".join(blocks[: blocks.index(uses[0]) + 1]).partition("$ gradus ")[0]
        assert "$ source .venv/bin/activate" in before


def test_extras_exist_and_come_from_the_clone():
    """The package is on no index: what the pages install is the clone, with extras that it has."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert "gradus-llm[" not in text, page
        for names in re.findall(r"pip install .*'\.\[([\w,-]+)\]'", text):
            assert set(names.split(",")) <= extras.keys(), page


def models(command: Command) -> set[str]:
    """The pulled models that a command needs; without a name it is the default one."""
    named = {
        entry.name for entry in catalogue.entries() if re.search(rf"(?<![:\w.-]){entry.name}(?![\w.-])", command.text)
    }
    needs = re.match(r"(\.venv/bin/)?(gradus (generate|chat|serve)|curl|python -m phases)", command.text)
    return named or ({"smollm2-135m"} if needs and "random:" not in command.text else set())


def skip_without(needed: set[str]) -> None:
    for name in sorted(needed):
        if not next(entry for entry in catalogue.entries() if entry.name == name).pulled:
            pytest.skip(f"{name} is not pulled: gradus pull {name}")


@pytest.fixture
def clone(tmp_path):
    with Clone(tmp_path) as made:
        for name, text in GIVEN.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        yield made


def by_page(found: list[Command]) -> list:
    pages = dict.fromkeys(command.page for command in found)
    return [pytest.param([each for each in found if each.page == page], id=page) for page in pages]


def in_a_moment(command: str) -> str:
    """A dry run with its type named: else it races matrices of the model's own shape, for ten seconds."""
    return f"{command} --dtype float32" if "--dry-run" in command else command


@pytest.mark.slow
@pytest.mark.parametrize("found", by_page([command for command in HERE if QUICK.match(command.text)]))
def test_commands_that_load_nothing_run(clone, found):
    for command in found:
        clone.run(in_a_moment(command.text))


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("found", by_page(HERE))
def test_commands_run_in_their_order(clone, found):
    """A page's servers come before the requests to them. Without one, requests go to the default one."""
    skip_without(set().union(*map(models, found)))
    if not any(SERVERS.match(command.text) for command in found) and any("8000" in each.text for each in found):
        clone.run("gradus serve --model smollm2-135m")
    for command in found:
        clone.run(command.text, seconds=900)
