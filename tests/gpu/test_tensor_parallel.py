"""Two GPUs share a model: one GPU's tokens, the same bits on both, and an end within seconds when a rank dies."""

import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import psutil
import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus import LLM, SamplingParams
from gradus.parallel.group import RankLost

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.plans_memory,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "float32",
    "cache_tokens": 4096,
    "max_sequences": 3,
    "context_length": 512,
}
PROMPTS = [[5, 6, 7, 8], [9] * 40, [3, 4], list(range(1, 300))]
GREEDY = SamplingParams(max_tokens=24)
SAMPLED = SamplingParams(max_tokens=24, temperature=0.8, seed=3)
ASKING = SamplingParams(max_tokens=24, temperature=0.8, seed=3, frequency_penalty=0.5, top_k=20, logprobs=2)
LIMIT_S = 120


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [tuple(each.token_ids) for params in (GREEDY, SAMPLED, ASKING) for each in llm.generate(PROMPTS, params)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both ranks of `rank_program` computed."""
    folder = tmp_path_factory.mktemp("ranks")
    outs = [folder / f"{rank}.npz" for rank in range(2)]
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.gpu.rank_program"]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "meet"), str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank, out in enumerate(outs)
    ]
    ends, end = [], time.monotonic() + LIMIT_S
    for process in running:
        try:
            ends.append(process.communicate(timeout=max(1.0, end - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            process.send_signal(6)  # its stacks
            ends.append(process.communicate(timeout=10)[0])
    assert [process.returncode for process in running] == [0, 0], b"\n".join(ends).decode()[-6000:]
    return [dict(np.load(out)) for out in outs]


@pytest.mark.quick
def test_all_activations_have_the_same_bits_on_both_ranks(ranks):
    first, second = ranks
    assert first.keys() == second.keys()
    different = [name for name in first if first[name].tobytes() != second[name].tobytes()]
    assert not different


def test_the_fused_sum_is_torchs_launched_and_replayed(ranks):
    found = {name: value for name, value in ranks[0].items() if name.startswith("found")}
    assert found
    for name, value in found.items():
        wanted = ranks[0][name.replace("found", "wanted")]
        assert np.linalg.norm(value - wanted) < 1e-2 * np.linalg.norm(wanted), name


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ("tiny-llama", {"switch_off": ("graphs",)}),
        ("tiny-qwen3", {}),
        ("tiny-gpt2", {"switch_off": ("overlap",)}),
        pytest.param("tiny-gemma3", {}, marks=pytest.mark.stress),
    ],
)
def test_two_ranks_have_one_gpus_tokens(shape, settings):
    """Each loads ranks again, in the same process."""
    with LLM(f"random:{shape}", **SETTINGS, **settings) as alone:
        wanted = answers(alone)
    with LLM(f"random:{shape}", tensor_parallel=2, **SETTINGS, **settings) as llm:
        assert answers(llm) == wanted
        llm.check()


@pytest.fixture(scope="module")
def alone():
    """One GPU's tokens."""
    with LLM("random:tiny-llama", **SETTINGS) as llm:
        return answers(llm)


def killed(llm: LLM) -> float:
    """Kill the other rank while requests run, and return the seconds until the engine ended."""
    (other,) = [each for each in psutil.Process().children() if "gradus.assembly.rank" in " ".join(each.cmdline())]
    sent: list[float] = []

    def kill() -> None:
        sent.append(time.monotonic())
        os.kill(other.pid, 9)

    threading.Timer(0.3, kill).start()
    with pytest.raises(RankLost, match=r"^rank 1 of 2 has died: load the model again$"):
        while True:
            llm.generate([[1, 2, 3]] * 3, SamplingParams(max_tokens=400))
    return time.monotonic() - sent[0]


def test_with_graphs_they_have_one_gpus_tokens_until_a_rank_is_killed(alone):
    with LLM("random:tiny-llama", tensor_parallel=2, **SETTINGS) as llm:
        assert answers(llm) == alone
        assert answers(llm) == alone, "the second time prefixes are found"
        assert killed(llm) < 5


def test_two_stages_have_one_gpus_tokens_until_one_is_killed(alone):
    with LLM("random:tiny-llama", pipeline_parallel=2, **SETTINGS) as llm:
        assert answers(llm) == alone
        assert answers(llm) == alone, "the second time prefixes are found"
        assert killed(llm) < 5
