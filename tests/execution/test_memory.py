"""The plan is what really gets allocated, and its arithmetic can be done on paper."""

import dataclasses
import json

import pytest
import torch

from gradus import LLM
from gradus.attention.storage import PagedStorage
from gradus.cache.paged import PagedCache
from gradus.config.options import EngineConfig, EngineOptions
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.execution.memory import MemoryPlan, free_memory, memory_plan, readable
from gradus.models import create_model
from gradus.models.shapes import SHAPES

PLAN = MemoryPlan(
    device="cpu",
    dtype="float32",
    context_length=100,
    weight_bytes=400,
    cache_bytes_per_token=2,
    free_bytes=2000,
    phase_capacity=None,
)


def test_the_arithmetic_on_paper():
    assert PLAN.cache_bytes_per_sequence == 200
    assert PLAN.sequences_that_fit == 7  # 90 % of 2000 less 400 leaves 1400
    assert PLAN.sequences == 7


def test_a_phase_that_runs_one_at_a_time_runs_one():
    assert dataclasses.replace(PLAN, phase_capacity=1).sequences == 1


def test_a_model_that_does_not_fit_runs_nothing():
    assert dataclasses.replace(PLAN, free_bytes=100, phase_capacity=1).sequences == 0


@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-llama", "tiny-qwen3", "tiny-gemma3"])
def test_weights_are_what_the_model_really_allocates(shape):
    model = create_model(SHAPES[shape])
    allocated = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    assert memory_plan(SHAPES[shape], device="cpu", dtype="float32").weight_bytes == allocated


def test_cache_bytes_follow_the_formula():
    config = SHAPES["smollm2-135m"]  # 30 layers, 3 key-value heads of 64
    assert memory_plan(config, device="cpu", dtype="bfloat16").cache_bytes_per_token == 2 * 30 * 3 * 64 * 2


def test_a_model_too_large_for_this_machine_is_planned_without_being_allocated():
    plan = memory_plan(SHAPES["llama-3.1-8b"], device="cpu", dtype="float32", free_bytes=8 << 30)
    assert plan.weight_bytes > 8 << 30
    assert plan.sequences_that_fit == 0


def test_a_context_beyond_the_model_is_refused():
    with pytest.raises(ConfigError, match=r"context_length must be between 2 and \d+, got 1000000"):
        memory_plan(SHAPES["tiny-llama"], device="cpu", dtype="float32", context_length=1_000_000)


def options(context, **settings):
    return EngineOptions(ModelLimits(vocab_size=320, context_length=context), **settings)


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])
def test_pages_are_counted_as_they_are_allocated(shape):
    """tiny-gemma3 has windows: several layer groups share the pool."""
    config = SHAPES[shape]
    paging = EngineConfig.of(options(100, max_sequences=3, page_size=16, cache_tokens=330))
    pages = memory_plan(config, device="cpu", dtype="float32", context_length=100, paging=paging).pages
    storage = PagedStorage(config, pages.count, 16, torch.float32, torch.device("cpu"))
    assert pages.bytes == storage.keys.nbytes + storage.values.nbytes
    assert pages.positions == 21 * 16 and pages.count == 21 * len(storage.groups)
    assert pages.full_sequences == 3  # 7 pages each, of 21
    cache = PagedCache(pages.count, 16, [group.window for group in storage.groups])
    assert all(cache.reserve(number, 100) for number in range(3)) and not cache.reserve(3, 1)


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])
def test_the_paged_phases_allocate_what_is_planned(shape):
    settings = {"context_length": 100, "max_sequences": 3, "cache_tokens": 330}
    llm = LLM(f"random:{shape}", phase="p06", device="cpu", dtype="float32", **settings)
    plan = memory_plan(SHAPES[shape], device="cpu", dtype="float32", context_length=100, paging=llm.options)
    assert llm.metrics().cache.pages == plan.pages.count
    storage = llm.engine.runner.attention.storage
    assert storage.keys.nbytes + storage.values.nbytes == plan.cache_bytes


def test_pages_that_do_not_fit_beside_the_weights_are_told():
    small = options(100, cache_tokens=1600)
    plan = memory_plan(SHAPES["tiny-llama"], device="cpu", dtype="float32", paging=small, free_bytes=1 << 30)
    assert plan.fits and plan.cache_bytes == plan.pages.bytes
    plan = dataclasses.replace(plan, free_bytes=plan.weight_bytes + plan.cache_bytes)  # nothing left for activations
    assert not plan.fits and "does NOT fit" in plan.render()


def test_both_renderings_hold_every_figure():
    assert "sequences that fit  7" in PLAN.render()
    assert json.loads(json.dumps(PLAN.as_dict()))["sequences"] == 7


def test_this_machine_has_memory():
    plan = memory_plan(SHAPES["tiny-llama"], device="cpu", dtype="float32")
    assert plan.free_bytes > 1 << 20
    assert plan.sequences_that_fit > 0


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (538_060_032, "538.1 MB"), (5e12, "5 TB")])
def test_sizes_are_readable(size, text):
    assert readable(size) == text


@pytest.mark.gpu
def test_a_gpu_tells_its_free_memory():
    assert 0 < free_memory(torch.device("cuda")) <= torch.cuda.get_device_properties(0).total_memory
