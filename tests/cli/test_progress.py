"""Waits are explained on a terminal, with a clock, and leave nothing in a pipe."""

import pytest

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
