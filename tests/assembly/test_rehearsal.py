"""A rehearsal goes the whole way, and leaves nothing but what is warm."""

import pytest
import torch

from gradus.assembly.final import build
from gradus.assembly.rehearsal import ROUNDS, rehearse
from gradus.cache.paged import PagedCache
from gradus.config.options import EngineConfig
from gradus.engine.request import Request, SamplingParams
from tests.phases.conftest import limits_of, tiny_model
from tests.phases.drive import run

SHAPE = "tiny-llama"


def config(**settings) -> EngineConfig:
    given = {"kernels": False, "graphs": False, "page_size": 4, "token_budget": 16} | settings
    return EngineConfig(limits_of(SHAPE), **{"max_sequences": 5, **given})


def pages(settings: EngineConfig) -> PagedCache:
    return PagedCache(settings.cache_blocks, settings.page_size)


@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_after_a_rehearsal_are_those_without_one(overlap):
    settings, model = config(overlap=overlap), tiny_model(SHAPE)
    params = SamplingParams(max_tokens=9, temperature=0.8, seed=3, ignore_eos=True)
    asked = [Request.create(f"r{i}", [5 + i] * (3 + 4 * i), params, settings.limits) for i in range(4)]
    fresh, warm = build(model, settings), build(model, settings)
    rehearse(warm.runner, settings, pages(settings), "cpu")
    assert run(warm, asked) == run(fresh, asked)
    assert warm.metrics().generated_tokens == 4 * 9, "a rehearsal is no request"


def test_crowds_of_every_size_are_served():
    settings, engine = config(), build(tiny_model(SHAPE), config())
    sizes, whole = set(), engine.runner.run

    def watched(plan):
        sizes.add(plan.size)
        return whole(plan)

    engine.runner.run = watched
    rehearse(engine.runner, settings, pages(settings), "cpu")
    assert {1, 2, 4, 5} <= sizes and ROUNDS > 1


@pytest.mark.parametrize("settings", [{"cache_tokens": 8}, {"max_sequences": 1}, {"chunked": False}])
def test_the_smallest_cache_is_enough(settings):
    tight = config(**settings)
    rehearse(build(tiny_model(SHAPE), tight).runner, tight, pages(tight), "cpu")


# -- kernels, compiled side by side ------------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    """The names of kernels, as each is compiled."""
    import triton

    found: list[str] = []
    hook = lambda *args, **kwargs: found.append(kwargs["fn"].name)  # noqa: E731
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", hook)
    return found


@pytest.mark.gpu
def test_a_launch_that_was_compiled_ahead_compiles_nothing(compiled):
    from gradus.kernels.core.compiling import compiled_together
    from gradus.kernels.rows.norm import add_rms_norm

    x, weight = torch.randn(3, 208, device="cuda", dtype=torch.bfloat16), torch.ones(208, device="cuda").bfloat16()
    with compiled_together():
        untouched = add_rms_norm(x, None, weight, 1e-6)
    ahead = len(compiled)
    assert ahead == 1, "it is compiled, once"
    del untouched
    found = add_rms_norm(x, None, weight, 1e-6)
    expected = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    assert len(compiled) == ahead and (found.float() - expected).abs().max() < 0.05


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-gemma3"])
def test_requests_after_the_build_compile_nothing(compiled, shape):
    from gradus.models import SHAPES, create_model, randomize

    model = create_model(SHAPES[shape], dtype=torch.bfloat16, device="cuda")
    randomize(model, seed=0, std=0.1)
    engine = build(model, EngineConfig(limits_of(shape), max_sequences=12, token_budget=64))
    assert compiled, "the hook sees what is compiled"
    ahead = len(compiled)
    params = SamplingParams(max_tokens=7, temperature=0.7, ignore_eos=True)
    run(engine, [Request.create(f"r{i}", [1 + i] * (1 + 5 * i), params, engine.limits) for i in range(30)])
    assert compiled[ahead:] == []
