"""Run by test_grouped_experts.py in a process of its own, where Triton interprets the kernels of experts.

float16 and float32, since the interpreter's products of bfloat16 are wrong. New memory is poisoned with NaN.
"""

import pytest
import torch
from torch import Tensor

from gradus.kernels.experts.dispatch import dispatch
from gradus.kernels.experts.grouped import down_product, up_product
from gradus.kernels.experts.grouped_launch import GroupedLaunch, HopperGroupedLaunch, HopperStreamedLaunch
from gradus.kernels.experts.hopper import grouped as hopper_grouped
from gradus.kernels.experts.hopper import streamed as hopper_streamed
from gradus.kernels.experts.reference import dispatch_reference, down_reference, up_reference
from gradus.models import SHAPES, create_model, randomize
from gradus.models.experts import Mixture
from tests.kernels import interpreted_warp_groups
from tests.pairwise import each_once

LAUNCHES = [GroupedLaunch(16, 16, 32, 2, 4), GroupedLaunch(32, 32, 16, 3, 4), GroupedLaunch(16, 32, 16, 2, 4, True)]


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("error")  # torch.empty then gives NaN
    yield
    torch.set_deterministic_debug_mode("default")


def choices(tokens: int, chosen: int, experts: int, how: str = "random") -> Tensor:
    """How rows choose: at random; all the last experts; or the first ones and then the one behind them."""
    if how == "all the last":
        return torch.arange(experts - chosen, experts, dtype=torch.int32).repeat(tokens, 1)
    scores = torch.rand(tokens, experts)
    if how == "one has few":
        scores[:-1, chosen + 1 :] = -1.0
    return scores.topk(chosen).indices.int()


def assert_close(out: Tensor, reference: Tensor) -> None:
    assert out.dtype == reference.dtype and out.shape == reference.shape
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    assert error < (1e-6 if out.dtype == torch.float32 else 2e-3)  # NaN is not below anything


@pytest.mark.parametrize(
    ("tokens", "chosen", "experts", "how"),
    each_once([1, 5, 300, 1000], [(1, 8), (3, 13), (8, 20)], ["random", "all the last", "one has few"]),
)
def test_pairs_are_sorted_by_expert_and_keep_their_order(tokens, chosen, experts, how, monkeypatch):
    monkeypatch.setattr("gradus.kernels.experts.dispatch.MOST_AT_ONCE", 512)  # several rounds
    taken = choices(tokens, chosen, experts, how)
    monkeypatch.setattr("gradus.kernels.experts.dispatch.SEGMENT", 128)
    expected = dispatch_reference(taken, experts)
    for most in (10_000, 0):
        monkeypatch.setattr("gradus.kernels.experts.dispatch.MOST_IN_ONE_LAUNCH", most)
        found = dispatch(taken, experts)
        assert torch.equal(found.pairs, expected.pairs) and torch.equal(found.starts, expected.starts)


@pytest.mark.parametrize("most", [10_000, 0], ids=["one launch", "two"])
def test_a_choice_of_an_expert_elsewhere_has_no_place(most, monkeypatch):
    monkeypatch.setattr("gradus.kernels.experts.dispatch.MOST_IN_ONE_LAUNCH", most)
    taken = torch.tensor([[0, 4], [90, 2], [-1, 3]], dtype=torch.int32)
    found = dispatch(taken, 4)
    assert found.starts.tolist() == [0, 1, 1, 2, 3] and found.pairs[:3].tolist() == [0, 3, 5]


@pytest.mark.parametrize("launch", LAUNCHES, ids=["few", "many", "copied"])
@pytest.mark.parametrize(
    ("tokens", "experts", "how", "hidden", "width", "dtype"),
    each_once(
        [(1, 9), (7, 12), (90, 9)], ["random", "all the last", "one has few"],
        [(48, 40, torch.float16), (64, 32, torch.float32), (40, 24, torch.float16)],
    ),
)  # fmt: skip
def test_each_row_is_multiplied_by_the_experts_that_it_chose(launch, tokens, experts, how, hidden, width, dtype):
    plan = dispatch(choices(tokens, 3, experts, how), experts)
    up, down = torch.randn(2 * experts * width, hidden).to(dtype), torch.randn(experts * hidden, width).to(dtype)
    x = torch.randn(tokens, hidden).to(dtype)
    expected = up_reference(x, up, plan, "silu")
    assert_close(up_product(x, up, plan, "silu", launch=launch), expected)
    assert_close(down_product(expected, down, plan, launch=launch), down_reference(expected, down, plan))


