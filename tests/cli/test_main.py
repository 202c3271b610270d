"""Rules for every command: help that teaches, one line for a mistake, exit codes."""

import inspect
import subprocess
import sys

import pytest

import gradus as package
from gradus import cli
from gradus.errors import CapacityError, ConfigError

COMMANDS = ["generate", "chat", "serve", "models", "pull", "phases", "doctor"]


def test_without_a_command_it_shows_its_help(gradus):
    done = gradus()
    assert done.code == 0
    assert done.out == gradus("--help").out
    assert all(command in done.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_examples_of_it(gradus, command):
    done = gradus(command, "--help")
    assert done.code == 0
    examples = done.out.split("Examples:")[1]
    assert f"gradus {command}" in examples


def test_an_examples_note_is_a_comment_so_that_a_copied_line_works():
    examples = [
        line.strip()
        for command in cli.app.registered_commands
        for line in inspect.getdoc(command.callback).splitlines()
        if line.startswith("  ")
    ]
    assert len(examples) > 40 and all("#" in line for line in examples if "   " in line)


def test_version(gradus):
    assert gradus("--version").out == f"gradus {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], "frobnicate"),
        (["generate"], "prompt"),
        (["generate", "x", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "x", "--no-such-option"], "--no-such-option"),
        (["generate", "x", "--temperature", "-1"], "temperature must be"),
        (["generate", "x", "--max-tokens", "0"], "max_tokens must be"),
        (["generate", "x", "--n", "999"], "n must be"),
        (["generate", "x", "--n", "2", "--stream"], "--stream"),
        (["generate", "x", "--model", "random:no-such-shape"], "no-such-shape"),
        (["generate", "x", "--model", "random:tiny-llama", "--phase", "p99"], "p00"),
        (["generate", "x", "--model", "random:tiny-llama", "--device", "abacus"], "abacus"),
        (["generate", "x", "--model", "/no/such/folder"], "/no/such/folder"),
        (["generate", "", "--model", "random:tiny-llama"], "prompt"),
        (["generate", "x", "--model", "random:tiny-llama", "--max-tokens", "600"], "context 512"),
        (["pull", "no-such-model"], "no-such-model"),
        (["serve", "--model", "random:tiny-llama", "--port", "99999"], "port"),
        (["serve", "--config", "/no/such/file.yaml"], "/no/such/file.yaml"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(gradus, arguments, says):
    done = gradus(*arguments)
    assert (done.code, done.out) == (2, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("gradus: ")
    assert says in last
    assert "Traceback" not in done.err
    assert len([line for line in done.err.splitlines() if line.startswith("gradus:")]) == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("two\n  lines"), 2, "gradus: two lines\n"),
        (CapacityError("full"), 1, "gradus: full\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_exit_codes(gradus, monkeypatch, error, code, line):
    def fail(**_):
        raise error

    monkeypatch.setattr(cli, "app", fail)
    done = gradus("phases")
    assert (done.code, done.err) == (code, line)


def test_a_defect_of_ours_keeps_its_traceback(gradus, monkeypatch):
    monkeypatch.setattr(cli.course.course, "available", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gradus("phases")


def test_the_installed_command_is_this_one():
    done = subprocess.run([sys.executable, "-m", "gradus", "phases", "--frob"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradus: ") and done.stderr.count("\n") == 1


def test_a_reader_who_has_seen_enough_ends_it_quietly(process):
    """`gradus phases | head -1`: no traceback when the pipe closes."""
    child = process("generate", "x", "--model", "random:tiny-llama", "--max-tokens", "400", "--ignore-eos")
    child.stdout.read(1)
    child.stdout.close()
    assert child.wait(timeout=60) == 1
    assert "Traceback" not in child.stderr.read()
