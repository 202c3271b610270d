"""The promises of p14's parts: a router's choice and weights, sorted pairs, groups of rows, experts that are read.

Each case is small enough to work out by hand.
"""

from itertools import combinations, product

import pytest
import torch

from gradus.models.config import Experts
from phases.p14_experts.dispatch import combine, sort_by_expert
from phases.p14_experts.distinct import expected_distinct
from phases.p14_experts.grouped import grouped
from phases.p14_experts.router import choose, route, weigh
from tests.phases.conftest import of

# -- the router --------------------------------------------------------------------------------------------------------


@of("p14")
def test_a_token_takes_its_best_experts_the_best_first(phase):
    found = choose(torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.0, 0.2]]), 2).tolist()
    assert found == [[1, 3], [0, 3]], f"the two highest scores are at [1, 3] and [0, 3]; yours: {found}"


@of("p14")
def test_a_correction_makes_an_expert_more_or_less_popular(phase):
    found = choose(torch.tensor([[0.5, 0.3, 0.2]]), 1, torch.tensor([-0.3, 0.0, 0.05])).tolist()
    assert found == [[1]], f"0.5 - 0.3, 0.3 and 0.2 + 0.05: expert 1 is the best; yours: {found}"


@of("p14")
def test_weights_are_the_scores_of_the_chosen(phase):
    scores = torch.tensor([[0.1, 0.5, 0.25, 0.15]])
    found = weigh(scores, torch.tensor([[1, 2]]), False)
    assert found.tolist() == [[0.5, 0.25]], f"experts 1 and 2 have 0.5 and 0.25; yours: {found.tolist()}"


@of("p14")
def test_normalized_weights_of_a_token_sum_to_its_scale(phase):
    scores = torch.tensor([[0.1, 0.5, 0.25, 0.15], [0.5, 0.125, 0.125, 0.25]])
    found = weigh(scores, torch.tensor([[1, 2], [3, 0]]), True, 3.0)
    wanted = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    assert torch.allclose(found, wanted), f"3 · 0.5 / 0.75 is 2, and so on: {wanted.tolist()}; yours: {found.tolist()}"


@of("p14")
def test_a_scale_counts_without_normalizing_too(phase):
    found = weigh(torch.tensor([[0.5, 0.25]]), torch.tensor([[1]]), False, 2.0).tolist()
    assert found == [[0.5]], f"2 · 0.25 is 0.5; yours: {found}"


@of("p14")
def test_a_correction_does_not_change_the_weights(phase):
    experts = Experts(3, 1, 4, sigmoid=True, normalized=False)
    chosen, weights = route(torch.tensor([[2.0, 0.0, -1.0]]), experts, torch.tensor([0.0, 5.0, 0.0]))
    assert chosen.tolist() == [[1]] and weights.tolist() == [[0.5]], (
        f"expert 1 is chosen, with the sigmoid of 0: 0.5; yours: {chosen.tolist()}, {weights.tolist()}"
    )


# -- sorted dispatch ---------------------------------------------------------------------------------------------------


@of("p14")
def test_pairs_are_sorted_by_expert_and_stay_in_order_within_one(phase):
    pairs, starts = sort_by_expert(torch.tensor([[2, 0], [0, 1], [2, 0]]), 3)
    assert pairs.tolist() == [1, 2, 5, 3, 0, 4], (
        f"pairs 1, 2 and 5 take expert 0, pair 3 takes 1, pairs 0 and 4 take 2; yours: {pairs.tolist()}"
    )
    assert list(starts) == [0, 3, 4, 6], f"3, 1 and 2 pairs: starts 0, 3, 4, 6; yours: {list(starts)}"


@of("p14")
@pytest.mark.parametrize(("chosen", "wanted"), [([[1]], [0, 0, 1, 1, 1]), ([[3], [0]], [0, 1, 1, 1, 2])])
def test_experts_that_no_token_takes_have_a_start_too(phase, chosen, wanted):
    _, starts = sort_by_expert(torch.tensor(chosen), 4)
    assert list(starts) == wanted, f"4 experts have 5 starts, {wanted} for {chosen}; yours: {list(starts)}"


@of("p14")
def test_the_sort_is_stable_for_many_pairs(phase):
    chosen = torch.tensor([[0, 1]] * 40)
    pairs, _ = sort_by_expert(chosen, 2)
    wanted = [*range(0, 80, 2), *range(1, 80, 2)]
    assert pairs.tolist() == wanted, f"0, 2, 4 … then 1, 3, 5 …; yours begins with {pairs.tolist()[:5]}"


@of("p14")
def test_results_return_to_their_tokens_with_their_weights(phase):
    results = torch.tensor([[10.0], [20.0], [30.0], [40.0]])  # of pairs 2, 0, 3, 1
    weights = torch.tensor([[1.0, 0.5], [0.25, 2.0]])
    found = combine(results, torch.tensor([2, 0, 3, 1]), weights)
    assert found.tolist() == [[40.0], [62.5]], (
        f"token 0 has 1 · 20 + 0.5 · 40, token 1 has 0.25 · 10 + 2 · 30: 40 and 62.5; yours: {found.tolist()}"
    )


