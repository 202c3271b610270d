"""The memory that a model takes, from its numbers alone, equals the engine's own figures."""

from dataclasses import replace

import pytest
import torch

from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.storage import PagedStorage
from gradus.cache.windows import most_pages
from gradus.config.options import DEFAULT_PAGE_SIZE, EngineConfig
from gradus.engine.request import ModelLimits
from gradus.execution.memory.footprint import KV_BYTES, context_bytes, context_pages, weight_bytes
from gradus.execution.memory.plan import PagePlan
from gradus.models.create import create_model
from gradus.models.shapes import SHAPES
from gradus.quantization.fp8 import E4M3
from gradus.quantization.kv import SCALE


@pytest.mark.parametrize("name", ["gpt2-124m", "llama-3.2-1b", "smollm3-3b", "phi4-mini", "olmo3-7b", "granite4-1b"])
def test_weights_are_those_that_a_model_allocates(name):
    model = create_model(SHAPES[name], dtype=torch.bfloat16, device="meta")
    assert weight_bytes(SHAPES[name]) == sum(weight.nbytes for weight in model.parameters())
    assert weight_bytes(SHAPES[name], 4) == 2 * weight_bytes(SHAPES[name])


def test_a_context_without_windows_takes_the_pages_that_an_engine_reserves_for_it():
    config = SHAPES["llama-3.1-8b"]
    options = EngineConfig(ModelLimits(config.vocab_size, 8192), max_sequences=1, cache_tokens=8192)
    plan = PagePlan.of(config, options, itemsize=2)
    assert context_bytes(config, 8192) * (plan.count + 1) == plan.bytes * plan.count  # page 0 belongs to no sequence
    assert context_bytes(config, 8192) == 8192 * 2 * 32 * 8 * 128 * 2
    assert context_bytes(config, 8177) == context_bytes(config, 8192) > context_bytes(config, 8176)


@pytest.mark.parametrize(
    ("tokens", "seen"),
    [(100, 7), (4096, 256), (5000, 257), (65536, 257)],  # pages of a window of 4096, in the worst alignment
)
def test_a_window_keeps_the_pages_that_its_next_query_sees(tokens, seen):
    config = SHAPES["olmo3-7b"]  # 24 layers with a window, 8 without, 32 key-value heads of 128
    assert seen == most_pages(tokens, 1, 4096, DEFAULT_PAGE_SIZE)
    pages = 24 * seen + 8 * -(-tokens // 16)
    assert context_bytes(config, tokens) == pages * 16 * 2 * 32 * 128 * 2


def test_a_layer_that_attends_to_anothers_keys_and_values_keeps_none():
    config = SHAPES["tiny-llama"]
    shared = replace(config, kv_sources=(0, 1, 1, 1))
    assert context_bytes(shared, 64) * 2 == context_bytes(config, 64)


def test_layers_of_several_widths_share_pages_as_the_cache_divides_them():
    """Gemma 4 E4B: pages of 4 strips of 1,024 values; 4 full layers, and 20 with a window in 3 groups."""
    pages = 512 + 3 * 33  # of 8,192 tokens, and of a window of 512 in the worst alignment
    assert context_bytes(SHAPES["gemma4-e4b"], 8192) == pages * 16 * 2 * 4 * 1024 * 2


STORAGES = {"bfloat16": PagedStorage, "fp8": Fp8Storage}


@pytest.mark.parametrize("kind", KV_BYTES)
@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.context_length >= 8192])
def test_long_contexts_take_what_their_pages_allocate(name, kind):
    """Every shape, in both formats. Page 0 belongs to no context."""
    config = SHAPES[name]
    for tokens in (8192, 16_384, 32_768, 65_536, 131_072):
        pages = context_pages(config, tokens)
        storage = STORAGES[kind](config, pages, DEFAULT_PAGE_SIZE, torch.bfloat16, torch.device("meta"))
        assert context_bytes(config, tokens, *KV_BYTES[kind]) == storage.nbytes - storage.page_bytes


def test_the_formats_have_the_sizes_of_their_types():
    assert {"bfloat16": (torch.bfloat16.itemsize, 0), "fp8": (E4M3.itemsize, SCALE.itemsize)} == KV_BYTES
