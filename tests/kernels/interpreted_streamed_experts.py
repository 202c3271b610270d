"""One row through its chosen experts on streams of weights, interpreted: run by test_interpreted.py."""

from dataclasses import replace

import pytest
import torch

from gradus.kernels.experts import streamed
from gradus.kernels.experts.routing import Routed
from gradus.kernels.linear.epilogue import Norm
from gradus.kernels.linear.launches import StreamedLaunch
from gradus.models.config import Experts
from gradus.models.experts import Mixture
from gradus.models.layers import Linear, RMSNorm
from gradus.models.shapes import SHAPES
from tests.kernels.interpreted_gluon import interpret

# Slices that end within an expert and across two; one group and several; one warp, and warps that share rows, columns.
LAUNCHES = [
    ((4, 128, 1, 2, 0, 4), (4, 64, 1, 1, 3, 2)),
    ((8, 64, 2, 1, 6, 3), (8, 128, 2, 1, 100, 1)),
    ((16, 128, 2, 2, 14, 2), (16, 128, 2, 2, 6, 1)),
]
ROUTERS = {
    "softmax": {},
    "of all": {"normalized": False},
    "sigmoid": {"sigmoid": True, "scale": 2.5},
    "factors": {"scaled": True},
    "biases": {"biased": True},
}


def mixture(experts: Experts, hidden: int) -> Mixture:
    config = replace(SHAPES["tiny-qwen3-moe"], experts=(experts,) * 4, hidden_size=hidden, sizes=())
    made = Mixture(config, 0, Linear, torch.float16, "cpu")
    for name, value in made.named_parameters():
        value.data.normal_(0, 1 if name.endswith("factors") else value.shape[-1] ** -0.5)
    return made


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize(("up", "down"), LAUNCHES)
def test_a_row_through_its_experts(router, up, down, monkeypatch):
    interpret(streamed, monkeypatch)
    experts = Experts(6, 3, 128, **ROUTERS[router])
    made, norm = mixture(experts, 72), RMSNorm(72, 1e-5, torch.float16, "cpu")
    norm.weight.data.normal_()
    x = torch.randn(1, 72).half()
    up, down = StreamedLaunch(*up), StreamedLaunch(*down)
    logits = made.router.product(norm(x))
    routed = Routed(logits, experts, made.router.correction, made.router.factors)
    assert streamed.streams(routed, 72, True, down)
    expected = made.onto(x.clone(), norm)
    features = streamed.streamed_up(
        x, made.up.weight, routed, made.activation, up, made.up.bias, Norm(norm.weight, None, norm.eps)
    )
    stream = torch.cat((x, torch.randn(1, 72).half()))
    behind = stream[1].clone()
    out = streamed.streamed_down(features, made.down.weight, routed, down, made.down.bias, stream[:1])
    assert out.data_ptr() == stream.data_ptr() and torch.equal(stream[1], behind)
    torch.testing.assert_close(out.float(), expected.float(), rtol=2e-2, atol=2e-2)
    assert streamed.async_copy.copied == experts.chosen * 3 * experts.width * 72, "each weight once"
    alone = streamed.streamed_down(features, made.down.weight, routed, down, made.down.bias)
    torch.testing.assert_close(alone.float() + x.float(), expected.float(), rtol=2e-2, atol=2e-2)
