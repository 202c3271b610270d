"""A prompt's products in int8 on Hopper: the bits of the kernel of every GPU, uneven rows, nothing written beside."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.device.capability import capability
from gradus.kernels.core.view import view
from gradus.kernels.fuse import quantized as fuse_quantized
from gradus.kernels.quantized.eight_bits import EightBitWeights, eight_bit_product
from gradus.kernels.quantized.hopper_launch import ALONE, DEPTH, ONTO, HopperLaunch
from gradus.kernels.quantized.quantize import Rounded, quantize
from gradus.kernels.quantized.tile import TileLaunch
from gradus.models.layers import MatrixId
from gradus.quantization.int8 import Int8Linear
from tests.pairwise import pairwise

on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or capability(torch.device("cuda")) != (9, 0), reason="needs a Hopper GPU"
)
pytestmark = [pytest.mark.gpu, on_hopper]

EVERY_GPU = TileLaunch(rows=128, columns=128, tokens=128, splits=1, stages=3, warps=8)
BEHIND = 300  # rows of a result that nothing may write


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


def operands(m: int, n: int, k: int) -> tuple[Rounded, EightBitWeights]:
    values, weight = (torch.randn(rows, k, device="cuda").mul_(32).clamp_(-127, 127).to(torch.int8) for rows in (m, n))
    weight[0], values[0] = 127, 127  # the greatest sum
    scales = torch.rand(1, m, device="cuda") / 64, torch.rand(n, device="cuda") / 64
    return Rounded(values, scales[0]), EightBitWeights(weight, scales[1])


def multiplied(x: Rounded, weights: EightBitWeights, launch: HopperLaunch, stream: Tensor | None) -> Tensor:
    """Into memory that is wider and longer than the result: what is beside it must stay."""
    from gradus.kernels.quantized.hopper_product import HopperProducts

    m, n = x.values.shape[0], weights.rows
    memory = torch.full((m + BEHIND, n + 64), 77.0, dtype=torch.bfloat16, device="cuda")
    out = memory[:m, :n]
    out.fill_(float("nan")) if stream is None else out.copy_(stream)
    products = HopperProducts(torch.cuda.get_device_properties(0).multi_processor_count)
    products.multiply(*x, weights.values, weights.scales, out, launch, None if stream is None else out)
    assert (memory[m:] == 77).all() and (memory[:, n:] == 77).all()
    return out


@pytest.mark.quick
@pytest.mark.parametrize(
    "m, n, steps, launch",
    pairwise([1, 64, 100, 300, 2048, 4097], [(512, 1), (1024, 3), (4096, 16), (6144, 7)], [(ALONE,), (ONTO,)]),
)
def test_it_is_the_kernel_of_every_gpu_to_the_bit(m, n, steps, launch):
    """From fewer tiles than there are multiprocessors to many for each, and from one step to more than its stages."""
    x, weights = operands(m, n, steps * DEPTH)
    expected = eight_bit_product(x, weights, torch.bfloat16, EVERY_GPU)
    assert torch.equal(multiplied(x, weights, launch, None), expected)
    stream = torch.randn(m, n, device="cuda").bfloat16()
    expected = eight_bit_product(x, weights, torch.bfloat16, EVERY_GPU, residual=stream.clone())
    assert torch.equal(multiplied(x, weights, launch, stream), expected)


def test_the_same_product_gives_the_same_bits_every_time():
    x, weights = operands(3000, 4096, 2048)
    stream = torch.randn(3000, 4096, device="cuda").bfloat16()
    first = multiplied(x, weights, ONTO, stream)
    assert all(torch.equal(first, multiplied(x, weights, ONTO, stream)) for _ in range(20))


@torch.inference_mode()
def test_a_matrix_of_a_model_takes_it_for_a_prompt(monkeypatch):
    linear = Int8Linear(MatrixId("down", 0), 4096, (4096,), False, torch.bfloat16, "cuda")
    linear.assign("weight", 0, torch.randn(4096, 4096, device="cuda") / 64)
    x, stream = torch.randn(2, 5000, 4096, device="cuda").bfloat16()
    twin = view(linear)
    assert isinstance(twin, fuse_quantized.FusedInt8)
    found = twin(x), twin.onto(stream.clone(), x)
    rounded = quantize(x, torch.int8, None)
    wanted = [
        eight_bit_product(rounded, twin.weights, torch.bfloat16, EVERY_GPU, residual=residual)
        for residual in (None, stream.clone())
    ]
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    monkeypatch.setattr(fuse_quantized, "eight_bit_product", None)
    twin(x), twin.onto(stream, x)
    with pytest.raises(TypeError):
        twin(x[:200])
