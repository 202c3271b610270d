"""Run by test_quantized_model.py in a process of its own, where Triton interprets: quantized models on the kernels."""

from dataclasses import replace

import pytest
import torch

from gradus.attention.triton_paged import TritonPagedAttention
from gradus.kernels.core.view import view
from gradus.kernels.fuse.model import fused
from gradus.kernels.fuse.quantized import FusedFp8, FusedFp8Block, FusedInt4, FusedInt8, FusedQuantized
from gradus.models import SHAPES, Model, create_model, randomize
from gradus.models.layers import Activation, Gated, Linear, MatrixId, RMSNorm
from gradus.quantization.mix import Mix, factory
from gradus.quantization.parts import SideBySide
from gradus.quantization.schemes import STORED
from tests.kernels.interpreted_e4m3 import rounded_to_nearest
from tests.kernels.interpreted_fused_model import answers
from tests.pairwise import each_once, first

TWINS = {"int4": FusedInt4, "int8": FusedInt8, "fp8": FusedFp8, "fp8-block": FusedFp8Block}


@pytest.fixture(autouse=True)
def _as_on_a_gpu():
    torch.manual_seed(0)
    with rounded_to_nearest():
        yield


def quantized(shape: str, mix: Mix, layers: int = 2) -> Model:
    config = replace(SHAPES[shape].stage(range(layers)), context_length=64)
    model = create_model(config, dtype=torch.float32, linear=factory(mix, config, Linear))
    randomize(model, seed=0, std=0.1)
    return model


@pytest.mark.parametrize(
    ("scheme", "shape"),
    first([("int4", "tiny-gpt2"), ("int8", "tiny-gemma3"), ("fp8", "tiny-llama"), ("fp8-block", "tiny-gpt2")], count=2),
)
def test_a_quantized_model_on_kernels_gives_its_tokens(scheme, shape):
    """With the head, too."""
    model = quantized(shape, Mix(scheme, (("*", scheme),)))
    view = fused(model)
    assert {type(part) for part in view.modules() if isinstance(part, FusedQuantized)} == {TWINS[scheme]}
    assert answers(view, TritonPagedAttention) == answers(model)


def test_matrices_side_by_side_have_twins_of_their_own():
    mix = Mix("a mix", (("*.q_proj", "int8"), ("*.k_proj", "int4"), ("*.up_proj", "fp8"), ("*.down_proj", "int4")))
    model = quantized("tiny-llama", mix)
    view = fused(model)
    qkv = view.layers[0].qkv
    assert type(qkv) is SideBySide
    assert [type(part).__name__ for part in qkv.parts] == ["FusedInt8", "FusedInt4", "FusedLinear"]
    assert answers(view, TritonPagedAttention) == answers(model)


@pytest.mark.parametrize(
    ("gate", "down", "rounds"),
    first(
        [("int4", "fp8", True), ("int8", "fp8-block", False), ("int8", "int8", True), ("fp8", "int4", False)], count=2
    ),
)
def test_gates_are_handed_over_to_a_product_that_rounds_rows_anyway(gate, down, rounds):
    model = quantized("tiny-llama", Mix("a mix", (("*.gate_proj", gate), ("*.up_proj", gate), ("*.down_proj", down))))
    view = fused(model)
    block, x = view.layers[0], torch.randn(66, model.config.hidden_size)
    features = block.gate_up.after(block.mlp_norm, x, block.gate)
    assert features.shape[1] == model.config.intermediate_size * (2 if rounds else 1)
    assert answers(view, TritonPagedAttention) == answers(model)


# -- one matrix ------------------------------------------------------------------------------------------------------


def made(
    scheme: str, widths: tuple[int, ...], k: int, *, role="gate_up", bias: bool = True, dtype=torch.float32
) -> Linear:
    linear = STORED[scheme](MatrixId(role, 0), k, widths, bias, dtype, "cpu")
    generator = torch.Generator().manual_seed(3)
    linear.assign("weight", 0, torch.randn(sum(widths), k, generator=generator) / k**0.5)
    if bias:
        linear.assign("bias", 0, torch.randn(sum(widths), generator=generator))
    return linear


@pytest.mark.parametrize(
    ("scheme", "rows", "dtype"),
    each_once([*TWINS, "int4-g32-ordered"], [0, 1, 3, 66], [torch.float32, torch.float16]),
)
def test_a_norm_before_and_an_activation_or_a_sum_behind(scheme, rows, dtype):
    """In float32, and with 66 rows, an activation is a launch of its own; and 4 bits are made wide in float32."""
    linear, norm = made(scheme, (20, 20), 96, dtype=dtype), RMSNorm(96, 1e-5, dtype, "cpu")
    x = torch.randn(rows, 96).to(dtype)
    torch.nn.init.normal_(norm.weight)
    if scheme.endswith("ordered"):
        linear.order.copy_(torch.randperm(96))
    twin, before = view(linear), view(norm)
    for norms, then in (
        ((before, norm), None), ((before, norm), Gated("silu")), ((before, norm), Activation("gelu_tanh")),
        ((None, None), None), ((None, None), Gated("silu")),
    ):  # fmt: skip
        found, expected = twin.after(norms[0], x, then), linear.after(norms[1], x, then)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=4e-3, atol=2e-2)  # float16 rounds gate and up apart
    stream = torch.randn(rows, 40).to(dtype)
    expected = linear.onto(stream.clone(), x)
    found = twin.onto(stream, x)
    rounding = 1e-4 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(found, expected, rtol=rounding, atol=4 * rounding)
    assert rows == 0 or found is stream


@pytest.mark.parametrize("scheme", TWINS)
def test_rows_of_quantized_logits_lie_at_multiples_of_16_bytes(scheme):
    head = made(scheme, (37,), 64, role="head", bias=False)
    x = torch.randn(3, 64)
    found = view(head)(x)
    assert found.stride() == (40, 1)
    torch.testing.assert_close(found, head(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", TWINS)
def test_a_row_s_values_do_not_depend_on_its_neighbors(scheme):
    """The same kernel with another tile: sums in another order, and of integers not even that."""
    twin, x = view(made(scheme, (40,), 160)), torch.randn(70, 160)
    alone = torch.cat([twin(row.unsqueeze(0)) for row in x[:5]])
    if scheme == "int8":
        assert torch.equal(twin(x)[:5], alone)
    else:
        torch.testing.assert_close(twin(x)[:5], alone, rtol=1e-5, atol=1e-5)
