"""Each scheme's storage and arithmetic, against the definition written out here."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from gradus.errors import ConfigError
from gradus.models.layers import MatrixId
from gradus.quantization import int8
from gradus.quantization.fp8 import BLOCK, E4M3, Fp8BlockLinear
from gradus.quantization.int4 import Int4Linear, group_for, packed, unpacked
from gradus.quantization.schemes import SCHEMES, STORED

MATRIX = MatrixId("qkv", 0)
WIDTHS = (40, 24)  # two fused matrices; 64 rows
EVERY = tuple(SCHEMES)
LARGEST_ERROR = {"int8": 0.5 / 127, "fp8": 0.0625, "fp8-block": 0.0625, "int4": 0.6 / 15}
"""A weight's error, relative to the largest of its row, group or block: half a step. For int4, relative to twice
that."""


def made(scheme, width=96, bias=False, seed=0, scale=1.0):
    """A matrix of a scheme, and the float matrix that it was given."""
    linear = STORED[scheme](MATRIX, width, WIDTHS, bias, torch.float32, "cpu")
    weight = noise(sum(WIDTHS), width, seed) * scale
    linear.assign("weight", 0, weight)
    if bias:
        linear.assign("bias", 0, noise(sum(WIDTHS), 1, seed + 1).squeeze(1))
    return linear, weight


def noise(rows, columns, seed):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [32, 96, 128, 160, 576])
@pytest.mark.parametrize("scheme", LARGEST_ERROR)
def test_weights_are_rounded_to_nearest(scheme, width):
    linear, weight = made(scheme, width)
    found = linear.dequantized()
    assert found.shape == weight.shape and found.dtype == torch.float32
    span = weight.abs().max()
    if scheme == "int4":
        groups = weight.unflatten(1, (-1, linear.group))
        span = (groups.amax(-1) - groups.amin(-1)).repeat_interleave(linear.group, 1)
    elif scheme == "int8":
        span = weight.abs().amax(1, keepdim=True)
    elif scheme == "fp8":
        span = weight.abs().clamp(min=weight.abs().amax(1, keepdim=True) * 2**-6)  # a float's own size, if not tiny
    assert ((found - weight).abs() <= LARGEST_ERROR[scheme] * span * 1.01).all()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("scheme", EVERY)
def test_a_product_is_that_of_what_is_stored_and_of_rounded_activations(scheme, rows, bias):
    linear, _ = made(scheme, 128, bias)
    x = noise(rows, 128, 7)
    expected = F.linear(rounded(x, scheme).double(), linear.dequantized().double()).float()
    expected = expected if linear.bias is None else expected + linear.bias
    torch.testing.assert_close(linear(x), expected, rtol=1e-5, atol=1e-4)


def rounded(x, scheme):
    """Round by the definition: each token's values to steps of its largest magnitude."""
    if "4" in scheme:
        return x
    if scheme == "int8":
        steps = x.abs().amax(1, keepdim=True) / 127
        return (x / steps).round() * steps
    parts = x.split(BLOCK if scheme == "fp8-block" else x.shape[1], 1)
    steps = [part.abs().amax(1, keepdim=True) / 448 for part in parts]
    return torch.cat([(part / step).to(E4M3).float() * step for part, step in zip(parts, steps, strict=True)], 1)


