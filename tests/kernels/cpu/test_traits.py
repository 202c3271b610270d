"""Each trait of a layer alone, and all together: a step by the compiled kernels is the decoder's torch forward."""

from dataclasses import replace
from functools import partial
from weakref import ref

import pytest
import torch

from gradus.kernels.cpu import model as kernel_model
from gradus.kernels.cpu.activations import MOST_ROWS
from gradus.kernels.cpu.attention.block import MOST_TOGETHER
from gradus.kernels.cpu.matrix import Unsupported
from gradus.kernels.cpu.vectors import BY_PAIRS
from gradus.models.config import LayerSizes
from gradus.models.layers import Linear, RMSNorm
from gradus.models.precision import NarrowLinear
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear
from tests.kernels.cpu.decoder import ALL, ROPE, TRAITS, Decoder, PlainPages, decoder
from tests.kernels.cpu.steps import Step, close, dense, poison, same

MIXED = [5, 31, 0, 16, 63, 1, 32, 200]
EVERY = TRAITS | {"all": ALL}


def both(traits, step_of, *, linear=None, dtype=torch.float32, **more):
    """A step's logits, compiled and in torch. step_of: makes the step for a model."""
    model = decoder(traits, **({} if linear is None else {"linear": linear}), dtype=dtype, **more)
    step, pages = step_of(model), partial(PlainPages, model)
    return step.compiled(pages().decode_model(model)), step.in_torch(model, pages())


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("trait", EVERY)
def test_decodes(trait, rows):
    close(*both(EVERY[trait], lambda model: Step(model, MIXED[:rows])))


@pytest.mark.parametrize("trait", EVERY)
def test_prompts_and_decodes_together(trait):
    """Rows that attend as blocks, and rows of other sequences that attend alone."""
    close(*both(EVERY[trait], lambda model: Step(model, [3, 0, 60, 17], [12, 1, MOST_TOGETHER + 9, 3])))


@pytest.mark.parametrize("trait", TRAITS)
def test_a_trait_changes_what_a_model_computes(trait):
    """Else the tests above would pass without it. Weights are the same wherever their shapes are."""
    plain, changed = (decoder(traits) for traits in ({}, TRAITS[trait]))
    plain.embedding.weight.copy_(changed.embedding.weight[:, : plain.config.hidden_size])
    step = Step(plain, MIXED)
    without, found = (step.in_torch(model, PlainPages(model)) for model in (plain, changed))
    assert (without - found).abs().max() > 1e-2 * without.abs().max()


# -- kinds of matrices -------------------------------------------------------------------------------------------------


KINDS = {
    "bfloat16": (partial(NarrowLinear, widen_from=1 << 30), 1e-4),
    "int4": (partial(Int4Linear, group=32), 1e-3 if BY_PAIRS else 1e-4),  # AVX2 rounds activations to int16
    "int8": (Int8Linear, 3e-2),  # an activation may round to the other neighbor
    "q8_0": (partial(GGUFLinear, format="q8_0"), 1e-4),
    "q4_0": (partial(GGUFLinear, format="q4_0"), 2e-4),
    "mxfp4": (partial(GGUFLinear, format="mxfp4"), 2e-4),
}


def exact(model):
    """The model with its matrices in float32, unless it rounds activations: then itself."""
    if any(isinstance(part, Int8Linear) for part in model.modules()):
        return model
    plain = Decoder(model.config)
    for (_, mine), (_, theirs) in zip(plain.named_modules(), model.named_modules(), strict=True):
        for name, value in mine.named_parameters(recurse=False):
            matrix = isinstance(mine, Linear) and name == "weight"
            value.copy_(dense(theirs) if matrix else getattr(theirs, name))
    return plain


@pytest.mark.parametrize("counts", [[1], [1] * 8, [12, 1, 40]], ids=["one", "eight", "blocks"])
@pytest.mark.parametrize("kind", KINDS)
def test_matrices_of_every_kind(kind, counts, monkeypatch):
    """All roles, those of the embeddings per layer included, in chunks of 16 columns."""
    monkeypatch.setattr(kernel_model, "CHUNK_BYTES", 1)
    linear, tolerance = KINDS[kind]
    model = decoder(ALL, linear)
    step = Step(model, MIXED[: len(counts)], counts)
    found = step.compiled(PlainPages(model).decode_model(model))
    close(found, step.in_torch(exact(model), PlainPages(model)), tolerance)


@pytest.mark.parametrize("format", ["q4_k", "q6_k"])
def test_matrices_whose_blocks_are_long(format):
    sizes = LayerSizes(2, 64, 256), LayerSizes(1, 128, 512)
    mixtures = tuple(each and replace(each, width=256 + 256 * (each.chosen == 3)) for each in ALL["experts"])
    more = {"hidden_size": 256, "per_layer_width": 256, "sizes": 2 * sizes, "experts": mixtures}
    model = decoder(ALL, partial(GGUFLinear, format=format), **more)
    step = Step(model, MIXED)
    found = step.compiled(PlainPages(model).decode_model(model))
    close(found, step.in_torch(exact(model), PlainPages(model)))


