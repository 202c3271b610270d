"""The memory that a GGUF file takes while it is loaded and answered from: its own size, once, and no second copy."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from gradus.models import SHAPES, create_model, read_config, write_config
from gradus.models.weights import plan
from tests.loading import builders
from tests.loading.builders import CONFIGS, write_gguf
from tests.loading.expert_files import write_with_holes
from tests.loading.gguf_blocks import random_blocks

ROOT = Path(__file__).parents[2]
SIZES = {"hidden_size": 1536, "intermediate_size": 20480, "head_dim": 256}
KEPT, WIDE = "auto", "bfloat16"
OTHERS = 110  # MB: the tokenizer, compiled code, the buffers of a step

ANSWER = """
import json, resource, sys
from pathlib import Path

import gradus.kernels.cpu.model, gradus.text.llm  # their code counts before
from gradus import LLM, SamplingParams


def most() -> float:  # in MB. On Linux, ru_maxrss begins with that of the process that started this one
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


path, dtype = sys.argv[1:]
found = {"before": most()}
llm = LLM(path, device="cpu", dtype=dtype, max_sequences=1)
found["loaded"] = most()
llm.generate([[5] * 64], SamplingParams(max_tokens=48, ignore_eos=True))
print(json.dumps(found | {"answered": most()}))
"""


PRIVATE = """
import json, resource, sys
from pathlib import Path

import gradus.kernels.cpu.model, gradus.text.llm
from gradus import LLM, SamplingParams


def now() -> dict[str, float]:  # in MB: what is private to this process, and all that is in memory for it
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]]
    found = {name: int(size) * 1024 / 1e6 for name, size, _ in lines}
    return {"private": found["Anonymous:"], "all": found["Rss:"]}


path, room = sys.argv[1:]
before = now()
lines = Path("/proc/self/status").read_text().split("VmData:")[1].split()
most = int(lines[0]) * 1024 + int(room)  # from here on: more private memory is refused
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
llm = LLM(path, device="cpu", max_sequences=1, context_length=256)
loaded = now()
(answer,) = llm.generate([list(range(32))], SamplingParams(max_tokens=24, ignore_eos=True))
print(json.dumps({"before": before, "loaded": loaded, "answered": now(), "tokens": len(answer.token_ids)}))
"""


def run(script: str, *arguments: str) -> dict[str, Any]:
    """Run a script in a new process, and return the JSON that it prints last."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(path: Path, dtype: str) -> dict[str, float]:
    """Answer in a new process, and return the most memory that it has had by then, in MB."""
    return run(ANSWER, str(path), dtype)


def tensors_of(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    pieces = plan(create_model(read_config(config), device="meta"))
    return {piece.stored.name: torch.ones(piece.stored.file_shape(piece.shape)) for piece in pieces}


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """Two layers with random bits in all matrices: encoding real numbers would take a minute."""
    config, path = CONFIGS["llama"] | SIZES, tmp_path_factory.mktemp("gguf") / "m.gguf"
    matrices = {name: Type.Q4_K for name, value in tensors_of(config).items() if ".layers." in name and value.ndim == 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builders, "tensors_of", tensors_of)
        patch.setattr(builders, "encode", lambda values, kind: random_blocks(kind, *values.shape))
        write_gguf(path, quantize=matrices, config=config)
    return path


def test_a_model_takes_the_bytes_of_its_file_once(file):
    size = file.stat().st_size / 1e6
    most = 1.2 * size + OTHERS
    assert size > 110
    for _ in range(2):  # where no process before has compiled the kernels, the first one does, which takes memory
        found = measured(file, KEPT)
        taken, later = found["loaded"] - found["before"], found["answered"] - found["loaded"]
        if taken < most and later < 0.5 * size:
            break
    assert 0.9 * size < taken < most, f"{taken:.0f} MB for a file of {size:.0f} MB"
    assert later < 0.5 * size, "nor is it widened later"


@pytest.mark.stress
def test_a_widened_model_takes_more_as_this_measures(file):
    found = measured(file, WIDE)
    assert found["loaded"] - found["before"] > 3 * file.stat().st_size / 1e6


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux says which memory is private")
def test_experts_stay_in_the_file_and_are_read_as_tokens_choose_them(tmp_path):
    """Neither loading nor answering takes private memory for experts: a limit on it would end the process."""
    shape = {"hidden_size": 512, "moe_intermediate_size": 768, "num_experts": 128, "mlp_only_layers": []}
    config = read_config(write_config(SHAPES["tiny-qwen3-moe"]) | shape)
    path = write_with_holes(tmp_path / "m.gguf", config, Type.Q8_0)
    size, room = path.stat().st_size / 1e6, 300  # MB; room: for all else, the reserves of each thread among it
    assert size > 2 * room
    found = run(PRIVATE, str(path), str(room * 10**6))
    assert found["tokens"] == 24
    loaded, answered = (
        {kind: found[when][kind] - found["before"][kind] for kind in ("private", "all")}
        for when in ("loaded", "answered")
    )
    assert loaded["all"] < 0.2 * size, "loading does not read the experts"
    assert answered["private"] < 0.2 * size < answered["all"], "answering reads those that are chosen, and copies none"
