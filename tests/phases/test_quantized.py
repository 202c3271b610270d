"""p07's models: the tokens of their dequantized selves in p00, and the model that they were made of stays whole."""

from functools import partial

import pytest
import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams
from gradus.models import SHAPES, Linear, Model, create_model, randomize
from gradus.models.precision import NarrowLinear
from phases.p07_quantization.engine import quantized_engine
from phases.p07_quantization.linears import Int4Linear, Int8Linear, with_layers_of
from tests.pairwise import each_once
from tests.phases.conftest import FAMILIES, MIXED, limits_of, next_logits, of
from tests.phases.drive import nothing_is_left, parting, run

KINDS = [Int8Linear, Int4Linear]
PROMPTS = ([5], [9, 8, 7], [7 * i % 300 for i in range(23)], [4] * 6)


def wide_model(shape: str, linear=Linear) -> Model:
    """Weights that no grid holds exactly."""
    model = create_model(SHAPES[shape], linear=linear)
    randomize(model, seed=1, std=0.1)
    return model


def matrices(model: Model) -> list[Linear]:
    return [part for part in model.layers.modules() if isinstance(part, Linear)]


def reference_of(model: Model, kind: type[Linear]) -> Model:
    """Return the torch reference: the same model with the matrices that its integers encode, in float32."""
    reference = with_layers_of(Linear, model)
    for part in matrices(reference):
        rounded = kind(part.matrix_id, part.in_features, part.out_features, False)
        rounded.assign("weight", 0, part.weight)
        part.weight.copy_(rounded.dequantized())
    return reference


def options(shape: str, **settings) -> EngineOptions:
    return EngineOptions(limits_of(shape), max_sequences=3, **settings)


def asked(shape: str, **params) -> list[Request]:
    settings = SamplingParams(max_tokens=12, ignore_eos=True, **params)
    return [Request.create(f"r{i}", prompt, settings, limits_of(shape)) for i, prompt in enumerate(PROMPTS)]


def assert_same_tokens(engine: Engine, reference: Engine, shape: str, **params) -> None:
    found, wanted = run(engine, asked(shape, **params)), run(reference, asked(shape, **params))
    for request in asked(shape):
        tokens, right = (each[request.id, 0].tokens for each in (found, wanted))
        assert tokens == right, parting(request.prompt, tokens, right)


@of("p07")
@pytest.mark.parametrize(("shape", "kind"), [*each_once(FAMILIES, KINDS), *zip(MIXED, KINDS, strict=True)])
def test_greedy_tokens_are_those_of_the_dequantized_model_in_p00(phase, shape, kind):
    model = wide_model(shape)
    engine = quantized_engine(model, options(shape), kind)
    reference = phases.load("p00").build(reference_of(model, kind), options(shape))
    assert_same_tokens(engine, reference, shape)


@of("p07")
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_preemptions_and_shared_prefixes_change_no_token_of_a_quantized_model(phase, kind):
    shape, params = "tiny-llama", {"temperature": 1.0, "seed": 5}
    model = wide_model(shape)
    engine = quantized_engine(model, options(shape, page_size=4, cache_tokens=52, token_budget=7), kind)
    reference = phases.load("p00").build(reference_of(model, kind), options(shape))
    assert_same_tokens(engine, reference, shape, **params)
    assert engine.metrics().preemptions > 0
    nothing_is_left(engine)


@of("p07")
@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_model_has_other_logits_and_nearly_the_same(phase, kind):
    model = wide_model("tiny-llama")
    wanted, found = (next_logits(each, PROMPTS[2]) for each in (model, with_layers_of(kind, model)))
    off = float((found - wanted).norm() / wanted.norm())
    least, most = {Int8Linear: (0.001, 0.05), Int4Linear: (0.02, 0.6)}[kind]
    assert least < off < most


def test_the_model_that_it_is_made_of_stays_what_it_was_and_shares_what_is_not_in_a_layers_matrix():
    model = wide_model("tiny-llama")
    before = [part.weight.clone() for part in matrices(model)]
    made = with_layers_of(Int8Linear, model)
    assert all(type(part) is Linear for part in matrices(model))
    assert all(torch.equal(part.weight, weight) for part, weight in zip(matrices(model), before, strict=True))
    assert {type(part) for part in matrices(made)} == {Int8Linear} and type(made.head) is Linear
    assert made.head is model.head and made.embedding is model.embedding and made.norm is model.norm
    assert made.layers[0].mlp_norm.weight is model.layers[0].mlp_norm.weight
    assert made.layers[0].qkv is vars(made.layers[0])["qkv"], "where Python looks first there is the new one"


@pytest.mark.parametrize(("kind", "bits"), [(Int8Linear, 8 + 32 / 576), (Int4Linear, 4 + 32 / 64)])
def test_the_bits_of_a_weight_with_all_that_belongs_to_it(kind, bits):
    linear = kind(wide_model("tiny-llama").head.matrix_id, 576, (192, 64, 64), bias=False)
    stored = sum(value.nbytes for value in linear.parameters())
    assert 8 * stored / (320 * 576) == pytest.approx(bits)


@pytest.mark.parametrize("kind", KINDS)
def test_a_factory_of_a_model_can_make_them_and_weights_arrive_in_pieces(kind):
    """A checkpoint is loaded this way: queries, keys and values one after the other, each with its rows."""
    model = wide_model("tiny-llama")
    wanted = with_layers_of(kind, model).layers[2].qkv
    source = model.layers[2].qkv
    made = kind(source.matrix_id, source.in_features, source.out_features, source.has_bias)
    start = 0
    for rows in source.out_features:
        made.assign("weight", start, source.weight[start : start + rows])
        start += rows
    assert torch.equal(made.dequantized(), wanted.dequantized())


def test_groups_are_as_large_as_the_width_allows():
    matrix_id = wide_model("tiny-llama").head.matrix_id
    groups = {width: Int4Linear(matrix_id, width, (8,), False).group for width in (576, 64, 160, 96)}
    assert groups == {576: 64, 64: 64, 160: 32, 96: 32}


def test_biases_stay_as_they_are():
    linear = Int4Linear(wide_model("tiny-llama").head.matrix_id, 64, (3,), bias=True)
    linear.assign("weight", 0, torch.arange(192).view(3, 64) % 16 * 0.5)  # 16 steps of a half: codes have them exactly
    linear.assign("bias", 0, torch.tensor([1.0, 2.0, 3.0]))
    out = linear(torch.eye(64))
    assert torch.equal(out.T, (torch.arange(192).view(3, 64) % 16) * 0.5 + torch.tensor([[1.0], [2.0], [3.0]]))


def test_weights_that_were_kept_in_bfloat16_are_widened_first():
    narrow = partial(NarrowLinear, widen_from=4)
    made = with_layers_of(Int8Linear, wide_model("tiny-llama", narrow))
    part = made.layers[1].down
    x = torch.randn(5, part.in_features, generator=torch.Generator().manual_seed(0))
    assert part(x).dtype == torch.float32 and part(x.bfloat16()).dtype == torch.bfloat16
