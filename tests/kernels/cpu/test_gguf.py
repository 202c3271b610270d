"""Products of GGUF's blocks in compiled kernels, against the matrix that the `gguf` package makes of the same bits."""

import gguf
import pytest
import torch

from gradus.kernels.cpu.activations import MOST_ROWS
from gradus.kernels.cpu.byte_products import IN_BYTES
from gradus.kernels.cpu.gguf.product import Widened
from gradus.kernels.cpu.outer import PANEL
from gradus.loading.gguf.packed import KEPT
from gradus.models.layers import MatrixId
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.linear import rounded_planes
from tests.kernels.cpu.steps import Pages, generator, made
from tests.loading.gguf_blocks import random_blocks

ROWS = 77
COUNTS = (1, 2, 3, 8, 9, 12, 32, 44, MOST_ROWS - 3, 1)


def matrix(kind, width, bias=False):
    blocks = random_blocks(kind, ROWS, width)
    linear = GGUFLinear(MatrixId("down", 0), width, (ROWS,), bias, format=KEPT[kind])
    linear.store(0, torch.from_numpy(blocks))
    if bias:
        linear.assign("bias", 0, torch.linspace(-1, 1, ROWS))
    return linear, torch.from_numpy(gguf.quants.dequantize(blocks, kind))


@pytest.mark.parametrize("kind", KEPT)
def test_rows_are_widened_to_the_bit(kind):
    linear, expected = matrix(kind, 512)
    for dtype in (torch.float32, torch.bfloat16):
        found = Widened(linear, torch.empty(4 * 512, dtype=dtype))(3, ROWS)  # more than the room holds
        assert torch.equal(found, expected[3:].to(dtype))


def test_every_power_of_two_is_widened_to_the_bit():
    """Those too small for a float32 of full precision as well, and the one that is not a number."""
    linear = GGUFLinear(MatrixId("down", 0), 32, (256,), False, format="mxfp4")
    blocks = torch.from_numpy(random_blocks(gguf.GGMLQuantizationType.MXFP4, 256, 32))
    blocks[:, 0] = torch.arange(256)
    linear.store(0, blocks)
    found = Widened(linear, torch.empty(256 * 32))(0, 256)
    assert found[255].isnan().all() and torch.equal(found[:255], linear.dequantized()[:255])


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@torch.inference_mode()
def test_products_of_few_rows_are_those_of_the_wide_matrix(threads, rounds):
    made_of = [matrix(kind, 1024 if "K" in kind.name else 96, bias=kind.name.endswith("0")) for kind in KEPT]
    for linear, _ in made_of:
        linear.rounds = rounds
    model = made("tiny-llama")
    decode = Pages(model).decode_model(model, threads, [linear for linear, _ in made_of])
    for count in COUNTS:
        for number, (linear, wide) in enumerate(made_of):
            x = torch.randn(count, linear.in_features, generator=generator(count + number))
            rounded = rounded_planes(x) if rounds else x
            expected = rounded.double() @ wide.double().t() + (0 if linear.bias is None else linear.bias)
            found = decode.multiply(number, x).double()
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@torch.inference_mode()
def test_the_largest_integers_neither_saturate_nor_lose_their_signs():
    """Blocks of all bits set, and of alternating ones, times activations of one size and either sign: a lone row, and
    rows in panels of bytes."""
    for kind in KEPT:
        linear, _ = matrix(kind, 512)
        size = linear.format.size
        blocks = linear.blocks.view(ROWS, -1, size)
        scales = {at + byte for at in linear.format.scales for byte in range(2)}
        scales |= {0} if kind.name == "MXFP4" else set()
        others = [byte for byte in range(size) if byte not in scales]
        blocks[0::3, :, others], blocks[1::3, :, others], blocks[2::3, :, others] = 0xFF, 0x80, 0x7F
        linear.rounds = True
        decode = Pages(made("tiny-llama")).decode_model(made("tiny-llama"), 1, [linear])
        x = torch.ones(PANEL, 512)
        x[:, ::3] = -1
        x[1] = -1
        expected = x.double() @ linear.dequantized().double().t()
        scale = x.double().abs() @ linear.dequantized().double().abs().t()
        for rows in (1, PANEL) if IN_BYTES else (1,):
            assert ((decode.multiply(0, x[:rows]) - expected[:rows]).abs() <= 1e-6 * scale[:rows]).all(), kind


@torch.inference_mode()
def test_activations_are_rounded_as_in_torch_to_the_bit():
    """A scale that differs in its last bit moves some values to the next integer."""
    linear, _ = matrix(next(iter(KEPT)), 512)
    linear.rounds = True
    decode = Pages(made("tiny-llama")).decode_model(made("tiny-llama"), 1, [linear])
    x = torch.randn(MOST_ROWS, 512, generator=generator(1))
    decode.multiply(0, x)
    (worker,) = decode.work.workers
    assert torch.equal(torch.from_numpy(worker.rows.ordered[:, :512]), rounded_planes(x))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@torch.inference_mode()
def test_a_row_in_a_panel_that_is_not_finite_stays_alone(bad):
    linear, _ = matrix(next(iter(KEPT)), 512)
    linear.rounds = True
    decode = Pages(made("tiny-llama")).decode_model(made("tiny-llama"), 1, [linear])
    x = torch.randn(PANEL, 512, generator=generator(1))
    expected = decode.multiply(0, x)
    x[3, 300] = bad
    found = decode.multiply(0, x)
    assert not found[3].isfinite().any()
    others = [row for row in range(PANEL) if row != 3]
    assert torch.equal(found[others], expected[others])
