"""The benchmark of host memory behind a GPU's cache runs on a CPU, and measures what its rows say."""

import json

import pytest
import torch

from benchmarks import host_tier
from gradus.errors import ConfigError


def test_a_prefix_is_computed_once_and_then_comes_from_where_the_row_says(capsys):
    with host_tier.allowed_on("cpu"):
        row = host_tier.measured("tiny-llama", ["first_token", "correct"], host_tier.QUICK, "cpu", profiled=True)
    found = row["first_token"]
    assert {name: len(samples) for name, samples in found["samples_ms"].items()} == dict.fromkeys(
        host_tier.SOURCES, host_tier.REPEATS
    )
    assert found["lost"] == [0, 0] and found["of_computed"]["computed"] == 1
    assert all(row["correct"][kept]["same"] and row["correct"][kept]["came_back"] > 300 for kept in ("auto", "fp8"))
    assert list(row["took_s"]) == ["start", "first_token", "correct", "correct_fp8"]
    assert "first token, disk" in capsys.readouterr().err


def test_answers_that_differ_fail_the_script_and_models_before_a_failure_are_kept(monkeypatch, tmp_path):
    out = tmp_path / "new" / "found.json"
    monkeypatch.setattr(host_tier, "measured", lambda *_: {"correct": {"auto": {"same": False}}})
    assert host_tier.main(["--quick", "--out", str(out)]) == 1
    assert json.loads(out.read_text())["rows"] == [{"correct": {"auto": {"same": False}}}]
    monkeypatch.setattr(host_tier, "measured", lambda *_: {"throughput": {}})
    assert host_tier.main(["--quick"]) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_ends_in_one_line():
    with pytest.raises(ConfigError, match="no CUDA GPU is usable here"):
        host_tier.main([])


def test_parts_that_do_not_exist_are_refused_in_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        host_tier.main(["--models", "llama-3.1-8b:latency"])
    assert "unknown parts latency: name any of first_token, throughput, correct" in capsys.readouterr().err
