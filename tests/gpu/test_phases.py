"""The phases on a CUDA GPU: float32 gives the CPU's tokens, and bfloat16 parts from them only at close calls."""

import pytest
import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.engine.request import Request, SamplingParams
from gradus.models import Model, create_model
from gradus.models.shapes import SHAPES
from tests.pairwise import each_once
from tests.phases.conftest import FAMILIES, MIXED, NaiveAttention, limits_of, tiny_model
from tests.phases.drive import Ending, run

pytestmark = pytest.mark.gpu

LENGTH = 24
# bfloat16 keeps 8 bits: a logit near 8 is off by up to 0.03, and four layers of rounding add up to a few times that
CLOSE_CALL = 0.25


def model_on(device: str, shape: str, dtype: torch.dtype) -> Model:
    """The same weights on any device and in any type: those of the CPU's tests in float32, copied."""
    model = create_model(SHAPES[shape], dtype=dtype, device=device)
    for mine, theirs in zip(model.parameters(), tiny_model(shape).parameters(), strict=True):
        mine.copy_(theirs)
    return model


def requests(shape: str, **params) -> list[Request]:
    generator = torch.Generator().manual_seed(1)
    limits = limits_of(shape)
    prompts = [torch.randint(0, limits.vocab_size, (n,), generator=generator).tolist() for n in (1, 5, 23, 9, 2)]
    settings = SamplingParams(max_tokens=LENGTH, ignore_eos=True, **params)
    return [Request.create(f"r{i}", prompt, settings, limits) for i, prompt in enumerate(prompts)]


def answers(phase: str, model: Model, wanted: list[Request], shape: str) -> dict[tuple[str, int], Ending]:
    return run(phases.load(phase).build(model, EngineOptions(limits_of(shape), max_sequences=3)), wanted)


@pytest.mark.quick
@pytest.mark.parametrize("phase", [info.name for info in phases.engines()])
@pytest.mark.parametrize("shape", [*FAMILIES, *MIXED])
def test_float32_gives_the_cpus_tokens(phase, shape):
    expected = answers("p00", model_on("cpu", shape, torch.float32), requests(shape), shape)
    assert answers(phase, model_on("cuda", shape, torch.float32), requests(shape), shape) == expected


@pytest.mark.parametrize("shape", FAMILIES)
def test_chunks_and_prefix_hits_give_the_cpus_tokens(shape):
    expected = answers("p00", model_on("cpu", shape, torch.float32), requests(shape), shape)
    options = EngineOptions(limits_of(shape), max_sequences=3, page_size=2, token_budget=7)
    engine = phases.load("p06").build(model_on("cuda", shape, torch.float32), options)
    assert run(engine, requests(shape)) == expected
    assert run(engine, requests(shape)) == expected and engine.metrics().cached_tokens > 0


@pytest.mark.parametrize("phase", [info.name for info in phases.engines()])
def test_sampled_tokens_are_the_cpus_too(phase):
    shape, wanted = "tiny-llama", requests("tiny-llama", temperature=1.0, top_p=0.9, seed=7, presence_penalty=0.3, n=2)
    expected = answers("p00", model_on("cpu", shape, torch.float32), wanted, shape)
    assert answers(phase, model_on("cuda", shape, torch.float32), wanted, shape) == expected


@pytest.mark.parametrize("phase, shape", each_once([info.name for info in phases.engines()], FAMILIES))
@torch.inference_mode()
def test_bfloat16_parts_from_float32_only_at_close_calls(phase, shape):
    exact = model_on("cpu", shape, torch.float32)
    done = answers(phase, model_on("cuda", shape, torch.bfloat16), requests(shape), shape)
    for request in requests(shape):
        tokens = list(request.prompt)
        for step, token in enumerate(done[request.id, 0].tokens):
            hidden = exact(torch.tensor(tokens), torch.arange(len(tokens)), NaiveAttention(exact))
            logits = exact.logits(hidden[-1:])[0]
            gap = float(logits.max() - logits[token])
            assert gap < CLOSE_CALL, f"{request.id}, step {step}: token {token} is {gap:.3f} below the best logit"
            tokens.append(token)
