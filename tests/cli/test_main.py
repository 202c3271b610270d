"""Rules for every command: help that teaches, one line for a mistake, exit codes."""

import errno
import inspect
import os
import subprocess
import sys
from pathlib import Path

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
        (
            MemoryError(),
            1,
            "gradus: not enough memory (an allocation failed); is there a limit? `ulimit -v` shows it\n",
        ),
        (
            ImportError("libtorch_cpu.so: failed to map segment from shared object"),
            1,
            "gradus: not enough memory (libtorch_cpu.so: failed to map segment from shared object); is there a limit? "
            "`ulimit -v` shows it\n",
        ),
        (OSError(errno.ENOSPC, "No space left"), 1, "gradus: output cannot be written: No space left\n"),
        (OSError(errno.ENOSPC, "No space left", "a/b"), 1, "gradus: a/b cannot be written: No space left\n"),
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


@pytest.mark.parametrize("error", [ImportError("no module of that name"), OSError(errno.EINVAL, "Invalid argument")])
def test_other_errors_of_the_same_kinds_keep_theirs(gradus, monkeypatch, error):
    def fail(**_):
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(type(error)):
        gradus("phases")


needs_a_full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


@needs_a_full_disk
@pytest.mark.parametrize("arguments", [["models"], ["--version"], ["--help"]])
def test_an_output_on_a_full_disk_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        done = command(*arguments, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, "gradus: output cannot be written: No space left on device\n")


@needs_a_full_disk
@pytest.mark.parametrize(("arguments", "code"), [(["models"], 0), (["bogus"], 2)])
def test_a_full_disk_under_stderr_changes_no_exit_code(arguments, code):
    with open("/dev/full", "w") as full:
        done = command(*arguments, stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == code


@needs_a_full_disk
def test_a_note_that_cannot_be_written_ends_nothing(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        cli.terminal.print_note("loading")
        cli.terminal.print_mistake("a mistake")
        cli.terminal.give_up(full)


def command(*arguments, **streams) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "gradus", *arguments], text=True, timeout=60, **streams)


INTERRUPTED = """
import runpy, signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "gradus.cli":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
runpy.run_module("gradus", run_name="__main__")
"""


def test_ctrl_c_while_the_command_is_being_imported_ends_it_quietly():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_installed_command_is_this_one():
    done = subprocess.run([sys.executable, "-m", "gradus", "phases", "--frob"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradus: ") and done.stderr.count("\n") == 1


def test_a_reader_who_has_seen_enough_ends_it_quietly():
    """`gradus phases | head -1`: no traceback when the pipe closes."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        done = command("phases", stdout=pipe, stderr=subprocess.PIPE)
    assert done.returncode == 1 and "Traceback" not in done.stderr


@pytest.mark.stress
def test_a_reader_who_has_seen_enough_ends_an_answer_quietly(process):
    child = process("generate", "x", "--model", "random:tiny-llama", "--max-tokens", "400", "--ignore-eos")
    child.stdout.read(1)
    child.stdout.close()
    assert child.wait(timeout=60) == 1
    assert "Traceback" not in child.stderr.read()
