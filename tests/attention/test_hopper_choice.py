"""Which prompts take the kernel that was written for Hopper: those that it was faster with, on the GPU that has it."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.attention.storage import PagedStorage
from gradus.attention.triton_paged import hopper_prompts, suits_hopper
from gradus.device.capability import Capability
from gradus.kernels.attention.launch import fills_hopper
from gradus.kernels.core import gluon
from gradus.models.config import LayerSizes, ModelConfig
from gradus.models.shapes import SHAPES
from tests.kernels.ahead_of_time import EVERY, H200

RACE = Path(__file__).parents[2] / "benchmarks" / "answered" / "prompt_attention.json"
LLAMA = SHAPES["llama-3.1-8b"].stage(range(1))


def suits(config: ModelConfig = LLAMA, able: Capability = H200, page_size: int = 16, dtype=torch.bfloat16) -> bool:
    return suits_hopper(config, PagedStorage(config, 1, page_size, dtype, torch.device("cpu")), able)


def test_only_what_the_kernel_was_written_for_takes_it():
    assert suits() and suits(replace(LLAMA, num_kv_heads=32)) and suits(replace(LLAMA, num_kv_heads=1))
    assert [able for able in EVERY if suits(able=able)] == [H200]
    assert not suits(dtype=torch.float16) and not suits(dtype=torch.float32)
    assert not suits(page_size=32)
    assert not suits(replace(LLAMA, head_dim=64))
    assert not suits(replace(LLAMA, num_heads=24)), "three heads to a key head do not fill a tile"
    assert not suits(replace(LLAMA, attention_softcap=30.0))
    assert not suits(replace(LLAMA, windows=(1024,)))
    assert not suits(replace(LLAMA, sizes=(LayerSizes(8, 128, 14336),))), "layers may differ"


def test_keys_in_8_bits_take_the_kernel_that_widens_them():
    storage = PagedStorage(LLAMA, 1, 16, torch.bfloat16, torch.device("cpu"))
    storage.keys = storage.keys.to(torch.float8_e4m3fn)
    assert not suits_hopper(LLAMA, storage, H200)


def counts_of(step: str) -> list[int]:
    """Of "4 x 2048", or "chunk 2048 at 8192"."""
    if step.startswith("chunk"):
        return [int(step.split()[1])]
    spans, count = step.split(" x ")
    return [int(count)] * int(spans)


def test_the_rule_chooses_what_won_the_race():
    race, times = json.loads(RACE.read_text())["race"], defaultdict(dict)
    for row in race["rows"]:
        times[row["step"]][row["kernel"]] = row["us"]
    for step, us in times.items():
        faster = us["hopper_attention"] < us["paged_attention"]
        shape = race["shape"]
        chosen = fills_hopper(counts_of(step), shape["heads"] // shape["kv_heads"], shape["kv_heads"], 132)
        assert chosen == faster, step


def test_a_long_prompt_among_short_ones_decides_and_one_too_small_for_the_gpu_does_not():
    assert fills_hopper([8192] + [100] * 20, 4, 8, 132)
    assert not fills_hopper([1100] + [600] * 20, 4, 8, 132)
    assert fills_hopper([2048], 4, 8, 132) and not fills_hopper([2048], 4, 2, 132)


def test_another_gluon_is_no_failure(monkeypatch):
    def without(name: str) -> object:
        raise ImportError(f"no gluon for {name}")

    monkeypatch.setattr(gluon, "import_module", without)
    assert hopper_prompts([], 132) is None
