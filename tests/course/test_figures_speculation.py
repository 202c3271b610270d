"""The numbers in p08's figures and lesson follow from the code, or can be computed by hand."""

import random

import pytest
import torch

from gradus.bench.predict.roofline import Machine, SpanShape, step_cost, streamed_parameters
from gradus.course.figures import speculation as drawn
from gradus.course.figures.budget import TWO_CORES
from gradus.kernels.sampling.noise import exponential
from gradus.models.shapes import SHAPES
from phases.p08_speculation import payoff, rules
from tests.course.conftest import ROOT

PAGES = sorted((ROOT / "phases/p08_speculation").glob("*.md"))
LESSON = " ".join(word for page in PAGES for word in page.read_text(encoding="utf-8").split())
LLAMA, SMOL = SHAPES["llama-3.2-1b"], SHAPES["smollm2-135m"]


def says(*sentences: str) -> None:
    for sentence in sentences:
        assert sentence in LESSON, f"the lesson should say: {sentence}"


def test_the_step_that_is_drawn_is_what_the_code_makes_of_its_text():
    match, drafts, given = drawn.one_step()
    assert (match, drafts) == (3, ["on", "the", "mat", "and"])
    assert given == ["on", "the", "sofa"]


@pytest.mark.parametrize(("rate", "drafts"), [(0.0, 3), (0.3, 1), (0.8, 4), (0.95, 8), (1.0, 4)])
def test_expected_tokens_are_those_of_a_run_by_chance_and_of_the_closed_formula(rate, drafts):
    chance, total, runs = random.Random(0), 0, 20_000
    for _ in range(runs):
        total += 1
        for _ in range(drafts):
            if chance.random() >= rate:
                break
            total += 1
    expected = payoff.expected_tokens(rate, drafts)
    assert expected == pytest.approx(total / runs, rel=0.02)
    if rate < 1:
        assert expected == pytest.approx((1 - rate ** (drafts + 1)) / (1 - rate))


def test_what_the_lesson_says_of_expected_tokens():
    four, eight = (payoff.expected_tokens(0.8, drafts) for drafts in (4, 8))
    says(f"With a = 0.8, four drafts give {four:.2f} tokens. Eight give {eight:.2f}, and no number gives more than 1 /")
    one, two, three, four = (payoff.expected_tokens(0.5, drafts) for drafts in (1, 2, 3, 4))
    says(f"{one:g}, {two:g}, {four:.2f}, and 2.", f"{one} / 1.1 = {one / 1.1:.2f}", f"{two} / 1.2 = {two / 1.2:.2f}",
         f"{three} / 1.3 = {three / 1.3:.2f}")  # fmt: skip
    few, many = (payoff.expected_tokens(0.8, drafts) / (1 + drafts / 3) for drafts in (2, 8))
    says(f"k = 2: {payoff.expected_tokens(0.8, 2):.2f} tokens in 1 + 2/3 steps, {few:.2f} times")
    says(f"k = 8: {payoff.expected_tokens(0.8, 8):.2f} tokens in 1 + 8/3 steps, {many:.2f} times")


def test_what_the_lesson_says_of_llama_on_an_h200():
    machine = drawn.H200
    weights = 2 * streamed_parameters(LLAMA)
    says(f"{weights / 1e9:.2f} GB, or {1000 * weights / machine.bandwidth:.2f} ms at the 4.3 TB/s of an H200")
    row = step_cost(LLAMA, [SpanShape(0, 1)], payoff.BFLOAT16).matrix_flops / machine.rate
    says(f"The arithmetic of that row takes {1e6 * row:.0f} µs")
    assert payoff.step_seconds(LLAMA, machine, 1, 5) < 1.01 * payoff.step_seconds(LLAMA, machine, 1, 1)

    def waits_for_arithmetic(batch: int) -> bool:
        cost = step_cost(LLAMA, [SpanShape(512, 5, 5)] * batch, payoff.BFLOAT16)
        return cost.matrix_flops / machine.rate > cost.weight_bytes / machine.bandwidth

    full = next(batch for batch in range(1, 256) if waits_for_arithmetic(batch))
    says(f"some {5 * full} rows", f"At five rows each, {full} sequences fill that")
    assert payoff.speed_up(LLAMA, machine, 256, 0.6) < 1
    near, far = (
        payoff.expected_tokens(0.8, 4)
        * payoff.step_seconds(LLAMA, machine, 256, 1, context)
        / payoff.step_seconds(LLAMA, machine, 256, 5, context)
        for context in (512, 4096)
    )
    says(f"predicts a factor of {far:.2f} after 4,096 positions, and {near:.2f} after 512")


