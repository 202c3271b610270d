"""The norm kernel by itself, interpreted: run by test_fused_model.py, and by `gradus check p09` on a student's file.

Tiny on purpose: the interpreter takes milliseconds a program. New memory is poisoned with NaN.
"""

import pytest
import torch
from torch import Tensor

from gradus.kernels import norm


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # torch.empty then gives NaN
    yield
    torch.use_deterministic_algorithms(False)


def rows(count: int = 3, width: int = 80, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(count, width).to(dtype), torch.randn(count, width).to(dtype)


def assert_close(out: Tensor, reference: Tensor, what: str) -> None:
    assert not out.isnan().any(), f"{what} has values that nobody wrote, or that came from beyond the row"
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    assert error < (1e-6 if out.dtype == torch.float32 else 2e-3), f"{what} is off by {error:.1e}"


@pytest.mark.parametrize("width", [64, 80, 1])
def test_a_row_is_divided_by_its_root_mean_square_whatever_its_width(width):
    x, _ = rows(width=width)
    weight = torch.randn(width)
    assert_close(
        norm.add_rms_norm(x.clone(), None, weight, 1e-5), norm.add_rms_norm_reference(x, None, weight, 1e-5), "y"
    )


def test_the_sum_is_written_back_and_is_what_is_normalized():
    x, delta = rows()
    weight, mine, theirs = torch.randn(80), x.clone(), x.clone()
    y = norm.add_rms_norm(mine, delta, weight, 1e-5)
    expected = norm.add_rms_norm_reference(theirs, delta, weight, 1e-5)
    assert_close(mine, theirs, "x, which is to be x + delta afterwards,")
    assert_close(y, expected, "y")


def test_without_a_delta_the_rows_stay_as_they_were():
    x, _ = rows()
    kept = x.clone()
    norm.add_rms_norm(x, None, torch.randn(80), 1e-5)
    assert torch.equal(x, kept), "x was changed, though there was nothing to add"


def test_a_layer_norm_takes_the_mean_of_the_row_alone_and_adds_its_bias():
    """80 values in a block of 128: the lanes beyond the row are no part of its mean, nor of its variance."""
    x, delta = rows()
    x += 5  # a mean that matters
    weight, bias = torch.randn(2, 80)
    y = norm.add_layer_norm(x.clone(), delta, weight, bias, 1e-5)
    assert_close(y, norm.add_layer_norm_reference(x.clone(), delta, weight, bias, 1e-5), "y")


def test_what_is_added_can_be_normalized_too():
    x, delta = rows()
    weight, delta_weight, mine, theirs = torch.randn(80), torch.randn(80), x.clone(), x.clone()
    y = norm.add_rms_norm(mine, delta, weight, 1e-5, delta_weight)
    assert_close(y, norm.add_rms_norm_reference(theirs, delta, weight, 1e-5, delta_weight), "y")
    assert_close(mine, theirs, "x")
    norm.add_normalized(mine, delta, delta_weight, 1e-5)
    norm.add_normalized_reference(theirs, delta, delta_weight, 1e-5)
    assert_close(mine, theirs, "x, when only the sum is wanted,")


def test_the_arithmetic_is_float32_and_the_sum_is_rounded_before_it_is_normalized():
    """In float16 100² · 80 has no place any more; and later layers read the rounded sum, so the norm is of that."""
    x, delta = rows(dtype=torch.float16)
    x = x * 100
    weight, mine, theirs = torch.randn(80), x.clone(), x.clone()
    y = norm.add_rms_norm(mine, delta, weight, 1e-5)
    expected = norm.add_rms_norm_reference(theirs, delta, weight, 1e-5)
    assert torch.equal(mine, theirs), "x is not the rounded sum"
    assert_close(y, expected, "y")


def test_a_row_of_zeros_stays_zero():
    y = norm.add_rms_norm(torch.zeros(2, 80), torch.zeros(2, 80), torch.ones(80), 1e-5)
    assert not y.any(), "eps keeps 0 / 0 away, and y is not all zero"
