"""The script that times starts and wakes: its stages add up, and it runs from end to end on a tiny model."""

import json
import sys

import pytest

from benchmarks import start_to_first_token as script
from gradus.errors import ConfigError
from tests.pairwise import first


def test_stages_add_up_to_the_whole_even_where_one_returns(monkeypatch):
    now = iter((1.0, 3.0, 4.0, 4.5))
    monkeypatch.setattr(script.time, "monotonic", lambda: next(now))
    clock = script.Clock(0.0, "a")
    for stage in ("b", "a", "c"):
        clock.at(stage)
    assert clock.sample() == {"first_token_s": 4.5, "stages": {"a": 2.0, "b": 2.0, "c": 0.5}}


def test_a_cache_that_cannot_be_dropped_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(script, "DROP_CACHES", tmp_path / "missing" / "drop_caches")
    with pytest.raises(ConfigError, match=r"cannot be written .* run as root, or without cold"):
        script.drop_caches()


@pytest.mark.parametrize("cases", first([["wake"], ["warm", "wake"]]), ids="-".join)
def test_a_start_and_a_wake_are_timed_from_end_to_end(cases, monkeypatch, tmp_path, capsys):
    """The wake's server has been timed as it started, too. There are few looks: each takes both sides' time."""
    monkeypatch.setattr(script, "LOOK_S", 0.2)
    monkeypatch.setattr(script, "start", noted := Noted(script.start))
    out = tmp_path / "start.json"
    options = ["--model", "random:tiny-llama", "--cases", *cases, "--repeats", "1", "--prompt", "4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["script", *options, "--", "--device", "cpu", "--cache-tokens", "512"])
    assert script.main() == 0
    made = json.loads(out.read_text())
    found = made["models"]["random:tiny-llama"]["cases"]
    assert [*found] == cases
    (woken,) = found["wake"]
    for sample in (*noted.samples, woken):
        assert sample["first_token_s"] == pytest.approx(sum(sample["stages"].values()), abs=0.01)
        assert "starting the engine" in sample["stages"]
    assert all(
        script.FIRST_TOKEN in sample["stages"] for sample in noted.samples
    )  # a wake's may fall between two looks
    assert found.get("warm", []) == noted.samples[:-1]
    assert 20 < woken["asleep_mib"] < 200  # the front end alone; with an engine, it would be more
    assert "| random:tiny-llama | wake |" in capsys.readouterr().out


class Noted:
    """A function that keeps its results."""

    def __init__(self, function):
        self.function, self.samples = function, []

    def __call__(self, *arguments):
        self.samples.append(self.function(*arguments))
        return self.samples[-1]