@of("p14")
def test_results_are_added_in_float32(phase):
    results = torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)
    found = combine(results, torch.arange(3), torch.ones(1, 3))
    assert found.dtype == torch.float32 and found.item() == 258, (
        f"256 + 1 + 1 is 258 in float32; yours is {found.item():g} in {found.dtype}"
    )
    found = combine(results[1:2], torch.zeros(1, dtype=torch.int64), torch.tensor([[0.3]])).item()
    assert abs(found - 0.3) < 1e-7, (
        f"a result of 1 in bfloat16 times a weight of 0.3 in float32 is 0.3; yours: {found:g}"
    )


# -- the grouped product -----------------------------------------------------------------------------------------------


@of("p14")
def test_each_expert_multiplies_its_own_rows(phase):
    rows = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]])
    found = grouped(rows, [0, 2, 2, 5], lambda expert, own: own * 10**expert).flatten().tolist()
    assert found == [1, 2, 300, 400, 500], (
        f"expert 0 has 2 rows, 1 none, 2 has 3: [1, 2, 300, 400, 500]; yours: {found}"
    )


@of("p14")
def test_an_expert_is_read_once_if_it_has_rows_and_never_without(phase):
    calls = []

    def expert(number, own):
        calls.append((number, len(own)))
        return own

    grouped(torch.zeros(6, 2), [0, 0, 4, 4, 5, 6, 6], expert)
    assert sorted(calls) == [(1, 4), (3, 1), (4, 1)], (
        f"experts 1, 3 and 4 have 4, 1 and 1 rows, and no other is read; yours called (expert, rows): {calls}"
    )


@of("p14")
def test_the_rows_that_come_in_stay_as_they_are(phase):
    rows = torch.ones(3, 2)
    grouped(rows, [0, 1, 3], lambda expert, own: own + 1)
    assert rows.eq(1).all(), f"a grouped product writes a result of its own; yours changed the rows to {rows.tolist()}"


@of("p14")
def test_no_rows_give_no_results(phase):
    found = grouped(torch.zeros(0, 4), [0, 0, 0], lambda expert, own: own)
    assert found.shape == (0, 4), f"no rows in, no rows out, [0, 4]; yours: {list(found.shape)}"


@of("p14")
@pytest.mark.parametrize("seed", range(3))
def test_sorting_and_combining_give_each_token_its_own_experts(phase, seed):
    torch.manual_seed(seed)
    chosen, weights = torch.rand(7, 5).topk(3).indices, torch.rand(7, 3)
    pairs, starts = sort_by_expert(chosen, 5)
    rows = torch.arange(7.0)[pairs // 3, None]
    results = grouped(rows, starts, lambda expert, own: 100.0 * expert + own)  # says which expert had which token
    found, wanted = combine(results, pairs, weights), torch.zeros(7)
    for token, place in product(range(7), range(3)):
        wanted[token] += weights[token, place] * (100 * chosen[token, place] + token)
    wrong = (found[:, 0] - wanted).abs() > 1e-3
    assert not wrong.any(), (
        f"token 0 takes {chosen[0].tolist()}: its sum is {wanted[0]:.2f}, yours {found[0, 0]:.2f}; of 7 tokens "
        f"{int(wrong.sum())} are wrong"
    )


# -- the experts that a batch reads ------------------------------------------------------------------------------------


@of("p14")
@pytest.mark.parametrize(("count", "chosen"), [(8, 2), (128, 8), (4, 4)])
def test_one_token_reads_what_it_takes(phase, count, chosen):
    found = expected_distinct(count, chosen, 1)
    assert found == pytest.approx(chosen), f"one token reads its {chosen} of {count} experts; yours: {found:g}"


@of("p14")
@pytest.mark.parametrize(("count", "chosen", "tokens"), [(4, 1, 2), (4, 2, 2), (4, 2, 3), (5, 3, 2)])
def test_the_expected_number_is_the_average_over_all_choices(phase, count, chosen, tokens):
    choices = list(product(combinations(range(count), chosen), repeat=tokens))
    wanted = sum(len(set().union(*each)) for each in choices) / len(choices)
    found = expected_distinct(count, chosen, tokens)
    assert found == pytest.approx(wanted), (
        f"{tokens} tokens that take {chosen} of {count} read {wanted:.3f} on average over all {len(choices)} ways to "
        f"choose; yours says {found:.3f}"
    )


@of("p14")
def test_no_tokens_read_nothing(phase):
    found = expected_distinct(8, 2, 0)
    assert found == 0, f"a batch of no tokens reads no expert; yours: {found:g}"
