"""Experts in fewer bits on kernels: interpreted on the CPU, compiled for an H200, and refused where no kernel is."""

import pytest
import torch

from gradus.errors import ConfigError
from gradus.kernels.fuse.model import fused
from gradus.models import create_model
from gradus.models.layers import Linear
from gradus.models.shapes import SHAPES
from gradus.quantization.mix import Mix, factory
from tests.kernels.ahead_of_time import H200, instructions
from tests.kernels.interpreter import run_interpreted
from tests.kernels.test_every_gpu import checked, packed_experts


def test_interpreted_kernels_compute_what_the_floats_do():
    run_interpreted("interpreted_packed_experts.py")


@pytest.mark.parametrize(("name", "registers"), [("mxfp4 1", 168), ("int4 1", 96), ("fp8 1", 96), ("mxfp4 512", 168)])
def test_on_an_h200_they_multiply_on_the_matrix_units_and_spill_nothing(name, registers):
    case = dict(packed_experts(H200))[f"packed experts {name}"]
    used = checked(H200, name, case)
    assert used.spilled == 0 and used.registers <= registers
    assert "wgmma.mma_async" in used.assembly


def test_two_weights_of_mxfp4_take_one_product_of_their_factor():
    case = dict(packed_experts(H200))["packed experts mxfp4 1"]
    used = checked(H200, "mxfp4 1", case)
    turn = 64 * 256 // 128 // 2  # pairs of weights that each of 128 threads unpacks
    assert instructions(used.binary).count("HMUL2.BF16") + instructions(used.binary).count("HFMA2.BF16") == turn


@pytest.mark.parametrize(
    "rules", [[("*.gate_proj", "int8"), ("*.up_proj", "int4")], [("*.experts.*", "int4-g32-ordered")]]
)
def test_experts_without_a_kernel_are_refused_in_one_line(rules):
    config = SHAPES["tiny-qwen3-moe"]
    model = create_model(config, linear=factory(Mix("test", tuple(rules)), config, Linear), dtype=torch.bfloat16)
    with pytest.raises(
        ConfigError, match=r"^layer 0: no kernel multiplies by experts whose columns have .* act-order$"
    ):
        fused(model)
