"""GGUF's formats in torch: the `gguf` package decides what every bit means."""

import gguf
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from gradus.errors import ConfigError
from gradus.loading.gguf.packed import KEPT
from gradus.models.layers import MatrixId
from gradus.quantization.gguf import FORMATS, GGUFLinear
from tests.loading.gguf_blocks import K_FORMATS, encode, random_blocks

MATRIX = MatrixId("down", 0)
ROWS, WIDTH = 24, 512


def made(kind, dtype=torch.float32, bias=False, rows=ROWS, width=WIDTH):
    """A matrix of random bits, and the floats that the package makes of it."""
    blocks = random_blocks(kind, rows, width)
    linear = GGUFLinear(MATRIX, width, (rows,), bias, dtype, "cpu", format=KEPT[kind])
    linear.store(0, torch.from_numpy(blocks))
    if bias:
        linear.assign("bias", 0, torch.linspace(-1, 1, rows))
    return linear, torch.from_numpy(gguf.quants.dequantize(blocks, kind))


@pytest.mark.parametrize("kind", KEPT)
def test_every_bit_means_what_the_package_says(kind):
    linear, expected = made(kind)
    assert torch.equal(linear.dequantized(), expected)
    assert torch.equal(linear.wide_rows(5, 9), expected[5:9])


@pytest.mark.parametrize("kind", KEPT)
def test_a_matrix_takes_the_bytes_that_it_has_in_the_file(kind):
    values, size = gguf.GGML_QUANT_SIZES[kind]
    assert FORMATS[KEPT[kind]][1:3] == (values, size)
    linear = GGUFLinear(MATRIX, 4096, (512, 512), False, torch.bfloat16, "meta", format=KEPT[kind])
    assert sum(part.nbytes for part in linear.parameters()) == 1024 * 4096 // values * size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KEPT)
def test_a_product_is_that_of_the_floats_rounded_once(kind, dtype):
    linear, wide = made(kind, dtype, bias=True)
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    out = linear(x)
    assert out.dtype == dtype
    expected = F.linear(x.double(), wide.to(dtype).double(), linear.bias.double())
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())


def test_a_large_matrix_is_widened_piece_by_piece(monkeypatch):
    monkeypatch.setattr("gradus.quantization.gguf.PIECE", 5 * WIDTH)
    linear, wide = made(gguf.GGMLQuantizationType.Q4_K, bias=True)
    asked = []
    linear.widen = lambda first, end: asked.append((first, end)) or wide[first:end]
    x = torch.randn(3, WIDTH)
    torch.testing.assert_close(linear(x), F.linear(x, wide, linear.bias), rtol=1e-5, atol=1e-5)
    assert asked == [(0, 5), (5, 10), (10, 15), (15, 20), (20, 24)]


@pytest.mark.parametrize("kind", KEPT)
def test_the_rows_of_tokens_are_looked_up(kind):
    linear, wide = made(kind)
    assert torch.equal(linear.lookup(torch.tensor([7, 0, 23, 7])), wide[[7, 0, 23, 7]])


def test_a_whole_matrix_is_not_copied_and_parts_of_one_are():
    kind = gguf.GGMLQuantizationType.Q8_0
    whole = torch.from_numpy(random_blocks(kind, ROWS, WIDTH))
    linear = GGUFLinear(MATRIX, WIDTH, (ROWS,), False, format="q8_0")
    linear.store(0, whole)
    assert linear.blocks.data_ptr() == whole.data_ptr()
    parts = GGUFLinear(MATRIX, WIDTH, (8, 16), False, format="q8_0")
    parts.store(0, whole[:8])
    parts.store(8, whole[8:])
    assert torch.equal(parts.blocks, whole) and parts.blocks.data_ptr() != whole.data_ptr()


def test_rows_that_are_not_whole_blocks_are_refused():
    with pytest.raises(ConfigError, match="q4_k: blocks of 256 do not divide rows of 320 weights"):
        GGUFLinear(MATRIX, 320, (8,), False, format="q4_k")


@pytest.mark.parametrize("kind", K_FORMATS)
def test_what_the_tests_encode_is_near_the_floats_that_it_came_from(kind):
    values = np.random.default_rng(0).standard_normal((4, 512)).astype(np.float32)
    found = gguf.quants.dequantize(encode(values, kind), kind)
    assert np.abs(found - values).max() < {"Q4_K": 0.35, "Q5_K": 0.2, "Q6_K": 0.1}[kind.name]
