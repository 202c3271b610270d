"""p14's models: the tokens of the dense model that their experts were made of, and of the engine's own mixture."""

from dataclasses import replace

import pytest
import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.engine.request import Request, SamplingParams
from gradus.errors import ConfigError
from gradus.models import SHAPES, Model, create_model, randomize
from gradus.models.config import Experts
from gradus.models.experts import Mixture
from phases.p14_experts.mixture import SortedMixture, mixtures, with_sorted_mixtures
from phases.p14_experts.slices import copied, sliced
from tests.phases.conftest import all_logits, limits_of, of, tiny_model
from tests.phases.drive import nothing_is_left, parting, run

SHAPE, DENSE = "tiny-qwen3-moe", "tiny-llama"
PROMPTS = ([5], [9, 8, 7], [7 * i % 300 for i in range(23)], [4] * 6)
TOKENS = PROMPTS[2]


def wide_model(**experts) -> Model:
    """The tiny shape, with experts that have other properties as well."""
    config = SHAPES[SHAPE]
    changed = tuple(each and replace(each, **experts) for each in config.experts)
    model = create_model(replace(config, experts=changed))
    randomize(model, seed=3, std=0.1)
    return model


def options(shape: str, **settings) -> EngineOptions:
    return EngineOptions(limits_of(shape), max_sequences=3, **settings)


def asked(shape: str, **params) -> list[Request]:
    settings = SamplingParams(max_tokens=16, ignore_eos=True, **params)
    return [Request.create(f"r{i}", prompt, settings, limits_of(shape)) for i, prompt in enumerate(PROMPTS)]


def assert_same_tokens(model: Model, reference: Model, shape: str, params=None, **settings) -> None:
    """In p14's engine, `model` has the tokens of `reference` in p00's."""
    engine = phases.load("p14").build(model, options(shape, **settings))
    oracle = phases.load("p00").build(reference, options(shape))
    found, wanted = (run(each, asked(shape, **(params or {}))) for each in (engine, oracle))
    for request in asked(shape):
        tokens, right = (each[request.id, 0].tokens for each in (found, wanted))
        assert tokens == right, parting(request.prompt, tokens, right)
    nothing_is_left(engine)


@of("p14")
def test_an_mlp_in_slices_that_are_all_taken_has_the_dense_models_tokens(phase):
    assert_same_tokens(sliced(tiny_model(DENSE), 8, 8), tiny_model(DENSE), DENSE)


@of("p14")
@pytest.mark.parametrize("chosen", [1, 2, 4])
def test_copies_of_an_mlp_have_its_tokens_whatever_the_router_chooses(phase, chosen):
    assert_same_tokens(copied(tiny_model(DENSE), 4, chosen), tiny_model(DENSE), DENSE)


@of("p14")
def test_chunks_preemptions_and_shared_prefixes_change_no_token_of_a_mixture(phase):
    params, model = {"temperature": 1.0, "seed": 5}, tiny_model(SHAPE)
    assert_same_tokens(model, model, SHAPE, params, page_size=4, cache_tokens=52, token_budget=7)


@of("p14")
@pytest.mark.parametrize(
    "experts",
    [
        {},
        {"normalized": False},
        {"scale": 2.5, "chosen": 3},
        {"sigmoid": True},
        {"sigmoid": True, "corrected": True, "normalized": False},
        {"sigmoid": True, "corrected": True, "groups": 4, "chosen_groups": 2},
        {"scaled": True},
        {"chosen": 8},
    ],
    ids=str,
)
def test_sorted_rows_give_the_logits_of_the_engines_mixture(phase, experts):
    model = wide_model(**experts)
    wanted, found = (all_logits(each, TOKENS) for each in (model, with_sorted_mixtures(model)))
    error = (found - wanted).abs().max().item()
    assert error < 1e-5, f"with {experts} the logits are off by {error:.2g}"


def test_the_model_that_it_is_made_of_stays_what_it_was_and_shares_its_weights():
    model = tiny_model(SHAPE)
    made = with_sorted_mixtures(model)
    assert not mixtures(model) and len(mixtures(made)) == sum(each is not None for each in model.config.experts)
    assert any(isinstance(part, Mixture) for layer in model.layers for part in layer.children())
    pairs = list(zip(made.parameters(), model.parameters(), strict=True))
    assert pairs and all(mine is theirs for mine, theirs in pairs)
    assert isinstance(vars(made.layers[0])["experts"], SortedMixture), "where Python looks first there is the new one"


def test_a_dense_model_has_nothing_to_replace():
    model = tiny_model(DENSE)
    made = with_sorted_mixtures(model)
    assert not mixtures(made) and torch.equal(all_logits(made, TOKENS), all_logits(model, TOKENS))


def test_a_mixture_remembers_its_last_choice():
    made = with_sorted_mixtures(tiny_model(SHAPE))
    all_logits(made, TOKENS)
    seen = mixtures(made)[0].seen
    assert seen is not None and seen.shape == (len(TOKENS), 2)
    assert all(len(set(row)) == 2 for row in seen.tolist()), "a token takes two different experts"


def test_slices_that_are_left_out_change_the_logits():
    model = tiny_model(DENSE)
    off = (all_logits(sliced(model, 8, 7), TOKENS) - all_logits(model, TOKENS)).abs().max().item()
    assert off > 0.01


@pytest.mark.parametrize(
    ("shape", "count", "says"),
    [
        (DENSE, 7, "an MLP of 160 features cannot be cut into 7 equal experts"),
        ("tiny-gpt2", 8, "models like Llama, and this one is a gpt2"),
        (SHAPE, 8, "models like Llama, and this one is a qwen3_moe"),
        ("tiny-gemma3", 8, "models like Llama, and this one is a gemma3"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(shape, count, says):
    with pytest.raises(ConfigError, match=says):
        sliced(tiny_model(shape), count, 2)


def test_a_slice_of_one_expert_is_the_whole_mlp():
    model = tiny_model(DENSE)
    made = sliced(model, 1, 1)
    assert made.config.experts[0] == Experts(1, 1, 160, scale=1)
    assert torch.allclose(all_logits(made, TOKENS), all_logits(model, TOKENS), atol=1e-5)
