"""The benchmark of the host's part of a step, on a tiny model: times without waiting, and the code that is passed."""

import json
import time

import torch

from benchmarks import host_steps
from gradus.device.transfer import Arrival


def test_a_row_has_the_times_of_steps_and_counts_what_one_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(host_steps, "STEPS", 4)
    monkeypatch.setattr(host_steps, "ROUNDS", 2)
    out, wait = tmp_path / "host_steps.json", Arrival.wait
    asked = "--model random:tiny-llama --device cpu --speculate ngram --rows 1 3 --commit 0 --out"
    assert host_steps.main([*asked.split(), str(out)]) == 0
    assert Arrival.wait is wait, "it is timed no longer"
    made = json.loads(out.read_text())
    assert made["speculate"] == "ngram"
    alone, three = made["rows"]
    assert (alone["rows"], three["rows"]) == (1, 3)
    for row in (alone, three):
        assert len(row["engine_us"]) == len(row["llm_us"]) == 2 and min(row["engine_us"] + row["llm_us"]) > 0
        assert 0 < row["files"] < row["functions"] <= row["calls"]


def test_waiting_is_left_out(monkeypatch):
    monkeypatch.setattr(host_steps, "STEPS", 2)
    monkeypatch.setattr(Arrival, "wait", lambda arrival: time.sleep(0.02))
    arrival = Arrival(torch.device("cpu"))
    with host_steps.Waiting() as waiting:
        assert waiting.without(arrival.wait) < 10_000
        assert waiting.without(lambda: time.sleep(0.02)) > 15_000