@pytest.mark.parametrize(
    ("activation", "gated"), [("silu", True), ("gelu_tanh", True), ("clamped_silu", True), ("gelu_tanh", False)]
)
def test_biases_and_activations_are_those_of_the_model(activation, gated):
    experts, hidden, width = 5, 32, 24
    plan = dispatch(choices(20, 2, experts), experts)
    up, down = torch.randn((1 + gated) * experts * width, hidden), torch.randn(experts * hidden, width)
    up_bias, down_bias, x = torch.randn(len(up)), torch.randn(len(down)), torch.randn(20, hidden)
    options = {"bias": 4 * up_bias}
    expected = up_reference(x, up, plan, activation, is_gated=gated, **options)
    assert_close(up_product(x, up, plan, activation, gated=gated, launch=LAUNCHES[0], **options), expected)
    out = down_product(expected, down, plan, bias=down_bias, launch=LAUNCHES[0])
    assert_close(out, down_reference(expected, down, plan, down_bias))


@pytest.mark.parametrize("tokens", [1, 40])
def test_rows_through_their_experts_add_up_to_the_model_s_mixture(tokens):
    model = create_model(SHAPES["tiny-qwen3-moe"], dtype=torch.float32)
    randomize(model, std=0.1)
    mixture = next(part for part in model.modules() if isinstance(part, Mixture))
    x = torch.randn(tokens, mixture.up.in_features)
    chosen, weights = mixture.router(x)
    plan = dispatch(chosen.int(), mixture.experts.count)
    features = up_product(x, mixture.up.weight, plan, mixture.activation.name)
    results = down_product(features, mixture.down.weight, plan)
    total = (results.unflatten(0, (tokens, -1)) * weights[:, :, None]).sum(1)
    torch.testing.assert_close(total, mixture(x, None), rtol=1e-4, atol=1e-5)


# -- Hopper ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [hopper_grouped, hopper_streamed], ids=["prompt", "few rows"])
@pytest.mark.parametrize(
    ("tokens", "how", "hidden", "width", "activation", "bias", "stages"),
    each_once(
        [(1, "random"), (90, "random"), (70, "all the last"), (150, "one has few")],
        [(64, 192), (320, 64), (128, 128)],
        [("silu", False), ("clamped_silu", True)],
        [2, 4],
    ),
)
def test_warp_groups_hand_tiles_to_each_other(
    module, tokens, how, hidden, width, activation, bias, stages, monkeypatch
):
    """Three programs with several tiles each; an expert's last rows fill a tile, or half of one, or less."""
    interpreted_warp_groups.interpret(module, monkeypatch, module.COPIERS.value)
    if module is hopper_grouped:
        multiply, launch = module.hopper_grouped, HopperGroupedLaunch(stages)
    else:
        multiply, launch = module.hopper_streamed, HopperStreamedLaunch(16, stages)
    experts = 5
    plan = dispatch(choices(tokens, 2, experts, how), experts)
    up, down = torch.randn(2 * experts * width, hidden).half(), torch.randn(experts * hidden, width).half()
    up_bias, down_bias = (4 * torch.randn(len(each)).half() if bias else None for each in (up, down))
    x = torch.randn(tokens, hidden).half()
    expected = up_reference(x, up, plan, activation, bias=up_bias)
    features, out = torch.empty(2 * tokens, width).half(), torch.empty(2 * tokens, hidden).half()
    multiply(x, up, up_bias, features, plan, 3, launch, activation)
    assert_close(features, expected)
    multiply(expected, down, down_bias, out, plan, 3, launch, None)
    assert_close(out, down_reference(expected, down, plan, down_bias))
