"""Which products in int8 take the kernel that was written for Hopper, and what it is then given."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.device.capability import Capability
from gradus.kernels.core import gluon
from gradus.kernels.fuse import quantized as fuse_quantized
from gradus.kernels.fuse.quantized import FusedInt8, hopper_products
from gradus.kernels.quantized.hopper_launch import ALONE, ONTO, is_aligned, launch_for
from gradus.kernels.quantized.quantize import Rounded
from gradus.kernels.quantized.tile import TileLaunch
from gradus.models.layers import MatrixId
from gradus.quantization.int8 import Int8Linear
from tests.kernels.ahead_of_time import EVERY, H200

EVERY_GPU = TileLaunch(rows=128, columns=128, tokens=128, splits=1, stages=3, warps=8)
H200_PROCESSORS = 132


@pytest.mark.parametrize(
    "n, k, onto", [(6144, 4096, False), (4096, 4096, True), (28672, 4096, False), (4096, 14336, True)]
)
def test_a_prompt_s_products_take_it_and_those_of_few_rows_do_not(n, k, onto):
    assert launch_for(8192, n, k, H200_PROCESSORS, onto=onto) == (ONTO if onto else ALONE)
    assert launch_for(8191, n, k, H200_PROCESSORS, onto=onto) == (ONTO if onto else ALONE)
    assert launch_for(256, n, k, H200_PROCESSORS, onto=onto) is None


def test_matrices_that_its_tiles_do_not_divide_and_small_ones_do_not():
    assert launch_for(8192, 4096 + 128, 4096, H200_PROCESSORS, onto=False) is None
    assert launch_for(8192, 4096, 4096 + 64, H200_PROCESSORS, onto=False) is None
    assert launch_for(65536, 2048, 4096, H200_PROCESSORS, onto=False) is None
    assert launch_for(65536, 4096, 1024, H200_PROCESSORS, onto=False) is None


def test_the_copy_engine_reads_what_lies_at_multiples_of_16_bytes():
    stream = torch.zeros(4, 4096 + 12, dtype=torch.bfloat16)
    assert is_aligned(stream[:, :4096].contiguous()) and is_aligned(torch.zeros(4, 4104).bfloat16()[:, :4096])
    assert not is_aligned(stream[:, :4096]), "rows 8,216 bytes apart"
    assert not is_aligned(torch.zeros(4, 4104).bfloat16()[:, 4:4100])
    assert not is_aligned(torch.zeros(4096, 4096).bfloat16().t()[:, ::2])


def test_no_other_gpu_takes_it(monkeypatch):
    taken = []
    for able in (*EVERY, Capability(9, 1)):
        monkeypatch.setattr(fuse_quantized, "capability", lambda device, able=able: able)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Processors())
        hopper_products.cache_clear()
        taken += [able] if hopper_products(torch.device("cuda", 0)) is not None else []
    hopper_products.cache_clear()
    assert taken == [H200]
    assert hopper_products(torch.device("cpu")) is hopper_products(torch.device("meta")) is None


def test_another_gluon_is_no_failure(monkeypatch):
    def without(name: str) -> object:
        raise ImportError(f"no gluon for {name}")

    monkeypatch.setattr(fuse_quantized, "capability", lambda device: H200)
    monkeypatch.setattr(gluon, "import_module", without)
    hopper_products.cache_clear()
    assert hopper_products(torch.device("cuda", 0)) is None
    hopper_products.cache_clear()


class Processors:
    multi_processor_count = H200_PROCESSORS


# -- through a matrix --------------------------------------------------------------------------------------------------


class Told:
    """In the place of the kernel: says what it was asked for, and fills the result."""

    processors = 1

    def __init__(self) -> None:
        self.asked = []

    def multiply(self, x, x_scales, weight, scales, out, launch, residual):
        self.asked.append((tuple(x.shape), tuple(weight.shape), out is residual, launch))
        out.fill_(3)


@pytest.fixture
def fused(monkeypatch):
    """A matrix [4096, 4096], and what the kernels were asked for; that of every GPU notes its options."""
    linear = FusedInt8(Int8Linear(MatrixId("down", 0), 4096, (4096,), False, torch.bfloat16, "cpu"))
    linear.hopper = Told()
    others = []
    monkeypatch.setattr(fuse_quantized, "eight_bit_product", lambda *given, **options: others.append(options))
    return linear, linear.hopper.asked, others


def rounded(rows: int) -> Rounded:
    return Rounded(torch.zeros(rows, 4096, dtype=torch.int8), torch.ones(1, rows))


def test_a_long_product_fills_new_memory_and_one_with_a_residual_that(fused):
    linear, asked, others = fused
    out = linear.by_tiles(rounded(300), torch.bfloat16, EVERY_GPU, padded=False, bias=None)
    assert out.shape == (300, 4096) and out.dtype == torch.bfloat16 and (out == 3).all()
    stream = torch.zeros(300, 4096, dtype=torch.bfloat16)
    assert linear.by_tiles(rounded(300), torch.bfloat16, EVERY_GPU, padded=False, bias=None, residual=stream) is stream
    sizes = (300, 4096), (4096, 4096)
    assert asked == [(*sizes, False, ALONE), (*sizes, True, ONTO)] and not others


@pytest.mark.parametrize(
    "dtype, around",
    [
        (torch.float16, {}),
        (torch.bfloat16, {"bias": torch.zeros(4096)}),
        (torch.bfloat16, {"activation": "silu", "gated": True}),
        (torch.bfloat16, {"residual": torch.zeros(300, 4100, dtype=torch.bfloat16)[:, :4096]}),
    ],
    ids=["float16", "bias", "gate", "unaligned"],
)
def test_what_else_is_around_a_product_is_left_to_the_kernel_of_every_gpu(fused, dtype, around):
    linear, asked, others = fused
    linear.by_tiles(rounded(300), dtype, EVERY_GPU, padded=False, **around)
    assert not asked and [options.keys() for options in others] == [{"padded", *around}]
