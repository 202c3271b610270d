"""The grouped products of experts on a CUDA GPU: compiled, against their torch references, and in a CUDA graph."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.device.capability import capability
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.experts.dispatch import dispatch
from gradus.kernels.experts.grouped import down_product, up_product
from gradus.kernels.experts.grouped_launch import AnyLaunch, GroupedLaunch, HopperGroupedLaunch, HopperStreamedLaunch
from gradus.kernels.experts.grouped_tables import copies, suits_hopper
from gradus.kernels.experts.reference import dispatch_reference, down_reference, up_reference
from tests.pairwise import pairwise

pytestmark = pytest.mark.gpu

STREAMING = GroupedLaunch(tokens=16, rows=64, columns=128, stages=2, warps=4, early=True)
SHARING = GroupedLaunch(tokens=128, rows=128, columns=64, stages=2, warps=8)
LAUNCHES: dict[str, AnyLaunch | None] = {
    "chosen": None,
    "few": STREAMING,
    "many": SHARING,
    "few copied": STREAMING._replace(copied=True),
    "many copied": SHARING._replace(copied=True),
}

ON_HOPPER: dict[str, AnyLaunch | None] = {
    "prompt": HopperGroupedLaunch(4),
    "8": HopperStreamedLaunch(8, 12),
    "16": HopperStreamedLaunch(16, 11),
    "32": HopperStreamedLaunch(32, 5),
    "64": HopperStreamedLaunch(64, 8),
}


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then gives NaN
    yield
    torch.use_deterministic_algorithms(False)


def choices(tokens: int, chosen: int, experts: int, skewed: bool) -> Tensor:
    """Choose at random, or the last experts for every row."""
    if skewed:
        return torch.arange(experts - chosen, experts, dtype=torch.int32, device="cuda").repeat(tokens, 1)
    return torch.rand(tokens, experts, device="cuda").topk(chosen).indices.int()


def assert_close(out: Tensor, reference: Tensor) -> None:
    assert out.dtype == reference.dtype and out.shape == reference.shape
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    bound = 6e-3 if out.dtype == torch.bfloat16 else 1e-5
    assert error < bound, f"off by {error:.1e}"  # NaN is not below anything


@pytest.mark.quick
@pytest.mark.parametrize(
    ("tokens", "chosen", "experts", "skewed"),
    [(1, 8, 128, False), (33, 8, 128, False), (1000, 4, 32, False), (1000, 4, 32, True), (9000, 8, 256, False)],
)
def test_pairs_are_sorted_by_expert_and_keep_their_order(tokens, chosen, experts, skewed):
    taken = choices(tokens, chosen, experts, skewed)
    found, expected = dispatch(taken, experts), dispatch_reference(taken, experts)
    assert torch.equal(found.pairs, expected.pairs) and torch.equal(found.starts, expected.starts)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("tokens", "skewed", "hidden", "width", "launch", "bias"),
    pairwise(
        [1, 32, 300, 1000], [False, True], [(256, 192), (320, 136), (2880, 200)], list(LAUNCHES), [False, True]
    ),
)  # fmt: skip
def test_each_row_is_multiplied_by_the_experts_that_it_chose(tokens, skewed, hidden, width, launch, bias):
    experts, chosen, shape = 16, 3, LAUNCHES[launch]
    if isinstance(shape, GroupedLaunch) and shape.copied and not copies(capability(torch.device("cuda")), hidden, 2):
        pytest.skip("no copy engine")
    plan = dispatch(choices(tokens, chosen, experts, skewed), experts)
    up, down, x = (
        torch.randn(rows, k, device="cuda", dtype=torch.bfloat16).div_(k**0.5)
        for rows, k in ((2 * experts * width, hidden), (experts * hidden, width), (tokens, hidden))
    )
    up_bias, down_bias = (torch.randn(len(each), device="cuda").bfloat16() if bias else None for each in (up, down))
    expected = up_reference(x, up, plan, "clamped_silu", bias=up_bias)
    assert_close(up_product(x, up, plan, "clamped_silu", bias=up_bias, launch=shape), expected)
    out = down_product(expected, down, plan, bias=down_bias, launch=shape)
    assert_close(out, down_reference(expected, down, plan, down_bias))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("tokens", "skewed", "hidden", "width", "activation", "bias", "launch"),
    pairwise(
        [1, 100, 1000, 3000], [False, True], [(256, 192), (320, 128), (2880, 256)], ["silu", "clamped_silu"],
        [False, True], list(ON_HOPPER),
    ),
)  # fmt: skip
def test_on_hopper_each_row_is_found_and_no_other_written(tokens, skewed, hidden, width, activation, bias, launch):
    experts, chosen, launch = 16, 3, ON_HOPPER[launch]
    if not suits_hopper(capability(torch.device("cuda")), hidden, 2):
        pytest.skip("no Hopper")
    plan = dispatch(choices(tokens, chosen, experts, skewed), experts)
    up, down, x = (
        torch.randn(rows, k, device="cuda", dtype=torch.bfloat16).div_(k**0.5)
        for rows, k in ((2 * experts * width, hidden), (experts * hidden, width), (tokens, hidden))
    )
    up_bias, down_bias = (torch.randn(len(each), device="cuda").bfloat16() if bias else None for each in (up, down))
    expected = up_reference(x, up, plan, activation, bias=up_bias)
    for _ in range(3):  # a race between warp groups would not show each time
        assert_close(up_product(x, up, plan, activation, bias=up_bias, launch=launch), expected)
        out = down_product(expected, down, plan, bias=down_bias, launch=launch)
        assert_close(out, down_reference(expected, down, plan, down_bias))


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_types_of_weights_are_multiplied_as_precisely_as_they_are(dtype):
    plan = dispatch(choices(40, 2, 8, False), 8)
    up, x = (torch.randn(rows, 192, device="cuda").div_(14).to(dtype) for rows in (2 * 8 * 96, 40))
    out, expected = up_product(x, up, plan, "silu"), up_reference(x, up, plan, "silu")
    error = (out.double() - expected.double()).norm() / expected.double().norm()
    assert error < (1e-3 if dtype == torch.float16 else 1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("launch", ["chosen", "few", "many", *ON_HOPPER])
def test_a_graph_routes_each_step_anew(launch):
    """Launches overlap in it where the GPU can, and sizes were fixed before anyone chose."""
    tokens, chosen, experts, hidden, width, shape = 32, 8, 128, 512, 256, (LAUNCHES | ON_HOPPER)[launch]
    if launch in ON_HOPPER and not suits_hopper(capability(torch.device("cuda")), hidden, 2):
        pytest.skip("no Hopper")
    taken = choices(tokens, chosen, experts, False)
    up, down, x = (
        torch.randn(rows, k, device="cuda", dtype=torch.bfloat16).div_(k**0.5)
        for rows, k in ((2 * experts * width, hidden), (experts * hidden, width), (tokens, hidden))
    )

    def step() -> Tensor:
        plan = dispatch(taken, experts)
        return down_product(up_product(x, up, plan, "silu", launch=shape), down, plan, launch=shape)

    graph = torch.cuda.CUDAGraph()
    with early_launches(capability(x.device).starts_early):
        step()
        with torch.cuda.graph(graph):
            out = step()
    for skewed in (False, True, False):
        taken.copy_(choices(tokens, chosen, experts, skewed))
        x.normal_()
        out.fill_(float("nan"))
        for _ in range(3):  # each replay begins while the one before it drains
            graph.replay()
        plan = dispatch_reference(taken, experts)
        assert_close(out, down_reference(up_reference(x, up, plan, "silu"), down, plan))
