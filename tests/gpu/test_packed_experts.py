"""Experts in fewer bits on a CUDA GPU: compiled, against the same weights in floats, and as whole models."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus import LLM, SamplingParams
from gradus.device.capability import capability
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.core.view import view
from gradus.kernels.experts.dispatch import dispatch
from gradus.kernels.experts.launches import MOST_FEW
from gradus.kernels.experts.packed import Rows, packed_down, packed_up
from gradus.kernels.experts.reference import dispatch_reference, down_reference, up_reference
from gradus.kernels.fuse import model as twins  # noqa: F401  # names them
from gradus.kernels.fuse.experts import form_of_part
from gradus.kernels.quantized.mxfp4 import Mxfp4Weights, launch_for, mxfp4_product
from gradus.models.layers import MatrixId
from gradus.quantization.mxfp4 import Mxfp4Linear
from tests.kernels.interpreted_packed_experts import EXPERTS, KINDS, by_pair, stack
from tests.pairwise import pairwise

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then gives NaN
    yield
    torch.use_deterministic_algorithms(False)


def assert_close(out: Tensor, reference: Tensor) -> None:
    assert out.dtype == reference.dtype and out.shape == reference.shape
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    assert error < (6e-3 if out.dtype == torch.bfloat16 else 1e-3), f"off by {error:.1e}"  # NaN is not below anything


def routed(tokens: int) -> tuple[Tensor, Rows]:
    chosen = torch.rand(tokens, EXPERTS, device="cuda").topk(2).indices.int().contiguous()
    return chosen, Rows(chosen, EXPERTS, dispatch(chosen, EXPERTS) if tokens > MOST_FEW else None)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "tokens", "dtype"), pairwise(KINDS, [1, 7, 64, 65, 700], [torch.bfloat16, torch.float16])
)
def test_every_form_multiplies_as_its_floats(kind, tokens, dtype):
    """Widths of 2,880 and 192, no multiples of 128 and of 256, through the launches that the engine takes."""
    if kind.startswith("fp8") and not capability(torch.device("cuda")).multiplies_fp8:
        pytest.skip("no 8-bit floats on this GPU")
    early = capability(torch.device("cuda")).starts_early
    chosen, rows = routed(tokens)
    plan = dispatch_reference(chosen, EXPERTS)
    up, wide_up = moved(kind, 2, 2880, dtype)
    down, wide_down = moved(kind, 1, 192, dtype)
    x, wide = (
        torch.randn(tokens, 2880, device="cuda", dtype=dtype),
        torch.randn(2 * tokens, 192, device="cuda", dtype=dtype),
    )
    with early_launches(early):
        features = packed_up(x, form_of_part(up), rows, "clamped_silu", bias=up.bias)
        results = packed_down(wide, form_of_part(down), rows, bias=down.bias)
    expected = up_reference(x.float(), wide_up.float(), plan, "clamped_silu", bias=up.bias)
    assert_close(features, (by_pair(expected, plan) if rows.plan is None else expected).to(dtype))
    in_order = wide[plan.pairs.long()] if rows.plan is None else wide
    assert_close(results, down_reference(in_order.float(), wide_down.float(), plan, bias=down.bias).to(dtype))


def moved(kind: str, parts: int, width: int, dtype: torch.dtype) -> tuple[Any, Tensor]:
    linear, wide = stack(kind, parts, width, dtype)
    return view(linear.cuda()), wide.cuda()


@pytest.mark.quick
@pytest.mark.parametrize(("m", "gated"), [(1, False), (5, True), (64, False)])
@pytest.mark.parametrize("width", [96, 2880])
def test_a_dense_product_in_mxfp4(width, m, gated):
    linear = Mxfp4Linear(MatrixId("gate_up", 0), width, (72, 72), False, torch.bfloat16, "cuda")
    linear.assign("weight", 0, torch.randn(144, width) * 0.2)
    weights, x = Mxfp4Weights(linear.words, linear.scales), torch.randn(m, width, device="cuda").bfloat16()
    around: dict[str, Any] = {"activation": "silu", "gated": True} if gated else {}
    found = mxfp4_product(x, weights, launch_for(m, 72 if gated else 144, width, 132), **around)
    sums = x.float() @ linear.dequantized().t()
    expected = torch.nn.functional.silu(sums[:, :72]) * sums[:, 72:] if gated else sums
    assert_close(found, expected.bfloat16())
    wide = torch.empty(100, width, dtype=torch.bfloat16, device="cuda")
    weights.widen(7, wide)
    assert torch.equal(wide, linear.wide_rows(7, 107).bfloat16())


@pytest.mark.parametrize("exponent", [1, 100, 127, 128])
def test_every_code_of_mxfp4_is_exact_with_every_power_of_two(exponent):
    """Values are subnormal before their factor comes: no bit of them may be lost."""
    linear = Mxfp4Linear(MatrixId("down", 0), 64, (16,), False, torch.bfloat16, "cuda")
    blocks = torch.empty(16, 2, 17, dtype=torch.uint8)
    codes = torch.arange(16, dtype=torch.uint8)
    blocks[..., 0], blocks[..., 1:] = exponent, codes | codes.roll(5) << 4
    linear.store(0, blocks.flatten(1))
    out = torch.empty(16, 64, dtype=torch.bfloat16, device="cuda")
    Mxfp4Weights(linear.words, linear.scales).widen(0, out)
    assert torch.equal(out, linear.dequantized().bfloat16())


@pytest.mark.plans_memory
@pytest.mark.parametrize("scheme", ["int8", "int4", "mxfp4", "fp8", "fp8-block"])
@pytest.mark.parametrize("shape", ["tiny-qwen3-moe", "tiny-gpt-oss"])
def test_a_quantized_model_s_tokens_do_not_depend_on_graphs_or_on_the_batch(shape, scheme):
    """Compare the first tokens: captured and not, alone and with others."""
    if scheme.startswith("fp8") and not capability(torch.device("cuda")).multiplies_fp8:
        pytest.skip("no 8-bit floats on this GPU")
    settings = {"device": "cuda", "dtype": "float16", "quantize": scheme, "context_length": 256}
    greedy = SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = [[5, 6, 7], [9] * 20, list(range(40, 80))]
    with LLM(f"random:{shape}", **settings) as llm:
        together = [done.token_ids for done in llm.generate(prompts, greedy)]
        alone = [llm.generate([prompt], greedy)[0].token_ids for prompt in prompts]
    with LLM(f"random:{shape}", switch_off=("graphs",), **settings) as llm:
        uncaptured = [done.token_ids for done in llm.generate(prompts, greedy)]
    assert [each[:3] for each in together] == [each[:3] for each in alone] == [each[:3] for each in uncaptured]
