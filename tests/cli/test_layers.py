"""`--help` shows what a first call needs; `--help-all` shows every option."""

import re

import pytest
import typer
from typer.testing import CliRunner

from gradus import cli

GROUP = typer.main.get_command(cli.app)


def shown(command: str, flag: str) -> tuple[set[str], str]:
    """The options that help shows, and all of it."""
    done = CliRunner().invoke(cli.app, [command, flag], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    return set(re.findall(r"│ +(--[\w-]+)", done.output)), done.output


@pytest.mark.parametrize("command", cli.FIRST)
def test_ten_options_come_first_and_all_when_asked(command):
    usual, text = shown(command, "--help")
    every, whole = shown(command, "--help-all")
    assert len(usual - {"--help"}) <= 11 and usual < every
    assert len(every) == len([one for one in GROUP.commands[command].params if one.opts[0].startswith("-")]) + 1
    assert f"{len(every - usual)} more options: gradus {command} --help-all" in text
    assert "more options" not in whole and "Examples:" in whole


@pytest.mark.parametrize("command", cli.FIRST)
def test_every_option_that_comes_first_exists(command):
    assert cli.FIRST[command].usual <= {one.name for one in GROUP.commands[command].params}


def test_after_two_dashes_it_is_text():
    done = CliRunner().invoke(
        cli.app, ["generate", "--model", "random:tiny-llama", "--max-tokens", "1", "--", "--help-all"]
    )
    assert "Usage" not in done.output
