"""Experts in the compiled kernels are torch's `Mixture`, however rows choose them, in decode steps and in prompts."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from gradus.kernels.cpu import model as kernel_model
from gradus.kernels.cpu.experts.prompt import PROMPT_ROWS
from gradus.kernels.cpu.matrix import Unsupported
from gradus.models.config import LayerSizes
from gradus.models.experts import Mixture
from gradus.models.layers import RMSNorm
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.int8 import Int8Linear
from tests.kernels.cpu.decoder import ALL, TRAITS, PlainPages, decoder, experts
from tests.kernels.cpu.steps import Step, close, generator, poison, same

SHARED = experts(alone=False, biased=True) | {"shared_gate": True}
MANY_EXPERTS = experts(count=40, chosen=5, width=80)


def routed(model, wanted: int) -> None:
    """Have every row choose the experts from `wanted` on: the router's bias decides."""
    for layer in model.layers:
        if layer.experts is not None:
            count = layer.experts.experts.count
            layer.experts.router.product.bias.copy_(-100.0 * (torch.arange(count) < wanted))


@pytest.mark.parametrize("counts", [[n] for n in (2, 7, 9, 16, 31, 32, 33, 64, 100, 127, 128)])
@pytest.mark.parametrize("traits", [SHARED, MANY_EXPERTS], ids=["few experts", "many experts"])
def test_every_number_of_rows(traits, counts):
    model = decoder(traits)
    step, pages = Step(model, [17], counts), partial(PlainPages, model)
    close(step.compiled(pages().decode_model(model)), step.in_torch(model, pages()))


@pytest.mark.parametrize("counts", [[1], [1, 5, 1, 2], [128]], ids=["one", "drafts", "many"])
@pytest.mark.parametrize("wanted", [0, 4])
def test_rows_that_all_choose_the_same_experts(wanted, counts, monkeypatch):
    """A few experts have all rows, in chunks of 16 columns, and the others none."""
    monkeypatch.setattr(kernel_model, "CHUNK_BYTES", 1)
    model = decoder(SHARED)
    routed(model, wanted)
    step, pages = Step(model, [5, 31, 0, 16][: len(counts)], counts), partial(PlainPages, model)
    decode = pages().decode_model(model)
    poison(decode)
    close(step.compiled(decode), step.in_torch(model, pages()))
    if wanted:
        sizes = decode.step.room.groups[: decode.step.room.division[0]]
        assert sorted(sizes[:, 0]) == [4, 5] and set(sizes[:, 2]) == {sum(counts)}


@pytest.mark.parametrize("threads", [1, 3, 7])
def test_any_number_of_threads(threads):
    model = decoder(ALL)
    step = Step(model, [5, 31, 0], [3, 1, 20])
    expected = step.compiled(PlainPages(model).decode_model(model, threads=2))
    same(step.compiled(PlainPages(model).decode_model(model, threads=threads)), expected)


def test_groups_put_those_with_the_most_rows_first():
    model = decoder(MANY_EXPERTS)
    decode = PlainPages(model).decode_model(model)
    Step(model, [3], [90]).compiled(decode)
    room = decode.step.room
    groups = room.groups[: room.division[0]]
    assert (groups[:-1, 2] >= groups[1:, 2]).all() and groups[:, 2].sum() == 90 * 5
    assert sorted(groups[:, 1]) == sorted({*groups[:, 1]})  # each has places of its own
    assert sorted(room.owners[: 90 * 5]) == [row for row in range(90) for _ in range(5)]


def test_norms_behind_experts_must_have_one_eps():
    model = decoder(TRAITS["experts apart"])
    model.layers[2].dense_out_norm = RMSNorm(model.config.hidden_size, 1e-3, torch.float32, "cpu")
    with pytest.raises(Unsupported, match="norms behind experts"):
        PlainPages(model).decode_model(model)


def test_a_mixture_of_another_class_has_no_kernel():
    class Other(Mixture):
        pass

    model = decoder(TRAITS["experts"])
    model.layers[0].experts.__class__ = Other
    with pytest.raises(Unsupported, match="Other"):
        PlainPages(model).decode_model(model)


# -- prompts -----------------------------------------------------------------------------------------------------------


KINDS = {
    "float32": (None, 1e-5),
    "int8": (Int8Linear, 2e-2),  # an activation may round to the other neighbor
    "q8_0": (partial(GGUFLinear, format="q8_0"), 1e-5),
    "mxfp4": (partial(GGUFLinear, format="mxfp4"), 1e-5),
}


def noise(rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=generator(rows))


@pytest.mark.parametrize("rows", [1, 8, 130, PROMPT_ROWS, 2 * PROMPT_ROWS + 1])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_the_models_own_forward_multiplies_in_the_kernels(kind, rows, monkeypatch):
    linear, tolerance = KINDS[kind]
    model = decoder(ALL, **({} if linear is None else {"linear": linear}))
    x, mixtures = noise(rows, model.config.hidden_size), [layer.experts for layer in model.layers]
    expected = [each and each(x, None) for each in mixtures]
    decode = PlainPages(model).decode_model(model)
    decode.lend_experts()
    monkeypatch.setattr(Mixture, "one_by_one", lambda *arguments: pytest.fail("torch multiplies"))
    for mixture, wanted in zip(mixtures, expected, strict=True):
        if mixture is not None:
            found = mixture(x, None)
            assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


@torch.inference_mode()
def test_activations_that_are_rounded_to_bytes():
    """As torch rounds them, in a prompt of many rows per expert, where products are of bytes."""
    mixtures = 4 * (replace(ALL["experts"][0], width=256, biased=False),)
    sizes = {"hidden_size": 256, "sizes": 4 * (LayerSizes(2, 64, 256),), "experts": mixtures}
    model = decoder({"experts_apart": True}, partial(GGUFLinear, format="q4_k"), **sizes)
    for part in model.modules():
        if isinstance(part, GGUFLinear):
            part.rounds = True
    x, mixture = noise(200, 256), model.layers[0].experts
    expected = mixture(x, None)
    decode = PlainPages(model).decode_model(model)
    decode.lend_experts()
    assert (mixture(x, None) - expected).abs().max() <= 1e-2 * expected.abs().max()


@torch.inference_mode()
def test_a_prompt_between_decodes_leaves_their_results_alone():
    model = decoder(ALL)
    step, x = Step(model, [5, 31, 0]), noise(300, model.config.hidden_size)
    decode = PlainPages(model).decode_model(model)
    expected = step.compiled(decode)
    decode.lend_experts()
    model.layers[0].experts(x, None)
    same(step.compiled(decode), expected)


@torch.inference_mode()
def test_kernels_that_are_gone_leave_the_experts_to_torch():
    model = decoder(TRAITS["experts"])
    first, second = (PlainPages(model).decode_model(model) for _ in range(2))
    mixture = model.layers[0].experts
    first.lend_experts()
    second.lend_experts()
    del first
    assert mixture.grouped is not None
    del second
    assert mixture.grouped is None and mixture(noise(3, model.config.hidden_size), None).isfinite().all()
