"""What `fused` does to a model before any kernel runs: which twin a part has, and which launches start early."""

import re

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.errors import ConfigError
from gradus.kernels.core.counters import COUNTERS, Counters
from gradus.kernels.core.overlap import early_launches, starts_early
from gradus.kernels.core.view import Twin, twin_of
from gradus.kernels.fuse import model as fuse
from gradus.kernels.fuse import quantized as fuse_quantized
from gradus.kernels.fuse.model import FusedHead, FusedLinear, FusedRMSNorm, fused, widened
from gradus.kernels.linear.launches import StreamedLaunch
from gradus.kernels.quantized.tile import TileLaunch
from gradus.models import Linear, MatrixId, Model, create_model, randomize
from gradus.models.experts import Mixture, Router
from gradus.models.families import llama
from gradus.models.heads import Heads
from gradus.models.layers import Gated, RMSNorm
from gradus.models.shapes import SHAPES
from gradus.quantization.schemes import SCHEMES as QUANTIZED


def made(shape: str = "tiny-gpt2", dtype: torch.dtype = torch.float32, **options) -> Model:
    model = create_model(SHAPES[shape], dtype=dtype, device="cpu", **options)
    randomize(model, seed=0)
    return model


def test_a_head_with_an_odd_number_of_rows_gets_room_behind_it_and_stays_what_it_was():
    head = made().head.weight
    head.data = head.data[:-3].clone()  # an odd number, as GPT-2's 50257
    before = head.detach().clone()
    wide = widened(head)
    assert len(wide) % 8 == 0 and len(wide) - 8 < len(head) < len(wide)
    assert torch.equal(head, before) and torch.equal(wide[: len(head)], before) and not wide[len(head) :].any()
    assert widened(head).data_ptr() == wide.data_ptr() == head.data_ptr()  # moved once


def test_the_embedding_that_shares_the_heads_rows_goes_on_sharing_them():
    model = made()
    assert model.embedding.weight is model.head.weight
    twin = fused(model)
    assert type(twin.head) is FusedHead
    assert twin.embedding.weight.data_ptr() == twin.head.weight.data_ptr() == twin.head.wide.data_ptr()
    assert twin.head.weight.shape == (model.config.vocab_size, model.config.hidden_size)


# -- which twin ------------------------------------------------------------------------------------------------------


class Sharded(Linear):
    """Takes some of the rows, and multiplies as ever."""

    def assign(self, name: str, start: int, value: Tensor) -> None:
        super().assign(name, start, value)


