"""Quantized matrices on a CUDA GPU: the kernels, compiled, against their torch references, and engines on them.

Every output starts poisoned (torch fills new memory with NaN), so an element that no program wrote is seen.
"""

from collections.abc import Iterator
from typing import TypeVar, cast

import pytest
import torch
from torch import Tensor, nn

from gradus.assembly.final import EngineConfig, build
from gradus.device.capability import capability
from gradus.models import SHAPES, Model, create_model, randomize
from gradus.models.layers import Linear, MatrixId, RMSNorm
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear
from gradus.quantization.mix import Mix, factory
from gradus.quantization.schemes import SCHEMES
from tests.gpu.test_phases import requests
from tests.pairwise import pairwise
from tests.phases.conftest import NaiveAttention, limits_of
from tests.phases.drive import run

pytestmark = pytest.mark.gpu

Part = TypeVar("Part", bound=nn.Module)

EIGHT_BITS = ["int8", "fp8", "fp8-block"]
EVERY_SCHEME = ["int4-g128", "int4-g64", "int4-g32", *EIGHT_BITS]
ROUNDING = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}  # of ‖out - reference‖ / ‖reference‖
SUMS_OF_E4M3 = 2e-4  # the same where tensor cores add products of e4m3: with 14 bits
# A value that is rounded to 8 bits may fall to either side where sums differ in their last bit. In bfloat16 that, and
# the rounding of activations, adds up over layers to what a logit near 8 is off by; so does what sums of e4m3 lose.
CLOSE_CALL = {torch.float32: 0.05, torch.bfloat16: 0.5}
CLOSE_CALL_OF_E4M3 = 0.25


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then gives NaN
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=EVERY_SCHEME)
def scheme(request) -> str:
    if request.param.startswith("fp8") and not capability(torch.device("cuda")).multiplies_fp8:
        pytest.skip("no arithmetic for e4m3")
    return request.param


def made(
    scheme: str, widths: tuple[int, ...], k: int, dtype: torch.dtype, *, bias: bool = False, role="down"
) -> Linear:
    linear = SCHEMES[scheme](MatrixId(role, 0), k, widths, bias, dtype, "cuda")
    linear.assign("weight", 0, torch.randn(sum(widths), k, device="cuda") / k**0.5)
    if bias:
        linear.assign("bias", 0, torch.randn(sum(widths), device="cuda"))
    return linear


def view(part: Part) -> Part:
    """The kernels' twin of a part."""
    from gradus.kernels.core.view import view

    return cast(Part, view(part))


def assert_close(out: Tensor, reference: Tensor, times: float = 1.0, scheme: str = "") -> None:
    assert out.dtype == reference.dtype and out.shape == reference.shape
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    bound = max(ROUNDING[out.dtype], SUMS_OF_E4M3 if scheme.startswith("fp8") else 0.0)
    assert error < times * bound, f"off by {error:.1e}"  # NaN is not below anything


@pytest.mark.parametrize(
    "scheme, rows, dtype",
    pairwise(EVERY_SCHEME, [1, 7, 16, 33, 64, 65, 200, 300], [*ROUNDING]),
    indirect=["scheme"],
)
@torch.inference_mode()
def test_a_view_s_product_is_the_scheme_s(rows, scheme, dtype):
    """The sizes of odd matrices, and of ragged last tiles. Groups of 128 do not divide 576."""
    for n, k in [(257, 128), (1024, 1280), (1000, 4096), *([] if scheme == "int4-g128" else [(576, 576)])]:
        linear, x = made(scheme, (n, 33), k, dtype, bias=True), torch.randn(rows, k, device="cuda").to(dtype)
        twin, stream = view(linear), torch.randn(rows, n + 33, device="cuda").to(dtype)
        assert_close(twin(x), linear(x), scheme=scheme)
        assert_close(twin.onto(stream.clone(), x), linear.onto(stream, x), scheme=scheme)


