"""Run by test_fused_model.py in a process of its own, where Triton interprets: whole models on the kernels."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.paged import PagedAttention
from gradus.attention.reference import attend_causal
from gradus.attention.storage import PagedStorage
from gradus.attention.triton_paged import TritonPagedAttention
from gradus.cache.paged import PagedCache
from gradus.device.capability import Capability
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.kernels.core.view import Twin
from gradus.kernels.fuse.model import fused
from gradus.kernels.linear import dispatch as linear
from gradus.kernels.linear import few_rows, streamed_rows
from gradus.kernels.linear.launch_tables import matching
from gradus.models import SHAPES, Model, create_model, randomize
from gradus.models.config import ModelConfig, QueryGrowth
from gradus.models.embedded import Embedded, LayerInputs
from gradus.models.experts import Router
from gradus.models.layers import Embedding
from gradus.models.rope import Rotations
from gradus.sampling.sampler import Sampler
from gradus.scheduling.scheduler import Scheduler
from tests.execution.runners import in_torch
from tests.kernels.interpreted_gluon import interpret
from tests.pairwise import first
from tests.phases.conftest import EVERY_FAMILY
from tests.phases.drive import run

LIMITS = ModelLimits(320, 64)


@pytest.fixture(autouse=True, scope="module")
def _as_on_an_h200():
    """So that few rows take `splitk`, `few_rows` and `streamed_rows`, which no device takes that was never measured."""
    with pytest.MonkeyPatch.context() as patch:
        interpret(few_rows, patch)
        interpret(streamed_rows, patch)
        patch.setattr(linear, "table_of", lambda device: matching("NVIDIA H200", Capability(9, 0)))
        yield


class OneSequence:
    """Attention of a single span that starts at 0, in torch, over a storage that a kernel may write to."""

    def __init__(self, model: Model) -> None:
        self.config, self.fuses_rope = (config := model.config), False
        sizes = [config.layer(layer) for layer in range(config.num_layers)]
        self.pages = [torch.zeros(2, 2, 16, each.num_kv_heads, each.head_dim, dtype=model.dtype) for each in sizes]

    def destination(self, layer):
        return *self.pages[layer], torch.arange(16, 32), None  # page 1

    def attend(self, layer, q, k, v, sinks=None):
        if k is not None:
            keys, values = self.pages[layer]
            keys[1, : len(k)], values[1, : len(v)] = k, v
        return self.attend_stored(layer, q, sinks)

    def attend_stored(self, layer, q, sinks=None):
        k, v = self.pages[self.config.kv_source(layer)][:, 1, : len(q)].transpose(1, 2)
        return attend_causal(
            q, k, v, start=0, scale=self.config.attention_scale, window=self.config.windows[layer], sinks=sinks
        ).contiguous()


def small(shape: str, dtype: torch.dtype = torch.float32, layers: int = 2) -> Model:
    """Two layers, one of each kind where a family has two; four where layers attend to others' keys and values: half of
    them do. A short prompt is longer than the windows, and growing queries grow much within it."""
    whole = SHAPES[shape]
    config = replace(sharing(whole, layers) if whole.kv_sources else whole.stage(range(layers)), context_length=64)
    config = replace(config, ropes=tuple(rope and replace(rope, growth=soon(rope.growth)) for rope in config.ropes))
    config = replace(config, windows=tuple(window and 6 for window in config.windows))
    model = create_model(config, dtype=dtype)
    randomize(model, seed=0, std=0.1)
    return model


def sharing(whole: ModelConfig, layers: int) -> ModelConfig:
    """Make a model of the last layers that have keys and values, and for each of them the next one that reads these."""
    owners = [layer for layer in range(whole.num_layers) if whole.stores_kv(layer)][-layers:]
    readers = sorted(whole.kv_sources.index(owner, owners[-1] + 1) for owner in owners)
    sources = *range(layers), *(owners.index(whole.kv_sources[reader]) for reader in readers)
    by_layer = {
        name: tuple(getattr(whole, name)[layer] for layer in owners + readers) for name in ("ropes", "windows", "sizes")
    }
    return replace(whole, num_layers=2 * layers, kv_sources=sources, **by_layer)


def soon(growth: QueryGrowth | None) -> QueryGrowth | None:
    return growth and replace(growth, beta=4.0, original_context=5)


def answers(
    model: Model, backend: type[PagedAttention] = PagedAttention, kind: type[PagedStorage] = PagedStorage
) -> dict:
    """A step of two prompts, one of them longer than the window, then one of a decode."""
    settings = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (2, 1)]
    prompts = ([(7 * i) % 300 for i in range(9)], [5])
    requests = [Request.create(f"r{i}", *each, LIMITS) for i, each in enumerate(zip(prompts, settings, strict=True))]
    storage = kind(model.config, 32, 4, model.dtype, model.device)
    runner = in_torch(model, backend(model.config, storage, slots=3), Sampler(320, model.device))
    cache = PagedCache(32, 4, [group.window for group in storage.groups])
    return run(Engine(Scheduler(cache, max_sequences=2), runner, LIMITS), requests)


NEEDED = [
    "tiny-gpt2",
    "tiny-gemma3",
    "tiny-qwen3",
    "tiny-smollm3",
    "tiny-ministral3",
    "tiny-olmo3",
    "tiny-gemma4",
    "tiny-gemma4-e",
]
"""Families that have, between them, each kind of norm, position, activation, attention and projection."""


@pytest.mark.parametrize("shape", first(NEEDED + [shape for shape in EVERY_FAMILY if shape not in NEEDED], count=8))
def test_a_fused_model_gives_the_models_tokens(shape):
    model = small(shape)
    assert answers(fused(model), TritonPagedAttention) == answers(model)


@pytest.mark.parametrize("kind", [PagedStorage, Fp8Storage])
def test_heads_with_sinks_give_the_models_tokens(kind):
    """Alone in a layer whose keys are stored before attention, and where attention stores them."""
    model, draw = small("tiny-mistral"), torch.Generator().manual_seed(0)
    plain = answers(model, PagedAttention, kind)
    for layer in model.layers:
        layer.heads.sinks = nn.Parameter(2 * torch.randn(layer.heads.num_heads, generator=draw), False)
    found = answers(model, PagedAttention, kind)
    assert found != plain
    assert answers(fused(model), TritonPagedAttention, kind) == found


# one kind of heads each
@pytest.mark.parametrize(
    "shape", first(["tiny-llama", "tiny-gemma4-e", "tiny-olmo2", "tiny-gpt2", "tiny-gemma3"], count=3)
)
def test_with_a_cache_in_8_bits_a_fused_model_gives_the_models_tokens(shape):
    model = small(shape)
    assert answers(fused(model), TritonPagedAttention, Fp8Storage) == answers(model, PagedAttention, Fp8Storage)


@pytest.mark.parametrize(
    "shape", first(["tiny-gpt2", "tiny-gemma3", "tiny-olmo2", "tiny-gemma4-e", "tiny-qwen3"], count=4)
)  # every twin in two widths
@torch.inference_mode()
def test_a_fused_layer_in_half_precision_does_what_the_layer_does(shape):
    """float16, so that `gemv`, `few_rows`, `streamed_rows` and `splitk` have their turn: one row, three and nine."""
    model, exact = small(shape, torch.float16, layers=1), small(shape, layers=1)
    for mine, theirs in zip(exact.parameters(), model.parameters(), strict=True):
        mine.copy_(theirs)
    for rows in (1, 3, 9):
        ids = torch.arange(rows)
        expected = exact(ids, ids, OneSequence(exact))
        found = fused(model)(ids, ids, OneSequence(model))
        assert (found.float() - expected).norm() < 5e-3 * expected.norm()


COMPOSED = Embedding | nn.ModuleList | Model | Rotations | LayerInputs | Embedded | Router
"""Parts that compute by parts of their own, which have twins; and tables that torch looks up."""


@pytest.mark.parametrize("shape", EVERY_FAMILY)
def test_a_view_shares_every_weight_and_leaves_the_model_as_it_was(shape):
    model = small(shape)
    kinds = [type(part) for part in model.modules()]
    view = fused(model)
    assert [type(part) for part in model.modules()] == kinds
    for part, twin in zip(model.modules(), view.modules(), strict=True):
        kept = isinstance(part, COMPOSED) or type(part).__name__ in ("Block", "MixedBlock")
        assert isinstance(twin, Twin) != kept
    tensors = [[*each.parameters(), *each.buffers()] for each in (view, model)]
    assert all(mine is theirs for mine, theirs in zip(*tensors, strict=True))
    assert all(layer.qkv is not twin.qkv for layer, twin in zip(model.layers, view.layers, strict=True))
