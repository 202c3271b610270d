"""p09's kernels, p10's graphs and p11's masks on a CUDA GPU: what the formula says, and the CPU's tokens."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.engine.request import Request, SamplingParams
from phases.p09_triton_attention import norm
from phases.p09_triton_attention.paged_attention import paged_attention
from phases.p09_triton_attention.splits import split_attention
from tests.gpu.test_phases import model_on, requests
from tests.kernels.cases import Step
from tests.pairwise import pairwise
from tests.phases.conftest import FAMILIES, limits_of
from tests.phases.drive import run
from tests.phases.test_structured import ASKED, LIMITS, SHAPE, VOCABULARY, asked, is_right

pytestmark = pytest.mark.gpu

MIXED = [(1, 37), (3, 3), (200, 1045), (1, 1), (1, 0), (0, 0), (1, 3000)]
DECODES = [(1, 37), (1, 0), (1, 1), (1, 4130), (1, 17)] * 20
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": dict(heads=8, group=2, head_dim=128),
    "llama-3.2-1b": dict(heads=8, group=4, head_dim=64),
    "gemma3-270m": dict(heads=1, group=4, head_dim=256),
    "odd": dict(heads=3, group=5, head_dim=80),
}


@pytest.mark.quick
@pytest.mark.parametrize(
    "shape, spans, options, dtype",
    pairwise([*SHAPES], [MIXED, DECODES], [{}, {"window": 100}, {"softcap": 1.5}], [torch.float32, torch.bfloat16]),
)
def test_paged_attention_does_what_the_formula_says(shape, spans, options, dtype):
    step = Step(spans, device="cuda", dtype=dtype, **SHAPES[shape], **options)
    found = paged_attention(
        step.q, step.keys, step.values, step.tables[step.slots].long(),
        step.numbers(step.query_start).long(), step.numbers(step.lengths).long(),
        longest=max(count for count, _ in spans), scale=0.3, window=step.window, softcap=step.softcap,
    )  # fmt: skip
    expected = step.expected()
    assert (found.double() - expected).norm() <= (1e-5 if dtype == torch.float32 else 1e-2) * expected.norm()


@pytest.mark.quick
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spans", [DECODES, DECODES[:4]], ids=["many", "few"])
def test_split_attention_does_what_the_formula_says(shape, spans, dtype):
    step = Step(spans, device="cuda", dtype=dtype, **SHAPES[shape])
    lengths = step.numbers(step.lengths).long()
    found = split_attention(step.q, step.keys, step.values, step.tables[step.slots].long(), lengths, 0.3)
    expected = step.expected()
    assert (found.double() - expected).norm() <= (1e-5 if dtype == torch.float32 else 1e-2) * expected.norm()


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "width"), [(1, 1024), (64, 896), (8192, 2048), (3, 1)])
def test_the_norm_adds_and_normalizes(rows, width, dtype):
    x, delta = torch.randn(2, rows, width, device="cuda").to(dtype)
    weight, mine, theirs = torch.randn(width, device="cuda"), x.clone(), x.clone()
    found, expected = (
        norm.add_rms_norm(mine, delta, weight, 1e-5),
        norm.add_rms_norm_reference(theirs, delta, weight, 1e-5),
    )
    assert torch.equal(mine, theirs)
    torch.testing.assert_close(found, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", FAMILIES)
def test_replayed_and_padded_steps_give_the_cpus_tokens(shape):
    """Six slots for five requests, of answers that end one after the other: 5 run as 6 and 3 as 4."""
    wanted = []
    for number, request in enumerate(requests(shape)):
        params = SamplingParams(max_tokens=8 + 4 * number, ignore_eos=True)
        wanted.append(Request.create(request.id, request.prompt, params, limits_of(shape)))
    options = EngineOptions(limits_of(shape), max_sequences=6, page_size=4)
    expected = run(phases.load("p06").build(model_on("cpu", shape, torch.float32), options), wanted)
    engine = phases.load("p10").build(model_on("cuda", shape, torch.float32), options)
    assert run(engine, wanted) == expected
    assert engine.metrics().padding_rows > 0


def test_preempted_and_stopped_requests_leave_no_trace_in_graphs():
    """A pool that is too small, stop tokens that are seen late, chunks, and a step under way all the while."""
    shape, limits = "tiny-llama", limits_of("tiny-llama")
    options = EngineOptions(limits, max_sequences=4, page_size=4, cache_tokens=60, token_budget=8)
    free = run(phases.load("p06").build(model_on("cpu", shape, torch.float32), options), requests(shape))
    wanted = []
    for number, request in enumerate(requests(shape)):
        stops = (free[request.id, 0].tokens[number + 2],) if number % 2 else ()
        params = SamplingParams(
            max_tokens=24, ignore_eos=True, stop_token_ids=stops, temperature=number % 3, seed=number
        )
        wanted.append(Request.create(request.id, request.prompt, params, limits))
    expected = run(phases.load("p06").build(model_on("cpu", shape, torch.float32), options), wanted)
    engine = phases.load("p10").build(model_on("cuda", shape, torch.float32), options)
    assert run(engine, wanted) == expected
    assert engine.metrics().preemptions > 0


def test_masks_that_are_filled_while_the_model_runs_give_the_cpus_answers():
    """Greedy and sampled, in a pool that is too small, next to a request without structure."""
    options = EngineOptions(LIMITS, max_sequences=6, page_size=4, cache_tokens=100, vocabulary=lambda: VOCABULARY)
    wanted = [asked(n, f"r{n}.{t}", prompt=7, temperature=t, seed=n, n=2) for n in range(len(ASKED)) for t in (0, 1)]
    free = Request.create("free", [65] * 7, SamplingParams(max_tokens=20, ignore_eos=True), LIMITS)
    engine = phases.load("p11").build(model_on("cuda", SHAPE, torch.float32), options)
    found = run(engine, [*wanted, free])
    assert all(is_right(int(name[1]), ending.tokens) for (name, _), ending in found.items() if name != "free")
    assert found == run(phases.load("p11").build(model_on("cpu", SHAPE, torch.float32), options), [*wanted, free])
    assert engine.metrics().preemptions > 0