def test_what_the_lesson_says_of_a_draft_model_and_of_a_cpu():
    target, draft = SHAPES["qwen2.5-1.5b"], SHAPES["qwen2.5-0.5b"]
    drafting = 4 * payoff.step_seconds(draft, drawn.H200, 1, 1)
    assert drafting > payoff.step_seconds(target, drawn.H200, 1, 5)
    factor = payoff.speed_up(target, drawn.H200, 1, 0.6, draft_model=draft)
    says(f"predicts a factor of {factor:.2f}, which is no gain")
    rows = 2 * streamed_parameters(SMOL) / TWO_CORES.bandwidth * TWO_CORES.rate / (2 * streamed_parameters(SMOL))
    assert 4.5 < rows < 5, "nearly five rows, logits included"
    assert payoff.best_drafts(SMOL, TWO_CORES, 1, 0.8) == 4
    longer = payoff.step_seconds(SMOL, TWO_CORES, 4, 2) / payoff.step_seconds(SMOL, TWO_CORES, 4, 1)
    says(f"and a step {longer:.1f} times as long")
    assert [payoff.best_drafts(SMOL, TWO_CORES, 4, rate) for rate in (0.55, 0.65)] == [0, 1]


def test_a_draft_model_as_slow_as_its_target_never_pays_and_a_batch_takes_the_gain():
    machine = Machine(1e12, 1e14)
    assert payoff.speed_up(LLAMA, machine, 1, 0.9, draft_model=LLAMA) < 1 < payoff.speed_up(LLAMA, machine, 1, 0.9)
    for rate in payoff.RATES:
        gains = [drawn.predicted(rate, batch) for batch in (1, 16, 64, 256)]
        assert gains == sorted(gains, reverse=True)
        assert gains[0] == pytest.approx(payoff.expected_tokens(rate, payoff.DRAFTS), rel=0.01)


# -- the rules ---------------------------------------------------------------------------------------------------------


def pair(size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    p, q = torch.randn(2, size, generator=generator, dtype=torch.float64).mul(1.5).softmax(dim=-1)
    return p, q


def test_rejection_sampling_has_the_targets_distribution_and_accepts_as_its_formula_says():
    p, q = pair()
    generator, runs, accepted, counts = torch.Generator().manual_seed(0), 20_000, 0, [0] * len(p)
    for draft in torch.multinomial(q, runs, replacement=True, generator=generator).tolist():
        kept, token = rules.rejection(p, q, draft, generator)
        assert kept == (token == draft) or not kept
        accepted += kept
        counts[token] += 1
    assert torch.tensor(counts, dtype=torch.float64) / runs == pytest.approx(p, abs=0.012)
    assert accepted / runs == pytest.approx(rules.by_rejection(p, q), abs=0.01)


def test_two_races_with_the_engines_noise_meet_as_often_as_the_formula_says():
    p, q = pair()
    q[2] = 0.0
    q /= q.sum()
    runs = 20_000
    noise = exponential(torch.full((runs,), 5), torch.arange(runs), len(p)).double()
    target, drafter = (p / noise).argmax(dim=-1), (q / noise).argmax(dim=-1)
    assert float((target == drafter).double().mean()) == pytest.approx(rules.by_shared_noise(p, q), abs=0.01)
    assert float((target == q.argmax()).double().mean()) == pytest.approx(rules.by_likeliest(p, q), abs=0.01)
    alone = exponential(torch.full((runs,), 6), torch.arange(runs), len(p)).double()
    met = ((q / alone).argmax(dim=-1) == target).double().mean()
    assert float(met) == pytest.approx(rules.by_independent_noise(p, q), abs=0.01)


def test_the_same_noise_is_close_to_the_best_rule_at_every_temperature():
    for degree in rules.TEMPERATURES:
        best, shared, likeliest, own = rules.acceptance(degree).values()
        assert best - 0.06 < shared <= best and max(likeliest, own) < shared
    assert likeliest < 0.5 * shared and own < 0.5 * shared, "far behind at temperature 1"
    p, _ = pair()
    assert rules.by_rejection(p, p) == pytest.approx(1) and rules.by_shared_noise(p, p) == pytest.approx(1)


def test_a_drafter_that_is_certain_loses_nothing():
    p, _ = pair()
    certain = torch.zeros_like(p)
    certain[4] = 1.0
    for rule in rules.RULES.values():
        assert rule(p, certain) == pytest.approx(float(p[4]))
