"""The kernels of GGUF's blocks, interpreted on the CPU. Run by `test_gguf_kernels.py` in a process of its own."""

import pytest
import torch

from gradus.kernels.quantized import gguf, pieces
from gradus.kernels.quantized.reference import finish_reference, gguf_reference, widened_blocks_reference
from gradus.kernels.quantized.tile import TileLaunch
from gradus.quantization.gguf import FORMATS
from tests.loading.gguf_blocks import Type, random_blocks

ROWS = 70
EVERY = [(name, width) for name in gguf.NUMBERS for width in ((512,) if name.endswith("k") else (96, 320))]


def blocks(name: str, width: int) -> gguf.Blocks:
    return gguf.Blocks(torch.from_numpy(random_blocks(Type[name.upper()], ROWS, width)), FORMATS[name])


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    scale = expected.float().abs().max().item()
    torch.testing.assert_close(found.float(), expected.float(), rtol=1e-3, atol=2e-3 * scale)


@pytest.mark.parametrize(("name", "width"), EVERY)
def test_rows_are_widened_and_looked_up_to_the_bit(name, width):
    weights = blocks(name, width)
    for dtype in (torch.float32, torch.float16):
        expected = widened_blocks_reference(weights, width, dtype)
        out = torch.full((37, width), float("nan"), dtype=dtype)
        weights.widen(20, out)
        assert torch.equal(out, expected[20:57])
        ids = torch.tensor([3, 69, 0, 3])
        assert torch.equal(gguf.lookup(weights, ids, width, dtype), expected[ids])
    assert gguf.lookup(weights, ids[:0], width, torch.float32).shape == (0, width)


@pytest.mark.parametrize(("name", "width"), EVERY)
def test_a_product_is_that_of_the_wide_matrix(name, width):
    weights = blocks(name, width)
    for m, splits in ((1, 1), (3, 2), (9, 1)):
        launch = TileLaunch(rows=32, columns=128, tokens=8, splits=splits, stages=1, warps=4)
        x, bias = torch.randn(m, width), torch.randn(ROWS)
        close(gguf.gguf_product(x, weights, launch, bias=bias), gguf_reference(x, weights, bias=bias))


@pytest.mark.parametrize("name", ["q4_k", "q5_1"])
def test_what_is_around_a_product_is_part_of_it(name):
    weights = blocks(name, 512)
    launch = gguf.launch_for(3, ROWS // 2, 512, processors=4)
    x = torch.randn(3, 512) / 100
    around = {"activation": "silu", "gated": True}
    close(gguf.gguf_product(x, weights, launch, **around), gguf_reference(x, weights, **around))
    stream = torch.randn(3, ROWS)
    expected = gguf_reference(x, weights, residual=stream.clone())
    assert gguf.gguf_product(x, weights, launch, residual=stream) is stream
    close(stream, expected)
    assert gguf.gguf_product(x, weights, launch, padded=True).stride(0) == 72


def test_many_rows_are_multiplied_by_a_library_piece_by_piece(monkeypatch):
    monkeypatch.setattr(pieces, "piece_rows", lambda *_: 32)
    weights = blocks("q6_k", 512)
    x, bias, stream = torch.randn(5, 512), torch.randn(ROWS), torch.randn(5, ROWS)
    close(pieces.product_in_pieces(x, weights, bias=bias), gguf_reference(x, weights, bias=bias))
    expected = finish_reference(
        x @ widened_blocks_reference(weights, 512, torch.float32).t(), x.dtype, bias=bias, residual=stream.clone()
    )
    assert pieces.product_in_pieces(x, weights, bias=bias, residual=stream) is stream
    close(stream, expected)
