"""Two processes share a model on the GPU's kernels, interpreted: they write into each other's memory, as GPUs do."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")


@pytest.mark.stress
@pytest.mark.parametrize(
    "shape", ["tiny-llama", "tiny-gpt2", "tiny-gemma3", "tiny-qwen3", "tiny-mixtral", "tiny-qwen2-moe"]
)
def test_two_ranks_that_push_rows_have_the_whole_models_tokens(shape, tmp_path):
    command = [sys.executable, "-m", "tests.parallel.fused_rank"]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet"), shape],
            env=os.environ | {"TRITON_INTERPRET": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in (-1, 0, 1)
    ]  # fmt: skip
    try:
        ends = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0, 0], ends
    whole, first, second = (json.loads(out) for out, _ in ends)
    assert first == second == whole
