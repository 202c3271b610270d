"""Run by test_experts.py in a process of its own, where Triton interprets: mixtures on kernels equal the reference.

Tiny on purpose, and of odd sizes. New memory is poisoned with NaN.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gradus.kernels.core.view import view
from gradus.kernels.experts import few
from gradus.kernels.experts.combine import combine
from gradus.kernels.experts.launches import MOST_FEW, FewLaunch
from gradus.kernels.experts.routing import Routed, route
from gradus.kernels.fuse import experts as fuse
from gradus.kernels.fuse import model as _twins
from gradus.models.config import Experts
from gradus.models.experts import Mixture, Router
from gradus.models.layers import Clamped, Linear, RMSNorm
from gradus.models.shapes import SHAPES
from gradus.parallel.exchange import Exchange
from gradus.parallel.fused import FusedSummedMixture
from gradus.parallel.layers import SummedMixture

assert _twins
HIDDEN = 40
PLAIN = Experts(6, 2, 24)
ROUTERS = {
    "softmax": PLAIN,
    "not normalized": Experts(8, 3, 24, normalized=False, scale=2.5),
    "all of an odd number": Experts(3, 3, 24, biased=True),
    "sigmoid": Experts(12, 4, 24, sigmoid=True, corrected=True, scaled=True),
    "groups": Experts(12, 4, 24, sigmoid=True, corrected=True, groups=4, chosen_groups=2),
    "groups of a softmax": Experts(6, 2, 24, groups=2, chosen_groups=1),
    "more than are compared at once": Experts(130, 8, 24, corrected=True),
}


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("error")  # torch.empty then gives NaN
    yield
    torch.set_deterministic_debug_mode("default")


def mixture(experts: Experts, dtype: torch.dtype = torch.float32, **options) -> tuple[Mixture, RMSNorm]:
    """A mixture with weights, and its layer's norm."""
    shape = SHAPES["tiny-qwen3-moe"]
    config = replace(shape, hidden_size=HIDDEN, experts=(experts,) * shape.num_layers, **options)
    made, norm = Mixture(config, 0, Linear, dtype, "cpu"), RMSNorm(HIDDEN, 1e-5, dtype, "cpu")
    for part in (made, norm):
        for weights in part.parameters():
            weights.data.normal_(std=0.3)
    return made, norm


def assert_close(out: Tensor, reference: Tensor) -> None:
    assert out.dtype == reference.dtype and out.shape == reference.shape
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    assert error < (1e-6 if out.dtype == torch.float32 else 3e-3)  # NaN is not below anything


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("rows", [1, 3])
@torch.inference_mode()
def test_a_mixture_on_kernels_is_the_reference(name, rows):
    apart = name == "sigmoid"
    part, norm = mixture(ROUTERS[name], experts_apart=apart)
    seen, seen_norm, x = view(part), view(norm), torch.randn(rows, HIDDEN)
    assert isinstance(seen, fuse.FusedMixture)
    assert_close(seen.forward(x, seen_norm), part.forward(x, norm))
    assert_close(seen.onto(x.clone(), seen_norm), part.onto(x.clone(), norm))