class Scaled(Linear):
    """Multiplies in its own way, without a kernel for it."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * F.linear(x, self.weight, self.bias)


class Packed(Scaled):
    """The same, with a kernel."""


@twin_of(Packed)
class FusedPacked(Twin, Packed):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * F.linear(x, self.weight, self.bias)


@pytest.mark.parametrize(
    "kind, twin", [(Linear, FusedLinear), (Sharded, FusedLinear), (Scaled, Scaled), (Packed, FusedPacked)]
)
def test_a_matrix_has_the_twin_of_its_arithmetic(kind, twin):
    """A subclass with a forward of its own keeps it, or names its twin; the norm before it has its own in any case."""
    view = fused(made("tiny-llama", linear=kind))
    assert type(view.layers[0].qkv) is twin
    assert type(view.layers[0].attention_norm) is FusedRMSNorm


def test_a_subclass_that_computes_in_another_way_never_gets_the_plain_twin():
    class Wide(RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.double()).to(x.dtype)

    model = made("tiny-llama")
    model.norm = Wide(model.config.hidden_size, 1e-5, torch.float32, "cpu")
    assert type(fused(model).norm) is Wide


class AddsTwice(Linear):
    """Stands for a matrix that adds up parts of other devices: the seam that `Linear` documents."""

    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        return stream + 2 * self.forward(x)


class NormalizesLater(Linear):
    def after(self, norm, x: Tensor, then=None) -> Tensor:
        return norm.forward(self.forward(x))


class NormAddsTwice(RMSNorm):
    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        return stream + 2 * self(x)


@pytest.mark.parametrize("kind", [AddsTwice, NormalizesLater])
def test_a_matrix_keeps_whatever_it_computes_in_a_way_of_its_own(kind):
    assert type(fused(made("tiny-llama", linear=kind)).layers[0].down) is kind


def test_a_norm_keeps_whatever_it_computes_in_a_way_of_its_own():
    assert type(fuse.view(NormAddsTwice(8, 1e-5, torch.float32, "cpu"))) is NormAddsTwice


class Doubling(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Squared(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 2


@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
@pytest.mark.parametrize("norm, then", [(Doubling, Gated), (RMSNorm, Squared)])
def test_a_product_leaves_out_no_arithmetic_around_it_that_its_kernel_does_not_know(norm, then, scheme, monkeypatch):
    kind = Linear if scheme is None else QUANTIZED[scheme]
    part = kind(MatrixId("gate_up", 0), 128, (128, 128), False)
    part.assign("weight", 0, torch.randn(256, 128))
    before, behind = norm(128, 1e-5, torch.float32, "cpu"), then("silu")
    before.weight.data.fill_(1)
    monkeypatch.setattr(fuse, "choose_fused", lambda *_: pytest.fail("a kernel was chosen"))
    monkeypatch.setattr(fuse.FusedRMSNorm, "forward", RMSNorm.forward)
    monkeypatch.setattr(fuse.FusedGated, "forward", Gated.forward)
    twin, x = fuse.view(part), torch.randn(2, 128)
    monkeypatch.setattr(type(twin), "forward", kind.forward)
    torch.testing.assert_close(twin.after(fuse.view(before), x, fuse.view(behind)), part.after(before, x, behind))


class UnrotatedHeads(Heads):
    def forward(self, qkv, rotation, attention) -> Tensor:
        return super().forward(qkv, None, attention)


@pytest.mark.parametrize("part", ["heads", "q_norm"])
def test_heads_that_the_kernel_does_not_know_are_refused_in_one_line(part):
    model = made("tiny-qwen3")
    heads = model.layers[0].heads
    if part == "heads":
        heads.__class__ = UnrotatedHeads
    else:
        heads.q_norm.__class__ = Doubling
    with pytest.raises(ConfigError, match="--switch-off kernels") as refused:
        fused(model)
    assert "\n" not in str(refused.value)
    assert type(model.layers[0].heads.k_norm) is RMSNorm, "the model stays what it was"


class EvenMixture(Mixture):
    """Chooses as ever, and gives each expert the same weight."""

    def one_by_one(self, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        return super().one_by_one(rows, chosen, torch.full_like(weights, 1 / weights.shape[1]))


class OtherRouter(Router):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        chosen, weights = super().forward(x)
        return chosen.flip(1), weights.flip(1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("", EvenMixture), ("router", OtherRouter), ("norm", Doubling), ("router.norm", Doubling)],
)
def test_experts_that_no_kernel_computes_are_refused_in_one_line(name, kind):
    """Their reference asks the host how many rows each expert has: a graph would hold the numbers of its capture."""
    model = made("tiny-gemma4-moe")
    layer = next(number for number, each in enumerate(model.config.experts) if each)
    model.layers[layer].experts.get_submodule(name).__class__ = kind
    line = f"layer {layer}: the kernels do not know what {kind.__name__} computes: leave them out (--switch-off "
    with pytest.raises(ConfigError, match="^" + re.escape(line)):
        fused(model)


# -- which launches --------------------------------------------------------------------------------------------------


def test_launches_start_early_inside_the_context_alone():
    assert not starts_early()
    with early_launches():
        assert starts_early()
        with early_launches(False):
            assert not starts_early()
        assert starts_early()
    with pytest.raises(ZeroDivisionError), early_launches():
        1 / 0  # noqa: B018
    assert not starts_early()


def test_the_head_never_starts_early(monkeypatch):
    seen = {}

    def product(x: Tensor, weight: Tensor, *rest: Tensor | None, counters: Counters) -> Tensor:
        seen[len(weight)] = starts_early()
        return F.linear(x, weight)

    monkeypatch.setattr(fuse, "linear", product)
    model = made("tiny-llama")
    view, x = fused(model), torch.ones(1, model.config.hidden_size)
    with early_launches():
        view.layers[0].qkv(x)
        view.head(x)
    assert seen == {sum(model.layers[0].qkv.out_features): True, len(view.head.wide): False}


def test_behind_a_layer_norm_few_rows_take_the_launch_that_was_measured_there(monkeypatch):
    """Streamed rows have no LayerNorm, so it comes first, in a launch of its own."""
    launch, taken = StreamedLaunch(16, 512, 1, 8, 100, 1), []

    def product(x: Tensor, weight: Tensor, launch: StreamedLaunch, **fusions) -> Tensor:
        taken.append((launch, fusions["norm"], fusions["activation"]))
        return F.linear(x, weight)

    monkeypatch.setattr(fuse, "choose_fused", lambda *_: launch)
    monkeypatch.setattr(fuse, "fused_linear", product)
    monkeypatch.setattr(fuse, "add_layer_norm", lambda x, delta, weight, bias, eps: x)
    layer = fused(made("tiny-gpt2", dtype=torch.bfloat16)).layers[0]
    x = torch.ones(4, layer.qkv.in_features, dtype=torch.bfloat16)
    layer.qkv.after(layer.attention_norm, x)
    layer.up.after(layer.mlp_norm, x, layer.activation)
    assert taken == [(launch, None, None), (launch, None, "gelu_tanh")]


# -- sums that programs share ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [None, "int4", "int8"])
def test_each_view_counts_for_itself(scheme, monkeypatch):
    """Two engines share a model's weights, and may be stepped on two streams at once."""
    linear = Linear if scheme is None else QUANTIZED[scheme]
    model, given = made("tiny-llama", linear=linear), []
    views, x = [fused(model), fused(model)], torch.ones(2, model.config.hidden_size)

    def product(x: Tensor, *rest, counters: Counters, **more) -> Tensor:
        given.append(counters)
        return x

    for module, name in ((fuse, "linear"), (fuse_quantized, "int4_product"), (fuse_quantized, "eight_bit_product")):
        monkeypatch.setattr(module, name, product)
    monkeypatch.setattr(fuse_quantized, "choose_tile", lambda *_, **more: TileLaunch(16, 128, 16, 2, 2, 4))
    monkeypatch.setattr(fuse_quantized, "quantize", lambda *_: x)
    for view in views:
        view.layers[0].qkv(x)
        view.layers[1].output.onto(x, x)
    assert given == [views[0].layers[0].qkv.counters] * 2 + [views[1].layers[0].qkv.counters] * 2
    assert given[0] is not given[2]


