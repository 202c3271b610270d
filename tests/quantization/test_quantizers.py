"""Rounding better than to nearest: less error of the output, by the definitions, and for the reasons they give."""

import pytest
import torch
from torch.nn import functional as F

from gradus.quantization.awq import clipped, column_factors
from gradus.quantization.gptq import DAMPING, gptq, inverse_factor
from gradus.quantization.grid import MOST, nearest, output_error, rounded, spanning, wide

GROUP, DTYPE = 32, torch.float16


def layer(rows=48, width=128, tokens=512, outliers=4, seed=0):
    """A matrix [N, K] and activations [T, K] as models have them: columns that go together, a few much larger."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, width, generator=generator) / width**0.5
    mixing = torch.randn(width, width, generator=generator) / width**0.5 + torch.eye(width)
    x = torch.randn(tokens, width, generator=generator) @ mixing
    x[:, torch.randperm(width, generator=generator)[:outliers]] *= 12
    return weight, x


def error(weight, found, x):
    """Return the output's error, relative to the output."""
    return ((F.linear(x, found) - F.linear(x, weight)).square().sum() / F.linear(x, weight).square().sum()).item()


def test_the_nearest_points_of_a_grid_are_half_a_step_away_at_most():
    weight, _ = layer()
    values, grid = nearest(weight, GROUP, DTYPE)
    assert values.min() >= 0 and values.max() <= MOST and (grid.zeros == grid.zeros.round()).all()
    found = wide(values, grid.per_column(GROUP))
    steps = grid.per_column(GROUP).scales
    assert ((found - weight).abs() <= 1.01 * steps).all()  # half, and half for the zero point's own rounding
    assert ((found - weight).abs() <= 0.51 * steps).float().mean() > 0.97


def test_zero_is_on_every_grid_and_groups_of_zeros_stay():
    weight, _ = layer()
    weight[:, 5] = 0
    weight[3, 32:64] = 0
    values, grid = nearest(weight, GROUP, DTYPE)
    found = wide(values, grid.per_column(GROUP))
    assert (found[:, 5] == 0).all() and (found[3, 32:64] == 0).all()


def test_an_output_s_error_follows_from_the_gram_matrix():
    weight, x = layer()
    difference = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        output_error(difference, x.T @ x), F.linear(x, difference).square().sum(0), rtol=1e-4, atol=1
    )


def test_the_factor_is_of_the_damped_inverse():
    _, x = layer(width=64)
    gram = (x.T @ x).double()
    factor = inverse_factor(gram)
    damped = gram + DAMPING * gram.diagonal().mean() * torch.eye(64)
    torch.testing.assert_close(factor.T @ factor @ damped, torch.eye(64).double(), rtol=1e-6, atol=1e-6)
    assert torch.equal(factor, factor.triu())


def test_gptq_rounds_to_its_grid_with_less_error():
    weight, x = layer()
    values, grid = gptq(weight, x.T @ x, GROUP, DTYPE)
    assert values.min() >= 0 and values.max() <= MOST and (values == values.round()).all()
    torch.testing.assert_close(grid, spanning(weight, GROUP, DTYPE))
    plain, _ = nearest(weight, GROUP, DTYPE)
    columns = grid.per_column(GROUP)
    assert error(weight, wide(values, columns), x) < 0.5 * error(weight, wide(plain, columns), x)


def test_without_correlations_gptq_rounds_to_nearest():
    """No column can make up for another."""
    weight, _ = layer()
    values, grid = gptq(
        weight, torch.diag(torch.rand(128, generator=torch.Generator().manual_seed(0)) + 0.1), GROUP, DTYPE
    )
    assert torch.equal(values, rounded(weight, grid.per_column(GROUP)))


def test_gptq_bears_inputs_that_are_always_zero():
    weight, x = layer()
    x[:, [3, 77]] = 0
    values, _ = gptq(weight, x.T @ x, GROUP, DTYPE)
    assert values.isfinite().all()


def test_a_column_s_error_goes_into_the_next_by_the_formula():
    """Two columns, by hand: the second moves by -e H⁻¹[0, 1] / H⁻¹[0, 0]."""
    weight = torch.tensor([[0.33, 0.0] + [0.0] * 30])
    weight[0, 2] = 1.5  # the group's range: 0 … 1.5, steps of 0.1
    gram = torch.eye(32) * 1e-3
    gram[:2, :2] = torch.tensor([[4.0, 3.0], [3.0, 3.0]])
    values, grid = gptq(weight, gram, GROUP, torch.float32)
    assert grid.scales.item() == pytest.approx(0.1) and grid.zeros.item() == 0
    assert values[0, 0] == 3 and values[0, 2] == 15  # 0.33 → 0.3: 0.03 are missing, times 3 / 3 in the second: 0.03
    assert values[0, 1] == 0  # 0.03 of a step of 0.1
    weight[0, 1] = 0.03  # with its own 0.03 it is 0.06
    values, _ = gptq(weight, gram, GROUP, torch.float32)
    assert values[0, 1] == 1


def test_awq_s_factors_make_columns_of_large_activations_larger_and_the_error_smaller():
    weight, x = layer()
    gram, magnitude = x.T @ x, x.abs().mean(0)
    factors = column_factors(weight, gram, magnitude, GROUP, DTYPE)
    large = magnitude > 4 * magnitude.median()
    assert large.sum() == 4 and factors[large].min() > 2 * factors[~large].median()
    values, grid = nearest(weight * factors, GROUP, DTYPE)
    found = wide(values, grid.per_column(GROUP)) / factors
    plain = wide(*(lambda v, g: (v, g.per_column(GROUP)))(*nearest(weight, GROUP, DTYPE)))
    assert error(weight, found, x) < 0.6 * error(weight, plain, x)


def test_where_activations_are_alike_factors_change_little():
    weight, x = layer(outliers=0)
    factors = column_factors(weight, x.T @ x, x.abs().mean(0), GROUP, DTYPE)
    assert factors.max() / factors.min() < 4


def test_clipping_is_never_worse_for_a_group():
    weight, x = layer()
    weight[:, ::32] *= 6  # one weight of each group is much larger
    gram = x.T @ x
    values, grid = clipped(weight, gram, GROUP, DTYPE)
    plain, spans = nearest(weight, GROUP, DTYPE)
    found, before = (wide(v, g.per_column(GROUP)) - weight for v, g in ((values, grid), (plain, spans)))
    for k in range(0, 128, GROUP):
        block, part = gram[k : k + GROUP, k : k + GROUP], slice(k, k + GROUP)
        assert (output_error(found[:, part], block) <= output_error(before[:, part], block) * 1.0001).all()
    assert (grid.scales < spans.scales).any()
