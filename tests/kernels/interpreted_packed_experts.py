"""Run by test_packed_experts.py in a process of its own, where Triton interprets the kernels of experts in fewer bits.

float16 and float32, since the interpreter's products of bfloat16 are wrong. New memory is poisoned with NaN.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.kernels.core.view import view
from gradus.kernels.experts.dispatch import dispatch
from gradus.kernels.experts.packed import Rows, packed_down, packed_up
from gradus.kernels.experts.packed_launch import PackedLaunch, unraced
from gradus.kernels.experts.reference import dispatch_reference, down_reference, up_reference
from gradus.kernels.fuse import model as twins  # noqa: F401  # names them
from gradus.kernels.fuse.experts import PackedMixture, form_of_part
from gradus.kernels.quantized.mxfp4 import Mxfp4Weights, launch_for, mxfp4_product
from gradus.models import SHAPES, create_model, randomize
from gradus.models.experts import Mixture
from gradus.models.layers import Linear, MatrixId
from gradus.quantization.fp8 import Fp8BlockLinear
from gradus.quantization.mix import Mix, factory
from gradus.quantization.mxfp4 import Mxfp4Linear
from gradus.quantization.schemes import SCHEMES, STORED
from tests.kernels.interpreted_grouped_experts import assert_close, choices
from tests.pairwise import each_once, pairwise

EXPERTS, D, OUT = 5, 192, 40
KINDS = ["plain", "int8", "fp8", "fp8-block", "int4", "int4-g32", "mxfp4", "q4_0", "q8_0"]


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("error")  # torch.empty then gives NaN
    yield
    torch.set_deterministic_debug_mode("default")


def stack(kind: str, parts: int, width: int, dtype: torch.dtype, out: int = OUT) -> tuple[Linear, Tensor]:
    """A stack of `parts` halves, and its weights in floats, in dtype as kernels have them."""
    shape: Any = MatrixId("experts_up", 0), width, (EXPERTS * out,) * parts, True, dtype, "cpu"
    made: dict[str, Any] = {"plain": Linear, "mxfp4": Mxfp4Linear}
    if kind == "fp8-block":
        linear: Any = Fp8BlockLinear(*shape, experts=EXPERTS)
    elif kind.startswith("q"):
        linear = STORED[kind](*shape)
        blocks = torch.randint(0, 256, linear.blocks.shape, dtype=torch.uint8).view(-1, linear.format.size)
        blocks[:, :2] = (torch.randn(len(blocks), 1) * 0.05).half().view(torch.uint8)
        linear.store(0, blocks.view(linear.blocks.shape))
    else:
        linear = made.get(kind) or STORED[kind]
        linear = linear(*shape)
    if not kind.startswith("q"):
        linear.assign("weight", 0, torch.randn(parts * EXPERTS * out, width) * 0.2)
    linear.assign("bias", 0, torch.randn(parts * EXPERTS * out))
    wide = linear.weight if kind == "plain" else linear.dequantized()
    return linear, wide.to(dtype if kind not in ("int8", "fp8", "fp8-block") else torch.float32)


LAUNCHES = [PackedLaunch(16, 16, 64, 2, 4), PackedLaunch(64, 32, 128, 2, 4)]


@pytest.mark.parametrize(("kind", "tokens", "dtype"), pairwise(KINDS, [1, 3, 16, 70], [torch.float16, torch.float32]))
def test_every_form_multiplies_as_its_floats(kind, tokens, dtype):
    """70 rows are sorted by expert, fewer are found by every pair; all choose expert 0, so there are several tiles."""
    up, wide_up = stack(kind, 2, D, dtype)
    down, wide_down = stack(kind, 1, 96, dtype)
    chosen = choices(tokens, 2, EXPERTS)
    if tokens == 70:
        chosen[:, 0], chosen[:, 1] = 0, chosen[:, 1].clamp(min=1)
    plan, x = dispatch_reference(chosen, EXPERTS), torch.randn(tokens, D).to(dtype)
    rows = Rows(chosen, EXPERTS, dispatch(chosen, EXPERTS) if tokens > 64 else None)
    features = packed_up(x, form_of_part(view(up)), rows, "silu", bias=up.bias)
    expected = up_reference(x.float(), wide_up.float(), plan, "silu", bias=up.bias)
    assert_close(features, (expected if tokens > 64 else by_pair(expected, plan)).to(dtype))
    wide = torch.randn(2 * tokens, 96).to(dtype)  # by pair, or in sorted order
    found = packed_down(wide, form_of_part(view(down)), rows, bias=down.bias)
    in_order = wide if tokens > 64 else wide[plan.pairs.long()]
    assert_close(found, down_reference(in_order.float(), wide_down.float(), plan, bias=down.bias).to(dtype))


def by_pair(features: Tensor, plan: Any) -> Tensor:
    out = torch.empty_like(features)
    out[plan.pairs.long()] = features
    return out


@pytest.mark.parametrize(
    ("width", "gated", "launch"), pairwise([96, 128, 320], [False, True], [(x,) for x in LAUNCHES])
)
def test_tiles_end_inside_rows_and_outputs(width, gated, launch):
    """40 outputs and widths of half a tile, of one, and of more than that."""
    up, wide = stack("mxfp4", 1 + gated, width, torch.float16)
    chosen = choices(16, 3, EXPERTS)
    activation = "clamped_silu" if gated else "gelu_tanh"
    x = torch.randn(16, width).half()
    rows = Rows(chosen, EXPERTS)
    found = packed_up(x, form_of_part(view(up)), rows, activation, gated=gated, bias=up.bias, launch=launch)
    plan = dispatch_reference(chosen, EXPERTS)
    expected = up_reference(x.float(), wide.float(), plan, activation, is_gated=gated, bias=up.bias)
    assert_close(found, by_pair(expected, plan).half())


@pytest.mark.parametrize("kind", ["q4_k", "q6_k"])
def test_blocks_of_256(kind):
    linear, wide = stack_of_k(kind)
    chosen = choices(3, 2, EXPERTS)
    x = torch.randn(3, 512).half()
    found = packed_down(x.repeat_interleave(2, 0), form_of_part(view(linear)), Rows(chosen, EXPERTS))
    plan = dispatch_reference(chosen, EXPERTS)
    expected = down_reference(x.float()[plan.pairs.long() // 2], wide.half().float(), plan)
    assert_close(found, expected.half())


def stack_of_k(kind: str) -> tuple[Any, Tensor]:
    from gguf import GGMLQuantizationType as Type

    from tests.loading.gguf_blocks import random_blocks

    linear: Any = STORED[kind](MatrixId("experts_down", 0), 512, (EXPERTS * 8,), False, torch.float16, "cpu")
    linear.store(0, torch.from_numpy(random_blocks(Type[kind.upper()], EXPERTS * 8, 512)))
    return linear, linear.dequantized()


# -- a whole mixture ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "scheme"), each_once(["tiny-qwen3-moe", "tiny-gpt-oss"], ["int8", "fp8-block", "int4", "words"])
)
def test_a_mixture_s_twin_computes_what_torch_does(scheme, shape, monkeypatch):
    """Compare with floats: torch's 8 bits would round activations, and kernels do not."""
    if scheme == "words":
        monkeypatch.setitem(SCHEMES, "words", Mxfp4Linear)
        monkeypatch.setitem(STORED, "words", Mxfp4Linear)
    config = SHAPES[shape]
    model = create_model(config, linear=factory(Mix.of(scheme), config, Linear))
    randomize(model, std=0.1)
    mixture = model.layers[0].experts
    twin: Any = view(mixture)
    assert type(twin) is PackedMixture
    plain: Any = create_model(config).layers[0].experts
    assert isinstance(plain, Mixture)
    plain.router.load_state_dict(mixture.router.state_dict())
    for mine, theirs in ((mixture.up, plain.up), (mixture.down, plain.down)):
        theirs.weight.data, theirs.bias = mine.dequantized(), mine.bias
    for rows in (1, 5, 70):
        x = torch.randn(rows, config.hidden_size)
        expected = plain(x, None)
        torch.testing.assert_close(twin(x, None), expected, rtol=1e-4, atol=1e-5)
        stream = x.clone()
        torch.testing.assert_close(twin.onto(stream, None), x + expected, rtol=1e-4, atol=1e-5)


