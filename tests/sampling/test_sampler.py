"""Sampling is exact, row by row: filters, penalties, the distribution drawn from, and independence of neighbors."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradus.engine.plan import Admission, Plan, Span
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import SpanResult
from gradus.execution.result import StepResult
from gradus.kernels.sampling.noise import exponential, philox
from gradus.sampling.sampler import Rows, Sampler, ascending, lowest_kept, race
from tests.pairwise import first
from tests.sampling.conftest import MakeSampler, reference

VOCAB = 37
LIMITS = ModelLimits(vocab_size=VOCAB, context_length=512, eos_token_ids=(2,))


def sampler_with(
    make_sampler: MakeSampler, *params: SamplingParams, prompt=(5, 6), output=(), limits: ModelLimits = LIMITS
) -> Sampler:
    """A sampler whose slot i samples by params[i]."""
    sampler = make_sampler(limits.vocab_size, len(params))
    requests = [Request.create(f"r{slot}", prompt, each, limits) for slot, each in enumerate(params)]
    sampler.admit([Admission(slot, request, 0, (*prompt, *output)) for slot, request in enumerate(requests)])
    return sampler


def sample(sampler: Sampler, logits: torch.Tensor, position: int = 2) -> list[SpanResult]:
    """A result per row, as a step of so many spans gives them."""
    drawn = sampler.sample(logits.to(sampler.device), rows(len(logits), position))
    plan = Plan([Span(None, slot, 0, (0,), logits=1) for slot in range(len(logits))])
    return list(StepResult.of(plan, len(logits), drawn, sampler.device).get())


def rows(count: int, position: int) -> Rows:
    return Rows(np.arange(count), np.full(count, position))


def tokens(results) -> list[int]:
    return [result.tokens[0] for result in results]


# -- noise ------------------------------------------------------------------------------------------------------------


def test_philox_matches_the_authors_known_answers():
    """Random123's kat_vectors for philox4x32-10."""
    answers = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    for counter, key, expected in answers:
        words = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
        assert tuple(int(word) for word in words) == expected


def test_noise_is_a_function_of_seed_position_and_token_alone():
    seeds, positions = torch.tensor([7, 8, 7, -1]), torch.tensor([3, 3, 4, 3])
    together = exponential(seeds, positions, VOCAB)
    for row in range(4):
        assert torch.equal(exponential(seeds[row : row + 1], positions[row : row + 1], VOCAB)[0], together[row])
    assert torch.equal(exponential(seeds, positions, 5), together[:, :5])
    assert len({tuple(row.tolist()) for row in together}) == 4


def test_noise_is_exponentially_distributed_and_never_zero_or_infinite():
    noise = exponential(torch.arange(50), torch.arange(50), 4001).flatten().double()
    assert noise.min() > 0 and noise.max() < math.inf
    assert noise.mean().item() == pytest.approx(1, abs=0.01)
    for quantile in (0.1, 0.5, 0.9):  # Kolmogorov's distance over 200,000 draws is below 0.004 with p > 0.99
        below = (noise < -math.log(1 - quantile)).double().mean().item()
        assert below == pytest.approx(quantile, abs=0.004)


# -- filters ----------------------------------------------------------------------------------------------------------

ROWS = hnp.arrays("float32", st.integers(2, VOCAB), elements=st.integers(-40, 40).map(lambda x: x / 4))


@given(ROWS, st.integers(1, VOCAB), st.sampled_from([0.05, 0.3, 0.5, 0.9, 0.999, math.inf]))
def test_filters_keep_the_fewest_likeliest_tokens_that_suffice(row, k, top_p):
    scaled = torch.from_numpy(row - row.max())
    k = min(k, len(row))
    kept = scaled >= lowest_kept(scaled[None], torch.tensor([k]), torch.tensor([top_p]))
    assert kept[scaled == 0].all()
    worst = scaled[kept].min()
    assert torch.equal(kept, scaled >= worst)  # a cut by value: no token is preferred to an equally likely one
    assert (scaled > worst).sum() < k
    among = scaled[scaled >= scaled.sort(descending=True).values[k - 1]].double().exp()
    enough = top_p * among.sum()
    assert scaled[scaled > worst].double().exp().sum() < enough * (1 + 1e-5)
    if top_p < 1:
        assert scaled[kept].double().exp().sum() >= enough * (1 - 1e-5)