@pytest.mark.parametrize("rows", [1, 16, 64, 100])
@torch.inference_mode()
def test_norms_and_gates_around_a_product(rows, scheme):
    from gradus.models.layers import Activation, Gated

    linear, x = (
        made(scheme, (640, 640), 1024, torch.bfloat16, bias=True),
        torch.randn(rows, 1024, device="cuda").bfloat16(),
    )
    norm = RMSNorm(1024, 1e-5, torch.bfloat16, "cuda")
    torch.nn.init.normal_(norm.weight)
    for then in (None, Gated("silu"), Activation("gelu_tanh")):
        # a value next to a step of 8 bits may fall to its other side, as norms sum in another order
        assert_close(view(linear).after(view(norm), x, then), linear.after(norm, x, then), times=4)


# 300 wide rows are rounded in pieces
@pytest.mark.parametrize("k, rows, dtype", pairwise([24, 128, 576, 4096, 14336], [67, 300], [*ROUNDING]))
def test_activations_are_rounded_to_the_very_values_of_the_scheme(k, rows, dtype):
    from gradus.kernels.quantized.quantize import quantize
    from gradus.kernels.quantized.reference import quantize_reference
    from gradus.quantization.fp8 import E4M3

    x = torch.randn(rows, k, device="cuda") * torch.logspace(-6, 4, rows, device="cuda").unsqueeze(1)
    x[5, 3], x[6] = float("nan"), 0
    kinds: list[tuple[torch.dtype, int | None]] = [(torch.int8, None)]
    kinds += [(E4M3, None), (E4M3, 128)] if capability(x.device).multiplies_fp8 else []
    for kind, group in kinds:
        found, expected = quantize(x.to(dtype), kind, group), quantize_reference(x.to(dtype), kind, group)
        finite = torch.arange(rows, device="cuda") != 5
        assert torch.equal(found.scales[:, finite], expected.scales[:, finite])
        assert torch.equal(found.values[finite].view(torch.int8), expected.values[finite].view(torch.int8))
        assert found.scales[:, 5].isnan().any()


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("k", [1000, 14336])
def test_what_a_gate_lets_through_is_rounded_as_it_would_be_alone(k, activation):
    """But for values next to a step, since silu's last bit may differ."""
    from gradus.kernels.quantized.quantize import quantize
    from gradus.kernels.quantized.reference import quantize_gated_reference
    from gradus.quantization.fp8 import E4M3

    gate_up = torch.randn(70, 2 * k, device="cuda").bfloat16() * 3
    for kind in [torch.int8, *([E4M3] if capability(gate_up.device).multiplies_fp8 else [])]:
        found = quantize(gate_up, kind, activation=activation)
        expected = quantize_gated_reference(gate_up, kind, activation)
        torch.testing.assert_close(found.scales, expected.scales, rtol=8e-3, atol=0)
        wide, exact = (each.values.float() * each.scales.t() for each in (found, expected))
        assert (wide - exact).norm() < 0.02 * exact.norm()


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_weights_unpacked_in_registers_are_the_scheme_s_to_the_bit(group, dtype):
    """Rows of the identity bring single weights through the product; sums with zeros round nothing."""
    from gradus.kernels.quantized.int4 import Int4Weights, int4_product
    from gradus.kernels.quantized.tile import TileLaunch

    linear = made(f"int4-g{group}", (333,), 512, dtype)
    assert isinstance(linear, Int4Linear)
    linear.pairs.copy_(torch.randn(*linear.pairs.shape, 2, device="cuda").to(dtype).view(torch.int32).squeeze(-1))
    weights, expected = Int4Weights(linear.words, linear.pairs, linear.kind), linear.dequantized().to(dtype)
    wide = torch.empty(333, 512, dtype=dtype, device="cuda")
    weights.widen(0, wide)
    assert torch.equal(wide, expected)
    for tile in ((64, 128, 8, 1, 3, 4), (32, 128, 16, 2, 3, 2), (128, 128, 64, 1, 2, 8)):
        identity = torch.eye(512, dtype=dtype, device="cuda")
        out = int4_product(identity, weights, TileLaunch(*tile))
        assert torch.equal(out.t(), expected), tile


