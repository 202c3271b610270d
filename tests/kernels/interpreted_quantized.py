"""Run by test_quantized_kernels.py in a process of its own, where Triton interprets the kernels of quantized matrices.

float16 and float32, since the interpreter's products of bfloat16 are wrong. New memory is poisoned with NaN.
"""

import pytest
import torch
from torch import Tensor

from gradus.kernels.core.counters import counters_of
from gradus.kernels.linear.epilogue import Norm
from gradus.kernels.quantized import pieces
from gradus.kernels.quantized.eight_bits import EightBitWeights, eight_bit_product
from gradus.kernels.quantized.int4 import Int4Weights, int4_product
from gradus.kernels.quantized.pieces import product_in_pieces
from gradus.kernels.quantized.quantize import quantize
from gradus.kernels.quantized.reference import (
    eight_bit_reference,
    int4_reference,
    quantize_gated_reference,
    quantize_reference,
    widened_reference,
)
from gradus.kernels.quantized.tile import TileLaunch
from gradus.models.layers import MatrixId
from gradus.quantization.fp8 import E4M3, Fp8BlockLinear, Fp8Linear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear
from tests.kernels.interpreted_e4m3 import rounded_to_nearest
from tests.pairwise import each_once

MATRIX = MatrixId("down", 0)


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("error")  # torch.empty then gives NaN
    with rounded_to_nearest():
        yield
    torch.set_deterministic_debug_mode("default")


def assert_close(out: Tensor, reference: Tensor) -> None:
    assert out.dtype == reference.dtype and out.shape == reference.shape
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    assert error < (1e-6 if out.dtype == torch.float32 else 2e-3)  # NaN is not below anything


# -- int4 ------------------------------------------------------------------------------------------------------------


def four_bits(n: int, k: int, group: int) -> Int4Weights:
    linear = Int4Linear(MATRIX, k, (n,), False, torch.float16, group=group)
    linear.assign("weight", 0, torch.randn(n, k))
    return Int4Weights(linear.words, linear.pairs, linear.kind)


@pytest.mark.parametrize(
    ("rows", "splits", "k", "group", "dtype"),
    each_once(
        [(1, 1), (3, 2), (19, 3)],
        [(256, 128), (192, 64), (576, 64), (96, 32), (160, 32)],
        [torch.float32, torch.float16],
    ),
)
def test_4_bit_weights_are_unpacked_on_their_way(rows, splits, k, group, dtype):
    x, weights, bias = torch.randn(rows, k).to(dtype), four_bits(37, k, group), torch.randn(37).to(dtype)
    launch = TileLaunch(16, 128, 16 if rows > 8 else 8, splits, 2, 4)
    assert_close(int4_product(x, weights, launch, bias=bias), int4_reference(x, weights, bias=bias))
    stream = torch.randn(rows, 37).to(dtype)
    expected = int4_reference(x, weights, residual=stream.clone())
    assert int4_product(x, weights, launch, residual=stream) is stream
    assert_close(stream, expected)
    assert not counters_of(x.device, 1).any()  # ready for the next launch


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("splits", [1, 2])
def test_an_activation_and_a_gate_follow_a_4_bit_product(gated, splits):
    x, weights, bias = torch.randn(3, 320), four_bits(2 * 21, 320, 64), torch.randn(42)
    options = {"bias": bias, "activation": "silu" if gated else "gelu_tanh", "gated": gated}
    out = int4_product(x, weights, TileLaunch(16, 128, 8, splits, 2, 4), **options)
    assert_close(out, int4_reference(x, weights, **options))


def test_rows_of_logits_begin_at_multiples_of_16_bytes():
    x, weights = torch.randn(3, 64).half(), four_bits(37, 64, 64)
    for out in (
        int4_product(x, weights, TileLaunch(16, 128, 8, 1, 2, 4), padded=True),
        product_in_pieces(x, weights, padded=True),
    ):
        assert out.stride() == (40, 1)
        assert_close(out, int4_reference(x, weights))


@pytest.mark.parametrize(
    ("k", "group", "dtype"), each_once([(256, 128), (192, 64), (160, 32)], [torch.float32, torch.float16])
)
def test_a_matrix_made_wide_is_the_scheme_s_to_the_bit(k, group, dtype, monkeypatch):
    weights, expected = four_bits(300, k, group), None
    expected = widened_reference(weights, k, dtype)
    out = torch.full((70, k), float("nan"), dtype=dtype)
    weights.widen(200, out)
    assert torch.equal(out, expected[200:270])
    monkeypatch.setattr(pieces, "SCRATCH", 1)  # two pieces: 256 rows, and 44
    x, bias = torch.randn(5, k).to(dtype), torch.randn(300).to(dtype)
    assert_close(product_in_pieces(x, weights, bias=bias), int4_reference(x, weights, bias=bias))
    stream = torch.randn(5, 300).to(dtype)
    expected = int4_reference(x, weights, bias=bias, residual=stream.clone())
    assert product_in_pieces(x, weights, bias=bias, residual=stream) is stream
    assert_close(stream, expected)


# -- 8 bits ----------------------------------------------------------------------------------------------------------

KINDS = {
    "int8": (Int8Linear, torch.int8, None),
    "fp8": (Fp8Linear, E4M3, None),
    "fp8-block": (Fp8BlockLinear, E4M3, 128),
}


