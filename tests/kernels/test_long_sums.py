"""Sums over long texts: what attention keeps of one key among tens of thousands, in float32 and in fewer bits."""

import pytest

from gradus.attention.reference import attend_causal
from tests.kernels import long_sums

LENGTHS = (8_192, 32_768, 131_072)


def test_the_kernel_keeps_a_needle_among_32768_keys():
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    from tests.kernels.interpreter import run_interpreted

    run_interpreted("interpreted_long_sums.py")


@pytest.mark.parametrize("keys", LENGTHS)
def test_torch_keeps_a_needle_at_any_length(keys):
    q, k, v, at = long_sums.haystack(keys, 0.1)
    found = attend_causal(q, k.transpose(0, 1), v.transpose(0, 1), start=keys - 1, scale=long_sums.SCALE)
    error = found[0, 0].double() - long_sums.weights(q, k) @ v[:, 0].double()
    assert error.abs().max() <= 0.01 * long_sums.missed(q, k, v, at).abs().min()


def lost(keys: int, bits: int) -> float:
    """The error of a sum in a register of this width, in needles."""
    q, k, v, at = long_sums.haystack(keys, 0.1)
    terms = long_sums.weights(q, k)[:, None] * v[:, 0].double()
    error = long_sums.in_register(terms, bits) - terms.sum(0)
    return float(error.abs().mean() / long_sums.missed(q, k, v, at).abs().min())


def test_a_register_of_14_bits_loses_more_the_longer_the_text_and_at_last_many_needles():
    """The tests above would fail with such sums: their error must be a hundredth of a needle."""
    losses = [lost(keys, 14) for keys in LENGTHS]
    assert losses == sorted(losses) and losses[0] > 0.1
    assert losses[1] > 1 and losses[2] > 8
    assert lost(LENGTHS[0], 8) > 50  # bfloat16's


@pytest.mark.parametrize("keys", LENGTHS)
def test_a_register_of_24_bits_loses_a_fortieth_of_a_needle_at_most(keys):
    """float32's, even if it drops bits where it could round."""
    assert lost(keys, 24) <= 1 / 40