def test_counters_are_made_once_and_there_are_no_more_than_there_are():
    counters, cpu = Counters(), torch.device("cpu")
    zeros = counters.of(cpu, 3)
    assert counters.of(cpu, COUNTERS) is zeros and len(zeros) == COUNTERS and not zeros.any()
    with pytest.raises(ValueError, match=f"there are {COUNTERS} counters"):
        counters.of(cpu, COUNTERS + 1)


def test_a_linear_by_itself_is_viewed_by_its_place():
    kinds = [type(fuse.view(Linear(MatrixId(role, None), 8, (8,), False))) for role in ("down", "head")]
    assert kinds == [FusedLinear, FusedHead]


class NormalizedFeatures(llama.Block):
    """Normalizes what the gate lets through before it is multiplied."""

    def forward(self, x, rotation, attention):
        qkv = self.qkv.after(self.attention_norm, x)
        x = self.output.onto(x, self.heads(qkv, rotation, attention))
        features = self.gate_up.after(self.mlp_norm, x, self.gate)
        return self.down.onto(x, F.layer_norm(features, features.shape[-1:]))


def test_a_gate_moves_into_the_next_product_only_in_layers_that_describe_themselves():
    """Else it would move past whatever the layer computes between the two products."""
    model = made("tiny-llama", linear=QUANTIZED["int8"])
    assert [layer.gate_up.hands_over for layer in fused(model).layers] == [True] * 4
    model.layers[2].__class__ = NormalizedFeatures
    assert [layer.gate_up.hands_over for layer in fused(model).layers] == [False] * 4
