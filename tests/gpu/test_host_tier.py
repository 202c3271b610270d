"""Prefixes that a GPU's cache gave up come back from host memory, and from files, with the same greedy answers."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus import LLM, SamplingParams
from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.storage import PagedStorage
from gradus.errors import ConfigError
from gradus.execution.gpu.page_copies import PageCopies
from tests.attention.mixed import MIXED

pytestmark = pytest.mark.gpu

MODEL = "random:tiny-qwen3"
SETTINGS: dict[str, Any] = {
    "device": "cuda", "dtype": "float32", "max_sequences": 4, "context_length": 512, "cache_tokens": 1728,
    "token_budget": 128, "host_cache": 0.25,
}  # fmt: skip
GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)


def prompt(seed: int, length: int = 400) -> list[int]:
    return [(seed + 7 * number) % 250 + 1 for number in range(length)]


def answers(llm, seeds):
    """Answer prompts one by one, each twice: the second time its prefix is a hit, whatever happened before."""
    found = []
    for seed in seeds:
        llm.generate([prompt(seed)], GREEDY)
        (done,) = llm.generate([prompt(seed)], GREEDY)
        assert done.cached_tokens > 350
        found.append(done.token_ids)
        llm.check()
    return found


@pytest.mark.quick
@pytest.mark.plans_memory
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kv_dtype": "fp8"},
        {"dtype": "bfloat16"},
        {"switch_off": ("graphs",)},
        {"switch_off": ("kernels", "graphs")},
        {"switch_off": ("overlap",)},
        {"speculate": "ngram"},
        {"model": "random:tiny-gemma3", "cache_tokens": 1024},
    ],
    ids=str,
)
def test_answers_are_the_same_after_their_prefixes_were_evicted_and_came_back(settings):
    with LLM(**{"model": MODEL} | SETTINGS | settings) as llm:
        before = answers(llm, range(8))  # 3,360 tokens: the first are evicted
        assert answers(llm, range(8)) == before
        usage = llm.core.metrics().cache
        assert usage is not None and usage.host is not None
        assert usage.evictions and usage.host.hit_positions > 350
        crowd = llm.generate([prompt(seed) for seed in range(8)], GREEDY)  # side by side, while others' steps go on
        assert [done.token_ids for done in crowd] == before
        llm.check()


@pytest.mark.plans_memory
def test_files_outlive_the_engine(tmp_path):
    settings: dict[str, Any] = {"model": MODEL} | SETTINGS | {"prefix_dir": str(tmp_path / "p")}
    with LLM(**settings) as llm:
        before = answers(llm, range(4))
    with LLM(**settings) as llm:
        (done,) = llm.generate([prompt(2)], GREEDY)
        assert done.cached_tokens > 350 and done.token_ids == before[2]
        usage = llm.core.metrics().cache
        assert usage is not None and usage.disk is not None and usage.disk.hit_positions > 350


@pytest.mark.plans_memory
def test_files_need_host_memory(tmp_path):
    with pytest.raises(ConfigError, match="prefix_dir on cuda:0 goes through host memory: set host_cache"):
        LLM(**{"model": MODEL} | SETTINGS | {"prefix_dir": str(tmp_path / "p"), "host_cache": None})


@pytest.mark.parametrize("kind", [PagedStorage, Fp8Storage])
def test_pages_keep_their_bytes_while_they_are_overwritten_behind_a_fence(kind):
    """Pages go out and are overwritten at once, come back into others, and are read at once: only fences wait."""
    storage = kind(MIXED["narrow full layers"], 400, 16, torch.bfloat16, torch.device("cuda"))
    for tensor in storage.tensors:
        tensor.view(torch.uint8).random_()
    wanted = [tensor.view(torch.uint8).clone() for tensor in storage.tensors]
    copies = PageCopies(storage, 400)
    for _ in range(20):
        pages, places = list(range(1, 201)), list(torch.randperm(400).tolist()[:200])
        out = copies.out(pages, places)
        copies.fence(out)
        for tensor in storage.tensors:
            tensor[:, 1:201].view(torch.uint8).zero_()
        copies.open(out)
        back = copies.back(places, pages)
        copies.fence(back)
        assert all(
            torch.equal(tensor.view(torch.uint8), each) for tensor, each in zip(storage.tensors, wanted, strict=True)
        )
    torch.cuda.synchronize()
    assert out.done and back.done
    copies.close()
