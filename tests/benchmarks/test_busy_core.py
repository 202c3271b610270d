"""The busy-core benchmark: its report on known rates, and one round on a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.busy_core import GRADUS, TORCH, Contender, confine, parse, results
from gradus.device.threads import BRIEFLY

ROOT = Path(__file__).parents[2]


def test_a_summary_compares_medians_with_the_same_rounds_of_torchs_own():
    spins = Contender("p01", TORCH, {}, 2, idle=[100, 50, 80], busy=[30, 20, 25])
    sleeps = Contender("p01", GRADUS, BRIEFLY, 2, idle=[95, 45, 76], busy=[60, 30, 57])
    first, second = (row["summary"] for row in results([spins, sleeps], {})["contenders"])
    assert first == {"idle_tok_s": 80, "busy_tok_s": 25, "kept": 0.312, "idle_of_torchs_own": 1.0}
    assert second["kept"] == 0.75 and second["idle_of_torchs_own"] == 0.95


def test_a_setting_to_try_is_its_own_name():
    assert parse(["GOMP_SPINCOUNT=1000"]) == [("GOMP_SPINCOUNT=1000", {"GOMP_SPINCOUNT": "1000"})]


def test_a_system_that_cannot_confine_a_process_gets_one_line(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pytest.raises(SystemExit, match="measure on Linux"):
        confine(2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux keeps a process to some cores")
@pytest.mark.stress  # eight processes, four of which another one keeps from their core
def test_it_measures_every_contender_idle_and_busy(tmp_path):
    out = tmp_path / "busy.json"
    command = [sys.executable, "benchmarks/busy_core.py", "--model", "random:tiny-llama", "--engine", "p01"]
    command += ["--rounds", "1", "--tokens", "4", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["processor"] and found["model"] == "random:tiny-llama"
    assert [row["environment"] for row in found["contenders"]] == [{}, BRIEFLY]
    assert all(len(row["idle"]) == len(row["busy"]) == 1 and row["idle"][0] > 0 for row in found["contenders"])