# -- dense matrices in mxfp4 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "gated"), [(1, False), (5, True), (33, False)])
@pytest.mark.parametrize("width", [96, 512])
def test_a_dense_product(width, m, gated):
    linear = Mxfp4Linear(MatrixId("gate_up", 0), width, (72, 72), True, torch.float16, "cpu")
    linear.assign("weight", 0, torch.randn(144, width) * 0.2)
    linear.assign("bias", 0, torch.randn(144))
    weights = Mxfp4Weights(linear.words, linear.scales)
    x = torch.randn(m, width).half()
    launch = launch_for(m, 72 if gated else 144, width, 8)._replace(columns=128)
    around: dict[str, Any] = {"activation": "silu", "gated": True} if gated else {}
    found = mxfp4_product(x, weights, launch, bias=linear.bias, **around)
    sums = x.float() @ linear.dequantized().half().float().t() + linear.bias.float()
    expected = F.silu(sums[:, :72]) * sums[:, 72:] if gated else sums
    assert_close(found, expected.half())


@pytest.mark.parametrize("width", [96, 320])
def test_rows_are_widened_exactly(width):
    linear = Mxfp4Linear(MatrixId("gate_up", 0), width, (40,), False, torch.float32, "cpu")
    linear.assign("weight", 0, torch.randn(40, width))
    for dtype in (torch.float16, torch.float32):
        out = torch.empty(21, width, dtype=dtype)
        Mxfp4Weights(linear.words, linear.scales).widen(7, out)
        assert torch.equal(out, linear.wide_rows(7, 28).to(dtype))


def test_launches_of_every_form_fit_their_rows():
    for kind in KINDS:
        form = form_of_part(view(stack(kind, 1, 96, torch.float16)[0]))
        for rows in (1, 17, 64, 500):
            launch = unraced(form, rows, 2)
            assert launch.tokens >= min(rows, 64) and launch.columns <= form.columns
