"""p09's paged attention, interpreted: run by test_p09.py, and by `gradus check p09` on a student's file.

Tiny on purpose: the interpreter takes tens of milliseconds per program. Pages that no sequence has, positions behind a
sequence's last one, and new memory are poisoned with NaN.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gradus.cache import TableChange
from gradus.config.options import EngineOptions
from gradus.engine.plan import Plan, Span
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.execution.layout import lay_out
from gradus.models import SHAPES, create_model, randomize
from phases.p04_paged_cache.attention import GatherAttention, PageTensors
from phases.p04_paged_cache.engine import paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.engine import build as build_p06
from phases.p06_chunked_prefill.scheduler import ChunkedPrefill
from phases.p09_triton_attention.attention import TritonAttention
from phases.p09_triton_attention.paged_attention import paged_attention, paged_attention_reference
from tests.kernels.cases import Step, parted
from tests.phases.conftest import FAMILIES
from tests.phases.drive import run

MIXED = [(1, 37), (3, 3), (20, 45), (1, 1), (1, 0), (0, 0)]  # decode, prompt, chunk, first token, padding twice
DECODES = [(1, 37), (1, 0), (1, 1), (1, 130), (1, 17)]


@pytest.fixture(autouse=True)
def _poisoned():
    torch.set_deterministic_debug_mode("error")  # torch.empty then gives NaN
    yield
    torch.set_deterministic_debug_mode("default")


def attend(kernel, step: Step) -> Tensor:
    tables = step.tables[step.slots].long()
    numbers = (step.numbers(part).long() for part in (step.query_start, step.lengths))
    return kernel(
        step.q, step.keys, step.values, tables, *numbers, longest=max(count for count, _ in step.spans),
        scale=0.3, window=step.window, softcap=step.softcap, sinks=step.sink_logits,
    )  # fmt: skip


def off_by(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


STEPS = {
    "decodes": Step(DECODES),
    "decodes in a window": Step(DECODES, window=16, group=3, head_dim=24),
    "a mixed step": Step(MIXED),
    "a mixed step in a window": Step(MIXED, window=7),
    "a soft cap, odd pages": Step(MIXED, softcap=1.5, page=24),
    "sinks in a window": Step(MIXED, window=7, group=8, sinks=True),
    "an odd group and width": Step([(22, 40), (1, 60)], group=3, head_dim=24),
    "one key head of 17": Step([(5, 20), (1, 9)], heads=1, group=17, head_dim=16),
    "float16": Step([(2, 90), (1, 33)], heads=1, group=5, head_dim=20, window=50, dtype=torch.float16),
}


SINKS = [name for name, step in STEPS.items() if step.sinks]


@pytest.mark.parametrize("name", [name for name in STEPS if name not in SINKS])
def test_a_step_attends_as_the_formula_says(name):
    step = STEPS[name]
    found = attend(paged_attention, step)
    assert not found.isnan().any(), "there are values that nothing wrote, or that came from what a query must not see"
    error, most = off_by(found, step.expected()), 1e-5 if step.dtype == torch.float32 else 3e-3
    assert error <= most, f"{name}: {parted(found, step.expected())}"


@pytest.mark.parametrize("shift", [100.0, -100.0])
def test_scores_far_from_zero_neither_overflow_nor_vanish(shift):
    """exp(100 · …) is infinite and exp(-100 · …) is 0 in float32, unless the greatest score is taken away first."""
    step = Step([(1, 70), (4, 66)], heads=1)
    step.keys += shift / step.head_dim
    step.q = step.q.abs() + 10
    found = attend(paged_attention, step)
    assert off_by(found, step.expected()) <= 1e-4, (
        f"exp(score) overflows or is 0 unless the greatest score is subtracted: {parted(found, step.expected())}"
    )


def test_a_row_that_sees_none_of_the_first_keys_is_not_nan():
    """With a window of 7, the last of 48 rows see none of the first 32 keys that their tile takes in."""
    step = Step([(48, 60)], heads=1, group=1, head_dim=16, window=7)
    found = attend(paged_attention, step)
    assert not found.isnan().any(), "a row that has seen no key has a peak of -inf, and -inf - -inf is NaN"
    assert off_by(found, step.expected()) <= 1e-5, f"48 rows in a window of 7: {parted(found, step.expected())}"


def test_a_row_that_has_seen_no_key_hands_on_no_peak():
    """A peak of 0 would hide the scores of some -300 that come later."""
    step = Step([(48, 60)], heads=1, group=1, head_dim=16, window=7)
    step.keys -= 100 / step.head_dim
    step.q = step.q.abs() + 10
    error = off_by(attend(paged_attention, step), step.expected())
    assert error <= 1e-4, (
        f"the peak of a row that has seen no key stays -inf, whatever you subtract: off by {error:.1e}"
    )


@pytest.mark.parametrize("name", SINKS)
def test_a_step_with_sinks_attends_as_the_formula_says(name):
    test_a_step_attends_as_the_formula_says(name)


@pytest.mark.parametrize("name", STEPS)
def test_the_reference_attends_as_the_formula_says(name):
    step = STEPS[name]
    error, most = off_by(attend(paged_attention_reference, step), step.expected()), 1e-5
    assert error <= (most if step.dtype == torch.float32 else 3e-3), f"{name}: off by {error:.1e}"


def test_the_backend_attends_as_the_torch_backend_does():
    """A prompt, then a chunk of another beside its decode, then two decodes."""
    config = SHAPES["tiny-qwen3"]
    one, two = TableChange(0, ((3, 1, 5),)), TableChange(0, ((6, 7, 9),))
    steps = [
        Plan([Span(None, 2, 0, range(9), 1, one)]),
        Plan([Span(None, 2, 9, (0,), 1, one), Span(None, 0, 0, range(11), 0, two)]),
        Plan([Span(None, 0, 11, (0,), 1, two), Span(None, 2, 10, (0,), 1, one)]),
    ]
    backends = [
        kind(config, PageTensors(config, 12, 4, torch.float32, torch.device("cpu")))
        for kind in (GatherAttention, TritonAttention)
    ]
    generator = torch.Generator().manual_seed(0)
    for plan in steps:
        batch = lay_out(plan, torch.device("cpu"))
        for backend in backends:
            backend.prepare(batch)
        for layer in (0, 1):
            shapes = [
                (len(batch.positions), n, config.head_dim) for n in (config.num_heads, *[config.num_kv_heads] * 2)
            ]
            q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
            expected, found = (backend.attend(layer, q, k, v) for backend in backends)
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), (
                f"layer {layer}: off by {off_by(found, expected):.1e}"
            )


@pytest.mark.parametrize("shape", [*FAMILIES, "tiny-gpt-oss"])
def test_the_kernel_gives_the_tokens_of_p06(shape):
    """Two sequences and a third that waits, in chunks, on few pages: p06's engine, but for its attention."""
    windows = tuple(dict.fromkeys(SHAPES[shape].windows))  # a layer of each kind that the family has
    config = replace(SHAPES[shape].stage(range(len(windows))), windows=windows, context_length=64)
    model = create_model(config)
    randomize(model, seed=0, std=0.1)
    limits = ModelLimits(config.vocab_size, 64)
    options = EngineOptions(limits, max_sequences=2, page_size=4, cache_tokens=48, token_budget=7)
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    prompts = [(7 * i) % 300 for i in range(18)], [5], [9, 8, 7]
    asked = [Request.create(f"r{i}", prompt, params, limits) for i, prompt in enumerate(prompts)]
    scheduler = ChunkedPrefill(PrefixCache(options.cache_blocks, 4), 2, 7)
    assert run(paged_engine(model, options, scheduler, TritonAttention), asked) == run(build_p06(model, options), asked)