@given(st.integers(1, 4), hnp.arrays("float32", (3, 50), elements=st.floats(-50, 50, width=32)))
def test_rows_are_ranked_like_torch_ranks_them(count, values):
    some = torch.from_numpy(values[:count])
    assert torch.equal(ascending(some), some.sort().values)


def test_ties_with_the_last_of_the_top_k_count_for_top_p():
    """Four tokens tie for second place. Top-2 keeps all five, and 60 % of their probability takes all of them too."""
    scaled = torch.tensor([[0.0, *[math.log(0.5)] * 4, -9.0]])
    assert lowest_kept(scaled, torch.tensor([2]), torch.tensor([0.6])) == scaled[0, 1]
    assert lowest_kept(scaled, torch.tensor([2]), torch.tensor([0.3])) == 0


@pytest.mark.parametrize("draws", first([12_000, 40_000]))
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0, top_k=4),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=1.5, top_k=6, top_p=0.8, min_p=0.05),
    ],
)
def test_draws_follow_the_distribution(make_sampler, params, draws):
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0])
    scaled = (logits / params.temperature).double()
    if params.top_k:
        scaled[params.top_k :] = -math.inf
    probabilities = scaled.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    scaled[before >= params.top_p] = -math.inf
    scaled[probabilities < params.min_p * probabilities[0]] = -math.inf
    expected = scaled.softmax(-1) * draws
    seeded = [dataclasses.replace(params, seed=seed) for seed in range(draws)]
    sampler = sampler_with(make_sampler, *seeded, prompt=(1,), limits=ModelLimits(8, 64))
    drawn = sampler.sample(logits.repeat(draws, 1).to(sampler.device), rows(draws, 1)).tokens
    counts = torch.bincount(drawn.cpu(), minlength=8).double()
    assert (counts[expected == 0] == 0).all()
    chi_squared = ((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi_squared < 26  # 7 degrees of freedom: p = 0.0005


def test_a_seed_s_tokens_are_those_of_the_race(make_sampler):
    """p / Exp(1) by hand: what a seed has drawn once, it draws on every later version."""
    logits = torch.tensor([[1.0, 2.0, 0.0, 1.5]])
    scaled = logits - logits.max()
    seeds = torch.arange(6)
    expected = [1, 1, 3, 0, 1, 1]
    assert race(scaled.expand(6, -1), seeds, torch.full((6,), 5)).tolist() == expected
    params = [SamplingParams(temperature=1.0, seed=seed, top_k=4, top_p=0.99999) for seed in range(6)]
    sampler = sampler_with(make_sampler, *params, prompt=(1,), limits=ModelLimits(4, 64))
    assert tokens(sample(sampler, logits.repeat(6, 1), position=5)) == expected


@pytest.mark.parametrize("temperature", [1e-30, 1e-45, 1e-300])
def test_a_tiny_temperature_is_greedy_and_overflows_nothing(make_sampler, temperature):
    logits = torch.randn(3, VOCAB) * 50
    sampler = sampler_with(make_sampler, *[SamplingParams(temperature=temperature, top_p=0.5)] * 3)
    assert tokens(sample(sampler, logits)) == logits.argmax(-1).tolist()


# -- penalties, bias, early stops --------------------------------------------------------------------------------------


def test_penalties_follow_their_formulas():
    logits = torch.randn(1, VOCAB)
    params = SamplingParams(repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.25, logprobs=0)
    sampler = sampler_with(reference, params, prompt=(5, 6), output=(6, 9, 9))
    expected = logits[0].clone()
    for token in (5, 6, 9):
        expected[token] = expected[token] / 1.3 if expected[token] > 0 else expected[token] * 1.3
    expected[6] -= 0.25 * 1 + 0.7
    expected[9] -= 0.25 * 2 + 0.7
    row = sampler.adjust(logits, torch.tensor([0]), torch.tensor([5]))[0]
    torch.testing.assert_close(row, expected)


def test_every_sampled_token_counts_for_the_next_penalty(make_sampler):
    sampler = sampler_with(make_sampler, SamplingParams(presence_penalty=2.0))
    logits = torch.zeros(1, VOCAB)
    logits[0, :4] = torch.tensor([1.5, 1.4, 1.3, 1.2])
    assert [tokens(sample(sampler, logits.clone()))[0] for _ in range(4)] == [0, 1, 2, 3]


def test_a_slot_remembers_nothing_of_its_predecessor(make_sampler):
    sampler = sampler_with(make_sampler, SamplingParams(presence_penalty=2.0))
    logits = torch.zeros(1, VOCAB)
    logits[0, 7] = 1.0
    first = tokens(sample(sampler, logits.clone()))
    sampler.admit([Admission(0, Request.create("b", [1], SamplingParams(presence_penalty=2.0), LIMITS), 0, (1,))])
    assert tokens(sample(sampler, logits.clone())) == first == [7]


def test_logit_bias_is_added_and_can_force_or_forbid(make_sampler):
    logits = torch.randn(2, VOCAB)
    best = logits.argmax(-1).tolist()
    sampler = sampler_with(
        make_sampler, SamplingParams(logit_bias={11: 100}), SamplingParams(logit_bias={best[1]: -100})
    )
    forced, avoided = tokens(sample(sampler, logits))
    assert forced == 11 and avoided != best[1]


def test_no_stop_token_before_min_tokens(make_sampler):
    logits = torch.zeros(1, VOCAB)
    logits[0, 2], logits[0, 8] = 9.0, 8.0
    sampler = sampler_with(make_sampler, SamplingParams(min_tokens=2, stop_token_ids=[8]))
    assert tokens(sample(sampler, logits.clone(), position=2))[0] not in (2, 8)
    assert tokens(sample(sampler, logits.clone(), position=3))[0] not in (2, 8)
    assert tokens(sample(sampler, logits.clone(), position=4)) == [2]


def test_logprobs_are_the_models_own_before_every_adjustment(make_sampler):
    logits = torch.randn(1, VOCAB)
    raw = logits[0].log_softmax(-1)
    sampler = sampler_with(make_sampler, SamplingParams(logprobs=3, temperature=2.0, logit_bias={4: 50.0}, seed=1))
    (result,) = sample(sampler, logits)
    (reported,) = result.logprobs
    assert reported.token_id == 4 == result.tokens[0]
    assert reported.logprob == pytest.approx(raw[4].item(), abs=2e-6)
    values, ids = raw.topk(3)
    assert [token for token, _ in reported.top] == ids.tolist()
    assert [value for _, value in reported.top] == pytest.approx(values.tolist())


def test_logprobs_zero_reports_the_sampled_token_alone(make_sampler):
    (result,) = sample(sampler_with(make_sampler, SamplingParams(logprobs=0)), torch.randn(1, VOCAB))
    assert result.logprobs[0].top == ()


# -- independence -----------------------------------------------------------------------------------------------------

MIXED = [
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=5, seed=2),
    SamplingParams(temperature=1.2, top_p=0.8, seed=3),
    SamplingParams(temperature=1.0, min_p=0.1, repetition_penalty=1.5, seed=4),
    SamplingParams(temperature=1.0, top_k=30, top_p=0.5, seed=5, logprobs=2),
    SamplingParams(temperature=1.0, top_k=5, top_p=0.9, seed=6, logit_bias={3: 2.0}),
]


@given(st.permutations(range(len(MIXED))), st.integers(0, 10**6))
def test_a_rows_token_does_not_depend_on_its_neighbors(make_sampler, order, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(MIXED), VOCAB, generator=generator) * 3
    alone = [sample(sampler_with(make_sampler, MIXED[i]), logits[i : i + 1].clone())[0] for i in range(len(MIXED))]
    together = sample(sampler_with(make_sampler, *(MIXED[i] for i in order)), logits[list(order)])
    assert [alone[i] for i in order] == together


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_row_that_is_not_finite_ends_in_an_error_and_its_neighbors_do_not(make_sampler, poison):
    logits = torch.randn(3, VOCAB)
    best = logits.argmax(-1).tolist()
    logits[1, 9] = poison
    results = sample(sampler_with(make_sampler, SamplingParams(), SamplingParams(), SamplingParams()), logits)
    assert "finite" in results[1].error
    assert [results[0].tokens[0], results[2].tokens[0]] == [best[0], best[2]]


def test_a_row_with_nothing_left_to_choose_ends_in_an_error(make_sampler):
    limits = ModelLimits(vocab_size=2, context_length=8, eos_token_ids=(0, 1))
    sampler = sampler_with(make_sampler, SamplingParams(min_tokens=1), prompt=(1,), limits=limits)
    (result,) = sample(sampler, torch.zeros(1, 2), position=1)
    assert result.error