# -- heads -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("first", "second"), [((4, 256), (1, 512)), ((2, 96), (4, 80)), ((2, 128), (1, 64)), ((4, 24), (2, 20))]
)
def test_layers_whose_heads_differ(first, second, dtype):
    """The wide ones before the narrow ones, and after; whole squares, and heads of 20, which attend row by row."""
    sizes = tuple(LayerSizes(*each, 160) for each in (first, second, second, first))
    model = decoder(ALL | {"kv_sources": (), "ropes": 4 * (ROPE,)}, sizes=sizes)
    step, decode = Step(model, [20, 5, 60], [12, 1, 1]), PlainPages(model, dtype=dtype).decode_model(model)
    expected = step.in_torch(model, PlainPages(model, dtype=dtype))
    # the last bit of a number may decide to which of two neighbors it is rounded
    close(step.compiled(decode), expected, 1e-4 if dtype == torch.float32 else 2e-3)
    assert (decode.step.spans["rows"][0, 0] == 12) == (second[1] != 20)


@pytest.mark.parametrize("counts", [[1] * 4, [9, 1, 30, 2]])
def test_it_stores_the_keys_and_values_of_layers_that_have_their_own(counts):
    model = decoder(ALL)
    step = Step(model, MIXED[:4], counts)
    mine, theirs, before = (PlainPages(model) for _ in range(3))
    step.compiled(mine.decode_model(model))
    step.in_torch(model, theirs)
    assert list(mine.kept) == [0, 1]
    for layer, kept in mine.kept.items():
        for found, expected, old in zip(kept, theirs.kept[layer], before.kept[layer], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            assert torch.equal(found == old, expected == old) and not torch.equal(found, old)


@pytest.mark.parametrize("trait", EVERY)
def test_nothing_of_an_earlier_step_is_read(trait):
    """Neither of its buffers, nor of a layer with wider ones."""
    model = decoder(EVERY[trait])
    step = Step(model, [37, 5], [21, 1])
    expected = step.compiled(PlainPages(model).decode_model(model))
    decode = PlainPages(model).decode_model(model)
    poison(decode)
    same(step.compiled(decode), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_stays_alone_and_can_be_seen(bad):
    model = decoder(ALL)
    step = Step(model, MIXED[:4])
    expected = step.compiled(PlainPages(model).decode_model(model))
    pages = PlainPages(model)
    for layer, (_, values) in pages.kept.items():
        values[pages.rows(layer, step.slots[1], 19, 20), 0, 3] = bad  # of 31 positions
    found = step.compiled(pages.decode_model(model))
    assert not found[1].isfinite().any()
    assert torch.equal(found[[0, 2, 3]], expected[[0, 2, 3]])


def test_queries_grow_beyond_the_positions_that_earlier_steps_reached():
    model = decoder(TRAITS["queries that grow"], context_length=4096)
    decode, theirs = PlainPages(model).decode_model(model), PlainPages(model)
    for context in (3, 1500, 4000):
        step = Step(model, [context])
        close(step.compiled(decode), step.in_torch(model, theirs))


# -- around a step -----------------------------------------------------------------------------------------------------


@torch.inference_mode()
def test_hidden_states_are_the_stream_without_the_layers_inputs():
    model = decoder(ALL)
    step, pages = Step(model, MIXED), PlainPages(model)
    decode = pages.decode_model(model)
    logits = step.compiled(decode)
    hidden = decode.hidden()
    assert hidden.shape == (len(MIXED), model.config.hidden_size)
    close(logits, model.logits(hidden))


@torch.inference_mode()
def test_greedy_tokens_are_the_logits():
    model = decoder(ALL)
    step = Step(model, MIXED)
    decode = PlainPages(model).decode_model(model)
    logits = step.compiled(decode)
    assert decode.run(*step.columns, greedy=True).tolist() == logits.argmax(-1).tolist()


def test_the_embeddings_own_product_runs_in_the_kernels_and_its_model_stays_as_it_is(monkeypatch):
    """Two kernels may share a model, and neither outlives its owner for it."""
    model = decoder(ALL, KINDS["int4"][0])
    product, step = model.inputs["product"], Step(model, MIXED)
    decode = PlainPages(model).decode_model(model)
    other = PlainPages(model).decode_model(model)
    monkeypatch.setattr(product, "forward", lambda x: pytest.fail("torch multiplies"))
    same(step.compiled(decode), step.compiled(other))
    assert model.inputs["product"] is product
    gone = ref(decode)
    del decode
    assert gone() is None


def test_as_many_rows_as_a_step_takes():
    close(*both(ALL, lambda model: Step(model, [40], [MOST_ROWS])))


def test_norms_of_queries_and_keys_must_have_one_eps():
    model = decoder(TRAITS["norms of heads"])
    model.layers[2].heads.k_norm = RMSNorm(24, 1e-3, torch.float32, "cpu")
    with pytest.raises(Unsupported, match="eps"):
        PlainPages(model).decode_model(model)
