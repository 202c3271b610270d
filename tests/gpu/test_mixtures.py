"""Mixtures of experts on a CUDA GPU: compiled, against the torch reference, and in CUDA graphs that start early."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from gradus.models.config import Experts
from gradus.models.experts import Mixture
from gradus.models.layers import Linear, RMSNorm
from gradus.models.shapes import SHAPES

pytestmark = pytest.mark.gpu

ROUNDING = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}  # of ‖out - reference‖ / ‖reference‖
KINDS: dict[str, tuple[int, Experts, dict[str, Any]]] = {
    "qwen3": (2048, Experts(128, 8, 768), {}),
    "glm": (1024, Experts(128, 8, 352, sigmoid=True, corrected=True, scale=2.5), {}),
    "deepseek": (512, Experts(64, 6, 128, sigmoid=True, corrected=True, groups=8, chosen_groups=4), {}),
    "gpt-oss": (720, Experts(32, 4, 360, biased=True), {"activation": "clamped_silu"}),
    "gemma4": (704, Experts(60, 8, 176, scaled=True), {"experts_apart": True, "activation": "gelu_tanh"}),
}


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then gives NaN
    yield
    torch.use_deterministic_algorithms(False)


def mixture(kind: str, dtype: torch.dtype) -> tuple[Mixture, RMSNorm]:
    """A mixture and its layer's norm. Expert e's logit is value e of the normalized row, so that both sides of a
    comparison choose the same."""
    hidden, experts, options = KINDS[kind]
    shape = SHAPES["tiny-qwen3-moe"]
    config = replace(shape, hidden_size=hidden, experts=(experts,) * shape.num_layers, **options)
    made, norm = Mixture(config, 0, Linear, dtype, "cuda"), RMSNorm(hidden, 1e-5, dtype, "cuda")
    for weights in made.parameters():
        weights.data.normal_(std=0.05)
    for each in (norm, made.norm, made.out_norm, made.router.norm):
        if each is not None:
            each.weight.data.fill_(1)
    made.router.product.weight.data.copy_(torch.eye(experts.count, hidden))
    if made.router.product.bias is not None:
        made.router.product.bias.data.zero_()
    if made.router.correction is not None:
        made.router.correction.data.zero_()[::7] = 1
    if made.router.factors is not None:
        made.router.factors.data.uniform_(0.5, 2)
    return made, norm


def rows_of(count: int, kind: str, dtype: torch.dtype) -> Tensor:
    """Rows whose first values differ by more than they are rounded by."""
    hidden, experts, _ = KINDS[kind]
    x = torch.randn(count, hidden)
    for row in x:
        row[: experts.count] = torch.linspace(-3.5, 3.5, experts.count)[torch.randperm(experts.count)]
    return x.to("cuda", dtype)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_mixture_is_the_reference(kind, dtype):
    from gradus.kernels.core.view import view
    from gradus.kernels.fuse import model as _twins
    from gradus.kernels.fuse.experts import FusedMixture

    assert _twins
    part, norm = mixture(kind, dtype)
    seen, seen_norm = view(part), view(norm)
    assert isinstance(seen, FusedMixture)
    for count in (1, 2, 3, 8, 17, 64, 100):
        x = rows_of(count, kind, dtype)
        out, reference = seen.forward(x, seen_norm), part.forward(x, norm)
        assert out.dtype == reference.dtype
        error = (out.double() - reference.double()).norm() / reference.double().norm()
        assert error < ROUNDING[dtype], f"{count} rows are off by {error:.1e}"
        onto = seen.onto(x.clone(), seen_norm)
        assert (onto.double() - x.double() - reference.double()).norm() < 0.05 * x.double().norm()


@pytest.mark.quick
@pytest.mark.parametrize("count", [1, 2, 8, 64])
@torch.inference_mode()
def test_layers_that_start_early_in_a_graph_give_what_they_give_one_by_one(count):
    """A launch that read what its predecessors have not written yet would differ, and not always in the same place."""
    from gradus.kernels.core.overlap import early_launches
    from gradus.kernels.core.view import view
    from gradus.kernels.fuse import model as _twins

    assert _twins
    torch.use_deterministic_algorithms(False)  # launches that fill memory would come between these
    parts = [mixture("qwen3", torch.bfloat16) for _ in range(4)]
    layers = [(cast(Mixture, view(part)), view(norm)) for part, norm in parts]
    x = rows_of(count, "qwen3", torch.bfloat16)

    def run(stream: Tensor) -> Tensor:
        for layer, norm in layers:
            stream = layer.onto(stream, norm)
        return stream

    static = x.clone()
    with early_launches():
        run(x.clone())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(static)
    for _ in range(20):
        fresh = rows_of(count, "qwen3", torch.bfloat16)
        expected = run(fresh.clone())
        static.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(static, expected)