@pytest.mark.parametrize("scheme", EVERY)
def test_a_row_does_not_depend_on_its_neighbors(scheme):
    linear, _ = made(scheme, 128)
    x = noise(33, 128, 3)
    x[5] *= 1000
    alone = torch.cat([linear(row.unsqueeze(0)) for row in x])
    if scheme == "int8":
        assert torch.equal(linear(x), alone)  # integers: exact in any order
    else:
        largest = x.abs().amax(1, keepdim=True)
        torch.testing.assert_close(linear(x) / largest, alone / largest, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scheme", EVERY)
def test_a_result_has_the_type_of_the_activations(scheme, dtype):
    linear, _ = made(scheme, 128)
    x = noise(3, 128, 7).to(dtype)
    out = linear(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), linear(x.float()), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("scheme", EVERY)
def test_rows_that_come_in_pieces_are_the_same(scheme):
    whole, weight = made(scheme, 128)
    for sizes in ([64], [40, 24], [1] * 64, [50, 14], [7, 30, 27]):
        pieces = STORED[scheme](MATRIX, 128, WIDTHS, False, torch.float32, "cpu")
        start = 0
        for part in weight.split(sizes):
            pieces.assign("weight", start, part)
            start += len(part)
        assert torch.equal(pieces.dequantized(), whole.dequantized()), sizes


@pytest.mark.parametrize("scheme", EVERY)
def test_zeros_stay_zeros_and_equal_weights_equal(scheme):
    linear = STORED[scheme](MATRIX, 128, (3,), False, torch.float32, "cpu")
    linear.assign("weight", 0, torch.tensor([0.0, 0.5, -0.25]).unsqueeze(1).expand(3, 128))
    torch.testing.assert_close(linear.dequantized()[:, 0], torch.tensor([0.0, 0.5, -0.25]), rtol=1e-6, atol=0)
    assert torch.equal(linear(torch.zeros(2, 128)), torch.zeros(2, 3))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("scheme", EVERY)
def test_a_row_that_is_not_finite_stays_so_and_spoils_no_other(scheme, value):
    linear, _ = made(scheme, 128)
    x = noise(3, 128, 7)
    expected = linear(x)
    x[1, 5] = value
    out = linear(x)
    assert not out[1].isfinite().any()
    torch.testing.assert_close(out[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("scheme", EVERY)
def test_on_a_device_without_memory_it_has_its_size(scheme):
    """What the memory plan asks for."""
    linear = STORED[scheme](MATRIX, 4096, (4096, 1024), False, torch.bfloat16, "meta")
    bits = 8 * sum(tensor.nbytes for tensor in linear.parameters()) / (4096 * 5120)
    assert bits < (5.01 if scheme.startswith("int4") else 8.01)


# -- blocks of 128 x 128 -----------------------------------------------------------------------------------------------


def test_fused_matrices_have_blocks_of_their_own():
    linear = Fp8BlockLinear(MATRIX, 200, (130, 60), False, torch.float32, "cpu")
    assert linear.scales.shape == (2 + 1, 2)
    weight = noise(190, 200, 1)
    weight[129], weight[130:] = 100.0, 0.01
    linear.assign("weight", 0, weight)
    expected = [
        weight[rows][:, columns].abs().max() / 448 for rows, columns in tiles((0, 128, 130, 190), (0, 128, 200))
    ]
    torch.testing.assert_close(linear.scales.flatten(), torch.stack(expected))


def tiles(rows, columns):
    for top, bottom in pairwise(rows):
        for left, right in pairwise(columns):
            yield slice(top, bottom), slice(left, right)


# -- words of four nibbles ---------------------------------------------------------------------------------------------


def test_a_word_holds_four_weights_that_lie_32_apart():
    values = torch.randint(0, 16, (5, 300), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    words = packed(values)
    assert words.shape == (3, 5, 32) and words.dtype == torch.int16
    for tile, row, column in ((0, 0, 0), (1, 3, 17), (2, 4, 31)):
        word = int(words[tile, row, column]) & 0xFFFF
        for nibble in range(4):
            k = 128 * tile + 32 * nibble + column
            assert word >> 4 * nibble & 15 == (int(values[row, k]) if k < 300 else 0)
    assert torch.equal(unpacked(words)[:, :300], values.int())


@pytest.mark.parametrize(("width", "group"), [(4096, 128), (576, 64), (160, 32), (96, 32)])
def test_a_group_is_the_largest_that_divides_a_row(width, group):
    assert group_for(width, None) == group and Int4Linear(MATRIX, width, (8,), False).group == group


def test_groups_that_do_not_divide_a_row_are_refused():
    with pytest.raises(ConfigError, match="groups of 128 do not divide rows of 576 weights; 64 would"):
        Int4Linear(MATRIX, 576, (8,), False, group=128)
    with pytest.raises(ConfigError, match="rows of 100 weights have no groups of 128, 64, 32"):
        Int4Linear(MATRIX, 100, (8,), False)


def test_weights_of_a_four_bit_file_come_back_exactly():
    """Groups of 32 with a minimum and a scale in float16, as in llama.cpp's Q4_1."""
    generator = torch.Generator().manual_seed(0)
    scales, offsets = (torch.rand(8, 4, 1, generator=generator).half().float() for _ in range(2))
    values = torch.randint(0, 16, (8, 4, 32), generator=generator)
    values[..., 0], values[..., 1] = 0, 15
    weight = (values * scales + offsets).flatten(1)
    linear = Int4Linear(MATRIX, 128, (8,), False, group=32)
    linear.assign("weight", 0, weight)
    torch.testing.assert_close(linear.dequantized(), weight, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("rows", [7, 16, 40])
@pytest.mark.parametrize("width", [96, 128, 576])
def test_int4_in_lanes_is_the_same_matrix(width, rows):
    linear = Int4Linear(MATRIX, width, (rows,), False)
    linear.assign("weight", 0, noise(rows, width, 3))
    before, x = linear.dequantized(), noise(5, width, 4)
    product, size = linear.forward(x), sum(each.nbytes for each in linear.parameters())
    linear.use_lanes()
    linear.use_lanes()  # once is enough
    assert torch.equal(linear.dequantized(), before) and torch.equal(linear.forward(x), product)
    assert torch.equal(linear.wide_rows(3, 6), before[3:6])
    assert sum(each.nbytes for each in linear.parameters()) == size * (-(-rows // 16) * 16) // rows


@pytest.mark.parametrize("width", [24, 1032, 1033, 1536, 4000])
def test_integer_products_by_floats_are_exact(width):
    """The largest products of all, and noise: a sum of EXACT of them is the largest that float32 holds."""
    generator = torch.Generator().manual_seed(width)
    x = torch.randint(-127, 128, (5, width), dtype=torch.int8, generator=generator)
    weight = torch.randint(-128, 128, (7, width), dtype=torch.int8, generator=generator)
    x[0], weight[0] = -127, -128
    found = int8.product_in_floats(x, weight)
    assert torch.equal(found.double(), x.double() @ weight.double().t())


@pytest.mark.parametrize("floats", [False, True])
def test_either_way_to_multiply_int8_gives_the_same_integers(floats, monkeypatch):
    monkeypatch.setattr(int8, "_prefers_floats", lambda threads: floats)
    x, weight = (torch.arange(rows * 48).remainder(251).sub(124).to(torch.int8).view(rows, 48) for rows in (33, 20))
    assert torch.equal(int8.integer_product(x, weight).long(), x.long() @ weight.long().t())


def test_a_product_of_integers_that_saturates_is_not_used(monkeypatch):
    """On processors with AVX2 alone, oneDNN's is right for small values and wrong for large ones."""
    saturating = lambda x, weight: (x.int() @ weight.int()).clamp(max=32767)  # noqa: E731
    monkeypatch.setattr(torch, "_int_mm", saturating)
    assert int8._prefers_floats.__wrapped__(1)
