"""The memory that a GGUF file takes while it is loaded and answered from: its own size, once, and no second copy."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gguf_memory
from gradus.models import read_config
from tests.loading.builders import CONFIGS

ROOT = Path(__file__).parents[2]
SIZES = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 6, "head_dim": 256}
LONGER = {"max_position_embeddings": 2048}
OTHERS = 110  # MB: the tokenizer, compiled code, the buffers of a step


def measured(path: Path, how: str) -> dict[str, Any]:
    """Run a process and return its memory, in MB."""
    command = [sys.executable, "benchmarks/gguf_memory.py", "--child", str(path), how, "--prompt", "64"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return gguf_memory.written(read_config(CONFIGS["llama"] | SIZES | LONGER), path)


def test_a_model_takes_the_bytes_of_its_file_once(file):
    size, found = file.stat().st_size / 1e6, measured(file, gguf_memory.KEPT)
    assert size > 110
    taken = found["loaded_mb"] - found["before_mb"]
    assert 0.9 * size < taken < 1.2 * size + OTHERS, f"{taken:.0f} MB for a file of {size:.0f} MB"
    assert found["peak_mb"] < found["loaded_mb"] + 0.5 * size, "nor is it widened later"


@pytest.mark.stress
def test_a_widened_model_takes_more_as_this_measures(file):
    found = measured(file, gguf_memory.WIDE)
    assert found["loaded_mb"] - found["before_mb"] > 3 * file.stat().st_size / 1e6
