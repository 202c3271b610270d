"""Keys and values as e4m3: the scale is the least power of two that will do, and rounding is to nearest."""

import pytest
import torch

from gradus.quantization.fp8 import E4M3
from gradus.quantization.kv import from_e4m3, rounded, to_e4m3

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def vectors(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    magnitudes = torch.logspace(-4, 3, 50).unsqueeze(1)
    return (torch.randn(50, 64, generator=generator) * magnitudes).to(dtype)


@pytest.mark.parametrize("largest, scale", [(448.0, 1.0), (448.1, 2.0), (224.0, 0.5), (1.75, 2.0**-8), (1.76, 2.0**-7)])
def test_the_scale_is_the_least_power_of_two_that_brings_a_vector_within_range(largest, scale):
    values, scales = to_e4m3(torch.tensor([0.1, -largest, 0.0]))
    assert scales.item() == scale and values[1].float().abs() in (448.0, 224.0)
    assert values.dtype == E4M3 and scales.dtype == torch.float32


@pytest.mark.parametrize("dtype", TYPES)
def test_each_value_is_off_by_a_sixteenth_at_most_or_by_nearly_nothing(dtype):
    x = vectors(dtype)
    error, largest = (rounded(x) - x).abs().double(), x.abs().amax(1, keepdim=True).double()
    assert rounded(x).dtype == dtype
    assert (error <= (x.abs().double() / 16).clamp(min=1e-4 * largest)).all()
    assert error.max() > 0


@pytest.mark.parametrize("width", [64, 128])
def test_a_power_of_two_costs_hardly_more_than_a_scale_that_fits(width):
    x = torch.randn(20_000, width, generator=torch.Generator().manual_seed(0))
    scales = x.abs().amax(1, keepdim=True) / 448
    fitting = (x / scales).to(E4M3).float() * scales
    errors = [((kept - x).norm(dim=1) / x.norm(dim=1)).mean() for kept in (rounded(x), fitting)]
    assert errors[1] < errors[0] < 1.08 * errors[1]


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_meant_is_exact_in_every_type_and_rounded_again_the_same(dtype):
    x = vectors(dtype)
    values, scales = to_e4m3(x)
    meant = values.double() * scales.double().unsqueeze(-1)
    assert torch.equal(from_e4m3(values, scales, out=torch.empty_like(x)).double(), meant)
    assert torch.equal(rounded(rounded(x)), rounded(x))


def test_zeros_stay_zeros_and_the_least_and_largest_numbers_stay_finite():
    numbers = torch.finfo(torch.float32)
    x = torch.tensor([[0.0, 0.0], [numbers.smallest_normal, 0.0], [numbers.max, -numbers.max], [1e-45, 0.0]])
    values, scales = to_e4m3(x)
    assert scales[0] == 2.0**-126 and not rounded(x)[0].any()
    assert (scales > 0).all() and scales.isfinite().all() and values.float().isfinite().all()


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_vector_that_is_not_finite_is_nan_throughout_and_others_are_as_they_were(broken):
    x = vectors()
    x[3, 5] = broken
    values, scales = to_e4m3(x)
    assert values[3].float().isnan().all() and scales[3].isnan() and rounded(x)[3].isnan().all()
    others = torch.arange(len(x)) != 3
    assert torch.equal(rounded(x)[others], rounded(vectors())[others])
