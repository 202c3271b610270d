"""p09's split decodes, interpreted: run by test_p09.py, and by `gradus check p09` on a student's file.

New memory is poisoned with NaN.
"""

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.config.options import EngineOptions
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.models import SHAPES, create_model, randomize
from phases.p06_chunked_prefill.engine import build as build_p06
from phases.p09_triton_attention.engine import build
from phases.p09_triton_attention.paged_attention import KEYS
from phases.p09_triton_attention.splits import keys_of_part, merge_parts, split_attention
from phases.p09_triton_attention.watch import watched
from tests.kernels.cases import Step, parted
from tests.phases.drive import parting, run


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("error")  # torch.empty then gives NaN
    yield
    torch.set_deterministic_debug_mode("default")


# -- who reads which keys ----------------------------------------------------------------------------------------------


@triton.jit
def parts_kernel(out: tensor, length: int, PARTS: constexpr, KEYS: constexpr) -> None:
    part = tl.program_id(0)
    start, stop = keys_of_part(length + tl.zeros([], tl.int32), part, PARTS, KEYS)
    tl.store(out + 2 * part, start)
    tl.store(out + 2 * part + 1, stop)


def parts_of(length: int, parts: int) -> list[tuple[int, int]]:
    out = torch.full((parts, 2), -1)
    parts_kernel[(parts,)](out, length, PARTS=parts, KEYS=KEYS)
    return [(start, stop) for start, stop in out.tolist()]


LENGTHS = [0, 1, KEYS - 1, KEYS, KEYS + 1, 3 * KEYS, 5 * KEYS - 7, 17 * KEYS + 3]


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_every_key_belongs_to_one_part(parts):
    for length in LENGTHS:
        found = parts_of(length, parts)
        for key in range(length):
            owners = sum(start <= key < stop for start, stop in found)
            assert owners == 1, (
                f"{length} keys, {parts} parts: key {key} is to be read once, and is read {owners} times: {found}"
            )
        beyond = [each for each in found if each[1] > max(length, each[0])]
        assert not beyond, f"{length} keys, {parts} parts: none may end behind the last key, and yours are {found}"
        turned = [each for each in found if each[1] < each[0]]
        assert not turned, (
            f"{length} keys, {parts} parts: start and stop of a part without keys are equal; yours: {found}"
        )


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_no_part_makes_more_trips_than_an_even_share_needs(parts):
    for length in LENGTHS:
        found, blocks = parts_of(length, parts), triton.cdiv(length, KEYS)
        most = max(triton.cdiv(max(stop - start, 0), KEYS) for start, stop in found)
        share = triton.cdiv(blocks, parts)
        assert most <= share, (
            f"{length} keys are {blocks} blocks, so with {parts} parts none needs more than {share} of them; "
            f"one of yours takes {most}: {found}"
        )


# -- what they leave ---------------------------------------------------------------------------------------------------


@triton.jit
def combining_kernel(
    out: tensor, seen: tensor, total: tensor, peak: tensor, PARTS: constexpr, WIDTH: constexpr
) -> None:
    part, lane = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    wide = tl.load(seen + part[:, None] * WIDTH + lane[None, :])
    tl.store(out + lane, merge_parts(wide, tl.load(total + part), tl.load(peak + part)))


def combined(scores: Tensor, values: Tensor, parts: list[slice]) -> Tensor:
    """Softmax of the scores times values, by way of parts. scores: [n]; values: [n, 16]."""
    peaks = [scores[part].max() if len(scores[part]) else torch.tensor(float("-inf")) for part in parts]
    weights = [(scores[part] - peak).exp() for part, peak in zip(parts, peaks, strict=True)]
    total = torch.stack([weight.sum() for weight in weights])
    seen = torch.stack([weight @ values[part] for weight, part in zip(weights, parts, strict=True)])
    out = torch.empty(16)
    combining_kernel[(1,)](out, seen, total, torch.stack(peaks), PARTS=len(parts), WIDTH=16)
    return out


HALVES = {"halves": [slice(0, 6), slice(6, 12)], "a short and a long part": [slice(0, 1), slice(1, 12)]}
QUARTERS = {"three parts and an empty one": [slice(0, 4), slice(4, 8), slice(8, 12), slice(0, 0)]}


@pytest.mark.parametrize("cut", HALVES | QUARTERS)
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (200.0, 0.0), (1.0, -200.0)])
def test_parts_together_are_the_softmax_over_all_keys(cut, scale, shift):
    scores, values = scale * torch.randn(12) + shift, torch.randn(12, 16)
    found, expected = combined(scores, values, (HALVES | QUARTERS)[cut]), scores.softmax(0) @ values
    assert not found.isnan().any(), "exp(score) overflows, or an empty part's peak of -inf has met another"
    error = (found - expected).norm() / expected.norm()
    assert error < 1e-5, (
        f"12 keys, {cut}, scores around {shift:.0f}, against the softmax over all keys: {parted(found, expected)}"
    )


def test_parts_without_any_key_give_zero():
    found = combined(torch.empty(0), torch.empty(0, 16), [slice(0, 0)] * 2)
    assert not found.isnan().any(), "no part has a key: every peak is -inf, and -inf - -inf is NaN"
    assert not found.any(), "no part has a key, and the result is not 0"


# -- all of it ---------------------------------------------------------------------------------------------------------

STEPS = {
    "lengths that differ": Step([(1, 37), (1, 0), (1, 1), (1, 130), (1, 17)]),
    "an odd group and width": Step([(1, 60), (1, 33)], group=3, head_dim=24),
    "one key head of 17": Step([(1, 75)], heads=1, group=17, head_dim=16),
}


@pytest.mark.parametrize("name", STEPS)
def test_split_decodes_attend_as_the_formula_says(name):
    step = STEPS[name]
    lengths = step.numbers(step.lengths).long()
    found = split_attention(step.q, step.keys, step.values, step.tables[step.slots].long(), lengths, 0.3)
    assert not found.isnan().any(), "there are values that nothing wrote, or that came from what a query must not see"
    error = (found.double() - step.expected()).norm() / step.expected().norm()
    assert error <= 1e-5, f"{name}: {parted(found, step.expected())}"


def test_the_engine_with_all_kernels_gives_the_tokens_of_p06():
    """Three sequences in chunks on few pages: norms, tiles and parts in one engine, each kernel launched."""
    config = replace(SHAPES["tiny-llama"].stage(range(2)), context_length=64)
    model = create_model(config)
    randomize(model, seed=0, std=0.1)
    limits = ModelLimits(config.vocab_size, 64)
    options = EngineOptions(limits, max_sequences=3, page_size=4, cache_tokens=96, token_budget=9)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    prompts = [(7 * i) % 300 for i in range(34)], [5], [9, 8, 7]
    asked = [Request.create(f"r{i}", prompt, params, limits) for i, prompt in enumerate(prompts)]
    expected = run(build_p06(model, options), asked)
    with watched() as seen:
        found = run(build(model, options), asked)
    for name, ending in expected.items():
        assert found[name].tokens == ending.tokens, parting(prompts[0], found[name].tokens, ending.tokens)
    ran = {"paged_attention_kernel", "attend_part_kernel", "merge_parts_kernel", "add_rms_norm_kernel"}
    assert ran <= seen.keys() and all(seen[name].programs == len(seen[name].read) for name in ran)