def eight_bits(scheme: str, widths: tuple[int, ...], k: int) -> EightBitWeights:
    linear = KINDS[scheme][0](MATRIX, k, widths, False)
    linear.assign("weight", 0, torch.randn(sum(widths), k))
    return EightBitWeights(linear.values, linear.scales, getattr(linear, "block_of_row", None))


@pytest.mark.parametrize(
    ("rows", "k", "scheme", "dtype"),
    each_once([(1, 128), (3, 100), (5, 576), (2, 31)], list(KINDS), [torch.float32, torch.float16]),
)
def test_activations_are_rounded_as_the_scheme_rounds_them(rows, k, scheme, dtype):
    _, kind, group = KINDS[scheme]
    x = torch.randn(rows, k)
    x[0] *= 100
    x[-1, : k // 2] = 0
    x = x.to(dtype)
    norms = [None, Norm(torch.randn(k), None, 1e-5), Norm(torch.randn(k), torch.randn(k), 1e-5)]
    for norm in norms:
        found, expected = quantize(x, kind, group, norm), quantize_reference(x, kind, group, norm)
        assert found.values.dtype == kind and found.scales.shape == expected.scales.shape
        if norm is None:  # to the bit
            assert torch.equal(found.scales, expected.scales)
            assert torch.equal(found.values.view(torch.int8), expected.values.view(torch.int8))
        torch.testing.assert_close(found.scales, expected.scales, rtol=2e-3, atol=0)
        torch.testing.assert_close(found.values.float(), expected.values.float(), rtol=0.13, atol=1.01)


@pytest.mark.parametrize(("kind", "k"), each_once([torch.int8, E4M3], [31, 100, 192]))
def test_many_wide_rows_are_rounded_in_pieces_to_the_same_values(k, kind, monkeypatch):
    x = torch.randn(4, k)
    x[0] *= 100
    x[2, k // 2] = 1e4  # whichever piece has the largest
    whole = quantize(x, kind)
    for name, number in {"MANY": 3, "WIDE": 16, "PIECE": 64}.items():
        monkeypatch.setattr(f"gradus.kernels.quantized.quantize.{name}", number)
    monkeypatch.delattr("gradus.kernels.quantized.quantize.quantize_kernel")  # it is not what runs
    pieces = quantize(x, kind)
    assert torch.equal(pieces.scales, whole.scales)
    assert torch.equal(pieces.values.view(torch.int8), whole.values.view(torch.int8))


@pytest.mark.parametrize(
    ("kind", "activation", "dtype"),
    each_once([torch.int8, E4M3], ["silu", "gelu_tanh", "gelu"], [torch.float32, torch.float16]),
)
def test_what_a_gate_lets_through_is_rounded_with_its_token_s_scale(kind, activation, dtype):
    gate_up = torch.randn(3, 2 * 100).to(dtype) * 3
    gate_up[1] *= 20
    found = quantize(gate_up, kind, activation=activation)
    expected = quantize_gated_reference(gate_up, kind, activation)
    assert found.values.shape == (3, 100) and found.scales.shape == (1, 3)
    torch.testing.assert_close(found.scales, expected.scales, rtol=2e-3, atol=0)
    torch.testing.assert_close(found.values.float(), expected.values.float(), rtol=0.13, atol=1.01)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_has_no_finite_scale(value):
    x = torch.randn(3, 40)
    x[1, 7] = value
    assert quantize(x, torch.int8).scales.isfinite().tolist() == [[True, False, True]]


@pytest.mark.parametrize(
    ("rows", "splits", "columns", "k", "scheme"),
    each_once([(1, 1, 128), (3, 2, 64), (19, 3, 128)], [256, 576, 100], list(KINDS)),
)
def test_8_bit_weights_meet_8_bit_activations(rows, splits, columns, k, scheme):
    weights = eight_bits(scheme, (20, 17), k)
    x = quantize_reference(torch.randn(rows, k), *KINDS[scheme][1:])
    bias, stream = torch.randn(37), torch.randn(rows, 37)
    launch = TileLaunch(16, columns, 8, splits, 2, 4)
    expected = eight_bit_reference(x, weights, torch.float32, bias=bias)
    assert_close(eight_bit_product(x, weights, torch.float32, launch, bias=bias), expected)
    expected = eight_bit_reference(x, weights, torch.float32, residual=stream.clone())
    assert eight_bit_product(x, weights, torch.float32, launch, residual=stream) is stream
    assert_close(stream, expected)
    assert_close(
        eight_bit_product(x, weights, torch.float16, launch, padded=True),
        eight_bit_reference(x, weights, torch.float16),
    )
    assert not counters_of(x.values.device, 1).any()


@pytest.mark.parametrize("scheme", KINDS)
@pytest.mark.parametrize("splits", [1, 2])
def test_a_gate_follows_an_8_bit_product(splits, scheme):
    weights, x = eight_bits(scheme, (150, 150), 320), quantize_reference(torch.randn(3, 320), *KINDS[scheme][1:])
    options = {"bias": torch.randn(300), "activation": "silu", "gated": True}
    out = eight_bit_product(x, weights, torch.float32, TileLaunch(64, 128, 8, splits, 2, 4), **options)
    assert_close(out, eight_bit_reference(x, weights, torch.float32, **options))
