"""Waits are explained: by a clock or a bar on a terminal, and elsewhere by a line every few seconds."""

import time

import pytest

from gradus.cli import progress
from gradus.cli.progress import Bars, working


@pytest.mark.parametrize("terminal", [True, False])
def test_a_wait_is_explained_on_a_terminal_alone(terminal, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1") if terminal else monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    with working("the tests of p01 run"):
        print("passed")
    out, err = capsys.readouterr()
    assert out == "passed\n" and ("the tests of p01 run" in err) == terminal and ("0:00:00" in err) == terminal


def test_a_bar_says_that_it_starts_before_there_is_anything_to_count(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Bars() as bars:
        bars.begin("loading a model", 20_000_000)
        bars.advance(5_000_000)
    err = capsys.readouterr().err
    assert "starting" in err and err.index("starting") < err.index("loading a model")


@pytest.fixture
def quick(monkeypatch):
    """A pipe, into which a wait of a few hundredths of a second is long."""
    for name in ("FORCE_COLOR", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "LINES_S", 0.02)


def test_a_long_wait_prints_lines_into_a_pipe(quick, capsys):
    with working("the tests of p01 run"):
        time.sleep(0.2)
    first, *more = capsys.readouterr().err.splitlines()
    assert first == "… the tests of p01 run (0 s)" and more


def test_a_long_task_says_how_far_it_is_and_for_how_long(quick, capsys, monkeypatch):
    with Bars() as bars:
        bars.begin("loading a model", 20_000_000)
        bars.advance(5_000_000)
        bars._lines._since -= 7
        time.sleep(0.2)
        bars.begin("compiling the CPU kernels", 156)
        bars.advance(97)
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert "… loading a model, 5 of 20 MB (7 s)" in lines
    assert lines[-1] == "… compiling the CPU kernels, 97 of 156 (0 s)"


def test_a_short_wait_prints_nothing_into_a_pipe(capsys):
    with working("the tests of p01 run"), Bars() as bars:
        bars.begin("loading a model", None)
    assert capsys.readouterr().err == ""
