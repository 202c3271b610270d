"""Run by test_gguf_kernels.py in a process of its own, where Triton interprets: a model of GGUF's blocks on kernels."""

from dataclasses import replace

import gguf
import pytest
import torch

from gradus.attention.triton_paged import TritonPagedAttention
from gradus.kernels.core.view import view
from gradus.kernels.fuse.model import fused
from gradus.kernels.fuse.quantized import FusedGGUF, FusedLookup
from gradus.models import SHAPES, Model, create_model
from gradus.models.layers import Gated, Linear, MatrixId, RMSNorm
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.mix import Mix, factory
from gradus.quantization.parts import SideBySide
from gradus.quantization.schemes import STORED
from tests.kernels.interpreted_fused_model import answers
from tests.loading.gguf_blocks import Type, encode


def kept(shape: str, scheme: str) -> Model:
    """A model with all of its matrices in blocks, one of each qkv in other ones, and its embedding too."""
    config = replace(SHAPES[shape].stage(range(2)), context_length=64)
    mix = Mix("gguf", (("*.v_proj", "q8_0"), ("*", scheme)))
    model = create_model(config, dtype=torch.float32, linear=factory(mix, config, Linear))
    randomize_floats(model)
    generator = torch.Generator().manual_seed(0)
    for part in model.modules():
        if isinstance(part, GGUFLinear):
            values = torch.randn(sum(part.out_features), part.in_features, generator=generator) / 10
            part.store(0, torch.from_numpy(encode(values.numpy(), Type[part.format.name.upper()])))
    return model


def randomize_floats(model: Model) -> None:
    for name, value in model.named_parameters():
        if value.is_floating_point():
            value.copy_(torch.ones_like(value) if "norm" in name else torch.zeros_like(value))


@pytest.mark.parametrize(("shape", "scheme"), [("tiny-llama", "q4_1"), ("tiny-gemma3", "q5_0")])
def test_a_model_in_blocks_gives_its_tokens_on_kernels(shape, scheme):
    model = kept(shape, scheme)
    seen = fused(model)
    kinds = {type(part) for part in seen.modules()}
    assert FusedGGUF in kinds and GGUFLinear not in kinds and type(seen.embedding) is FusedLookup
    assert type(seen.layers[0].qkv) is SideBySide
    assert answers(seen, TritonPagedAttention) == answers(model)


@pytest.mark.parametrize(
    ("rows", "dtype"), [(0, torch.float16), (3, torch.float16), (66, torch.float16), (1, torch.float32)]
)
def test_a_norm_before_and_an_activation_or_a_sum_behind(rows, dtype):
    linear = STORED["q4_0"](MatrixId("gate_up", 0), 96, (20, 20), True, dtype, "cpu")
    generator = torch.Generator().manual_seed(3)
    linear.store(
        0, torch.from_numpy(gguf.quants.quantize(torch.randn(40, 96, generator=generator).numpy() / 10, Type.Q4_0))
    )
    linear.assign("bias", 0, torch.randn(40, generator=generator))
    norm = RMSNorm(96, 1e-5, dtype, "cpu")
    torch.nn.init.normal_(norm.weight)
    twin, before, x = view(linear), view(norm), torch.randn(rows, 96).to(dtype)
    for then in (None, Gated("silu")):
        found, expected = twin.after(before, x, then), linear.after(norm, x, then)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=4e-3, atol=2e-2)
    stream = torch.randn(rows, 40).to(dtype)
    expected = linear.onto(stream.clone(), x)
    torch.testing.assert_close(twin.onto(stream, x), expected, rtol=4e-3, atol=1e-2)