@pytest.mark.quick
@torch.inference_mode()
def test_a_product_of_integers_is_exact_in_every_tile():
    from gradus.kernels.quantized.eight_bits import EightBitWeights, eight_bit_product, library_product
    from gradus.kernels.quantized.quantize import quantize
    from gradus.kernels.quantized.tile import TileLaunch

    linear, x = made("int8", (512,), 1024, torch.float32), torch.randn(40, 1024, device="cuda")
    expected, rounded = linear(x), quantize(x, torch.int8)
    assert isinstance(linear, Int8Linear)
    weights = EightBitWeights(linear.values, linear.scales)
    for tile in ((64, 128, 8, 4, 4, 4), (128, 128, 64, 1, 3, 8), (32, 256, 16, 3, 3, 2)):
        for _ in range(5):  # whichever program is last
            assert torch.equal(eight_bit_product(rounded, weights, torch.float32, TileLaunch(*tile)), expected)
    assert_close(library_product(rounded, weights, torch.float32), expected)


@torch.inference_mode()
def test_products_replay_from_a_cuda_graph_and_start_early(scheme):
    from gradus.kernels.core.overlap import early_launches

    first, second = made(scheme, (1024,), 2048, torch.bfloat16), made(scheme, (2048,), 1024, torch.bfloat16)
    norm, x = RMSNorm(2048, 1e-5, torch.bfloat16, "cuda"), torch.randn(3, 2048, device="cuda").bfloat16()
    torch.nn.init.ones_(norm.weight)
    twins = view(first), view(second), view(norm)

    def step() -> Tensor:
        stream = x.clone()
        for _ in range(8):
            stream = twins[1].onto(stream, twins[0].after(twins[2], stream))
        return stream

    early = capability(x.device).starts_early
    with early_launches(early):
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), early_launches(early):
        out = step()
    for _ in range(20):
        x.normal_()
        graph.replay()
        assert torch.equal(out, step())


# -- engines -----------------------------------------------------------------------------------------------------------


def models(shape: str, scheme: str, dtype: torch.dtype) -> tuple[Model, Model]:
    """The same quantized numbers on the GPU with activations in dtype, and on the CPU in float32."""
    linear = factory(Mix(scheme, (("*", scheme),)), SHAPES[shape], Linear)
    exact = create_model(SHAPES[shape], dtype=torch.float32, linear=linear)
    for part in quantized_in_4_bits(exact):  # where activations are bfloat16, scales are
        part.kind = torch.bfloat16 if dtype == torch.bfloat16 else torch.float16
    randomize(exact, seed=7, std=0.1)
    model = create_model(SHAPES[shape], dtype=dtype, device="cuda", linear=linear)
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        mine.copy_(theirs)
    return model, exact


def quantized_in_4_bits(model: Model) -> Iterator[Int4Linear]:
    return (part for part in model.modules() if isinstance(part, Int4Linear))


@pytest.mark.parametrize(
    "quantize, shape, dtype",
    pairwise(["int4", *EIGHT_BITS], ["tiny-llama", "tiny-gpt2", "tiny-gemma3"], [*CLOSE_CALL]),
)
@torch.inference_mode()
def test_an_engine_s_tokens_part_from_the_reference_s_only_at_close_calls(quantize, shape, dtype):
    if quantize.startswith("fp8") and not capability(torch.device("cuda")).multiplies_fp8:
        pytest.skip("no arithmetic for e4m3")
    model, exact = models(shape, quantize, dtype)
    engine = build(model, EngineConfig(limits_of(shape), max_sequences=3))
    done = run(engine, requests(shape))
    for request in requests(shape):
        tokens = list(request.prompt)
        for step, token in enumerate(done[request.id, 0].tokens):
            hidden = exact(torch.tensor(tokens), torch.arange(len(tokens)), NaiveAttention(exact))
            logits = exact.logits(hidden[-1:])[0]
            gap = float(logits.max() - logits[token])
            close = max(CLOSE_CALL[dtype], CLOSE_CALL_OF_E4M3 if quantize.startswith("fp8") else 0.0)
            assert gap < close, f"{request.id}, step {step}: token {token} is {gap:.3f} below the best logit"
            tokens.append(token)
