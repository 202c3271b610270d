"""Divergence between two models' predictions, against closed forms."""

import math

import pytest
import torch

from gradus.bench.studies import divergence
from gradus.bench.studies.divergence import Scores, compare, compare_hidden, resampled_means, summarize


def logits(*rows: tuple[float, ...]) -> torch.Tensor:
    """Rows of probabilities as logits, shifted by a constant that must not matter."""
    return torch.tensor(rows).log() + 3.0


def scores(kl: list[float], nll: list[float] | None = None, before: list[float] | None = None) -> Scores:
    zeros = [0.0] * len(kl)
    return Scores(*(torch.tensor(values, dtype=torch.float64) for values in (kl, zeros, nll or zeros, before or zeros)))


# -- positions ---------------------------------------------------------------------------------------------------------


def test_two_tokens_by_hand():
    found = compare(logits((0.5, 0.5), (0.9, 0.1)), logits((0.25, 0.75), (0.8, 0.2)), torch.tensor([0, 1]))
    first = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    second = 0.9 * math.log(0.9 / 0.8) + 0.1 * math.log(0.1 / 0.2)
    assert found.kl.tolist() == pytest.approx([first, second], rel=1e-5)
    assert found.nll.tolist() == pytest.approx([-math.log(0.25), -math.log(0.2)], rel=1e-5)
    assert found.reference_nll.tolist() == pytest.approx([-math.log(0.5), -math.log(0.1)], rel=1e-5)
    assert found.top1.tolist() == [0.0, 1.0]


def test_models_that_differ_in_the_last_digits_are_told_apart():
    """For small differences d of the logits the divergence is half the variance of d under p."""
    generator = torch.Generator().manual_seed(0)
    before, change = torch.randn(40, 5000, generator=generator), 1e-4 * torch.randn(40, 5000, generator=generator)
    found = compare(before, before + change, torch.zeros(40, dtype=torch.int64))
    p, d = before.double().softmax(-1), (before + change).double() - before.double()
    wanted = ((p * d**2).sum(-1) - (p * d).sum(-1) ** 2) / 2
    torch.testing.assert_close(found.kl, wanted, rtol=1e-3, atol=0)


def test_a_model_that_knows_nothing_is_as_perplexed_as_its_vocabulary_is_large():
    sharp, flat = torch.zeros(5, 300), torch.zeros(5, 300)
    sharp[:, 7] = 50.0
    found = compare(sharp, flat, torch.full((5,), 7))
    told = summarize(found, torch.arange(5))
    assert told["kl"] == pytest.approx(math.log(300)) and told["top1"] == 0.0
    assert told["perplexity"] == pytest.approx(300, rel=1e-5) and told["reference_perplexity"] == pytest.approx(1)
    assert told["perplexity_ratio"] == pytest.approx(300, rel=1e-5)


def test_logits_are_made_of_a_few_positions_at_a_time_and_in_order(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    head, hidden = torch.randn(50, 8, generator=generator), torch.randn(23, 8, generator=generator)
    others, targets = hidden + 0.3 * torch.randn(23, 8, generator=generator), torch.arange(23)
    seen = []

    def made(rows: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return rows @ head.T

    whole = compare(hidden @ head.T, others @ head.T, targets)
    monkeypatch.setattr(divergence, "CHUNK_VALUES", 50 * 4)
    found = compare_hidden(made, hidden, made, others, targets)
    assert max(seen) == 4 and sum(seen) == 1 + 2 * 23
    for part, wanted in zip(found, whole, strict=True):
        # how float32 products round depends on how many rows are multiplied at once
        torch.testing.assert_close(part, wanted, rtol=1e-5, atol=1e-5)


def test_a_vocabulary_larger_than_a_chunk_still_gets_its_positions(monkeypatch):
    monkeypatch.setattr(divergence, "CHUNK_VALUES", 10)
    assert [(rows.start, rows.stop) for rows in divergence.chunks(3, 151_936)] == [(0, 1), (1, 2), (2, 3)]
    assert [(rows.start, rows.stop) for rows in divergence.chunks(5, 5)] == [(0, 2), (2, 4), (4, 5)]


# -- figures -----------------------------------------------------------------------------------------------------------


def test_means_are_over_positions_and_the_tail_is_of_the_worst_thousandth():
    values = [float(index) for index in range(1001)]
    told = summarize(scores(values), torch.tensor([0] * 1000 + [1]))
    assert told["kl"] == pytest.approx(500) and told["kl_p50"] == pytest.approx(500)
    assert told["kl_p999"] == pytest.approx(999) and told["kl_max"] == 1000


def test_the_ratio_of_perplexities_is_paired():
    """Half the text is hard and half is easy, for both models alike: all that differs is a tenth of a nat."""
    before = [0.5, 9.0] * 50
    told = summarize(scores([0.0] * 100, [value + 0.1 for value in before], before), torch.arange(100))
    assert told["perplexity_ratio"] == pytest.approx(math.exp(0.1))
    assert (told["perplexity_ratio_error"] or 0) < 1e-4
    assert told["perplexity"] == pytest.approx(math.exp(4.85), rel=1e-5)


def test_the_standard_error_is_that_of_the_mean_of_documents():
    means = torch.randn(200, generator=torch.Generator().manual_seed(1)).double()
    resampled = resampled_means(means * 30, torch.full((200,), 30))
    assert resampled.mean().item() == pytest.approx(means.mean().item(), abs=0.02)
    assert resampled.std().item() == pytest.approx(means.std().item() / math.sqrt(200), rel=0.1)


def test_more_positions_of_the_same_documents_make_no_figure_surer():
    once = summarize(scores([0.1, 0.2, 0.4]), torch.tensor([0, 1, 2]))
    often = summarize(scores([0.1, 0.2, 0.4] * 100), torch.tensor([0, 1, 2] * 100))
    assert often["kl_error"] == pytest.approx(once["kl_error"], rel=1e-6) and once["kl_error"] > 0.05


def test_one_document_has_no_standard_error_and_numbers_of_documents_may_have_gaps():
    assert summarize(scores([0.1, 0.2, 0.4]), torch.tensor([5, 5, 5]))["kl_error"] is None
    gaps, dense = (summarize(scores([0.1, 0.2]), torch.tensor(which)) for which in ([3, 90], [0, 1]))
    assert gaps == dense and gaps["kl_error"] is not None
