"""The script that times starts and wakes: its stages add up, and it runs from end to end on a tiny model."""

import json
import sys

import pytest

from benchmarks import start_to_first_token as script
from gradus.errors import ConfigError


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


def test_a_start_and_a_wake_are_timed_from_end_to_end(monkeypatch, tmp_path, capsys):
    out = tmp_path / "start.json"
    options = ["--model", "random:tiny-llama", "--repeats", "1", "--prompt", "4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["script", *options, "--", "--device", "cpu", "--cache-tokens", "512"])
    assert script.main() == 0
    made = json.loads(out.read_text())
    cases = made["models"]["random:tiny-llama"]["cases"]
    for (sample,) in cases.values():
        assert sample["first_token_s"] == pytest.approx(sum(sample["stages"].values()), abs=0.01)
        assert "starting the engine" in sample["stages"]
    assert script.FIRST_TOKEN in cases["warm"][0]["stages"]  # a wake's may fall between two looks
    assert 20 < cases["wake"][0]["asleep_mib"] < 200  # the front end alone; with an engine, it would be more
    assert "| random:tiny-llama | wake |" in capsys.readouterr().out
