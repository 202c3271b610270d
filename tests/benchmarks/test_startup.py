"""The start-up benchmark on a tiny model: two processes per model, each with all of its figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def measured(*options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "benchmarks/startup.py",
        "--device",
        "cpu",
        "--requests",
        "2",
        "--streams",
        "2",
        *options,
    ]
    environment = os.environ | {"PYTHONPATH": f"src{os.pathsep}."}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170)


@pytest.mark.stress  # compiling the kernels, which is what it measures, takes half a minute
def test_it_measures_with_and_without_compiled_kernels(tmp_path):
    out = tmp_path / "startup.json"
    tiny = "random:tiny-llama"
    done = measured("--model", tiny, "--serve", tiny, "--commit", "0123", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["commit"] == "0123" and found["hardware"]["processor"]
    assert [(row["model"], row["kernels"]) for row in found["rows"]] == [
        (tiny, "not cached"),
        (tiny, "cached"),
    ]
    for row in found["rows"]:
        assert 0 < row["built_s"] <= row["first_token_s"] and len(row["round_tok_s"]) == 4
        assert all(rate > 0 for rate in row["round_tok_s"])
    (served,) = found["served"]
    assert served["model"] == tiny and served["streams"] == 2
    assert len(served["round_tok_s"]) == len(served["ttft_ms_p99"]) == 4
    assert all(figure > 0 for figure in served["round_tok_s"] + served["ttft_ms_p99"])


def test_a_model_that_is_not_there_is_said():
    done = measured("--model", "random:nothing")
    assert done.returncode != 0 and "random:nothing" in done.stderr