@pytest.mark.parametrize("activation", ["clamped_silu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [2, 5])
@torch.inference_mode()
def test_gates_biases_and_half_precision(activation, rows):
    part, norm = mixture(replace(PLAIN, biased=True), torch.float16, activation=activation)
    x = 2 * torch.randn(rows, HIDDEN, dtype=torch.float16)
    assert_close(view(part).forward(x, view(norm)), part.forward(x, norm))


@torch.inference_mode()
def test_more_rows_than_few_are_sorted_by_expert():
    part, norm = mixture(Experts(4, 2, 16))
    x = torch.randn(MOST_FEW + 3, HIDDEN)
    assert_close(view(part).forward(x, view(norm)), part.forward(x, norm))


@torch.inference_mode()
def test_experts_without_a_gate():
    part, norm = mixture(PLAIN, gated=False)
    for rows in (1, 3):
        x = torch.randn(rows, HIDDEN)
        assert_close(view(part).forward(x, view(norm)), part.forward(x, norm))


@torch.inference_mode()
def test_the_lower_of_equal_experts_comes_first_and_nan_last():
    logits = torch.tensor([[1.0, 3.0, 3.0, 1.0, 3.0], [float("nan"), 2.0, float("nan"), 2.0, 0.0]])
    chosen, weights = route(Routed(logits, Experts(5, 3, 8)))
    assert chosen.tolist() == [[1, 2, 4], [1, 3, 4]]
    assert torch.isfinite(weights).all()
    assert torch.allclose(weights.sum(1), torch.ones(2))


@torch.inference_mode()
def test_a_choice_is_the_routers():
    for experts in ROUTERS.values():
        router: Router = mixture(experts)[0].router
        x = torch.randn(7, HIDDEN)
        chosen, weights = route(Routed(router.product(x), experts, router.correction, router.factors))
        expected = router(x)
        assert torch.equal(chosen.long(), expected[0])
        torch.testing.assert_close(weights, expected[1])


@torch.inference_mode()
def test_rows_that_share_an_expert_and_rows_that_do_not():
    """The programs of the first pair that chose an expert serve all its pairs."""
    part, _ = mixture(Experts(5, 2, 24), activation="clamped_silu")
    x, chosen = torch.randn(3, HIDDEN), torch.tensor([[4, 1], [1, 4], [3, 1]], dtype=torch.int32)
    for rows in (1, 3):
        up = few.up_few(x[:rows], part.up.weight, chosen[:rows], 5, Clamped(), FewLaunch(16, 16, 2, 4))
        out = few.down_few(up, part.down.weight, chosen[:rows], 5, FewLaunch(32, 16, 2, 4))
        pairs_of = [part.expert(int(chosen[row, place]), x[row : row + 1]) for row in range(rows) for place in (0, 1)]
        assert_close(out, torch.cat(pairs_of))


@torch.inference_mode()
def test_a_rows_sum_does_not_depend_on_the_others():
    pairs_of, weights, stream = torch.randn(10, HIDDEN), torch.rand(5, 2), torch.randn(5, HIDDEN)
    out = combine(pairs_of, weights, stream.clone())
    assert_close(out, stream + (pairs_of.view(5, 2, HIDDEN) * weights[:, :, None]).sum(1))
    assert torch.equal(combine(pairs_of[4:6], weights[2:3], stream[2:3].clone()), out[2:3])


@pytest.mark.parametrize("rows", [1, 5, MOST_FEW + 3])
@torch.inference_mode()
def test_what_ranks_compute_of_their_own_experts_is_together_the_whole(rows):
    """Pairs of other ranks' experts are not computed: what their memory holds, here NaN, adds nothing."""
    whole, norm = mixture(replace(PLAIN, biased=True))
    x, total = torch.randn(rows, HIDDEN), 0
    for rank in range(2):
        part, _ = mixture(replace(PLAIN, biased=True, first=3 * rank, held=3))
        part.router.load_state_dict(whole.router.state_dict())
        for own, all_of_them in ((part.up, whole.up), (part.down, whole.down)):
            for name, value in own.named_parameters():
                theirs = getattr(all_of_them, name).unflatten(0, (len(own.out_features), 2, -1))
                value.copy_(theirs[:, rank].reshape(value.shape))
        seen = view(SummedMixture(part, Alone()))
        assert type(seen) is FusedSummedMixture
        seen.exchange = Exchange(Alone(), None)
        total = total + seen.forward(x, view(norm))
        assert_close(seen.onto(x.clone(), view(norm)), x + part.forward(x, norm))
    assert_close(total, whole.forward(x, norm))


class Alone:
    """A group of one rank, which has nothing to add."""

    def sum(self, x: Tensor) -> Tensor:
        return x
