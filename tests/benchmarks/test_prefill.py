"""The prefill benchmark on a tiny model: every scheme asked for has its rates."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_scheme_is_measured_on_prompts_of_its_own(tmp_path):
    out = tmp_path / "prefill.json"
    command = [sys.executable, "benchmarks/prefill.py", "--model", "random:tiny-llama", "--device", "cpu"]
    command += ["--schemes", "bfloat16,int8", "--prompts", "2", "--tokens", "40", "--rounds", "2"]
    command += ["--commit", "0123", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": f"src{os.pathsep}."}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["commit"] == "0123" and (found["prompts"], found["tokens"]) == (2, 40)
    assert [row["scheme"] for row in found["rows"]] == ["bfloat16", "int8"]
    for row in found["rows"]:
        assert len(row["round_tok_s"]) == 2 and min(row["round_tok_s"]) <= row["tok_s"] <= max(row["round_tok_s"])
        assert row["kernel_ms"] == {}, "a CPU has none"
