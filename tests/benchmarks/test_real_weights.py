"""The rule for bfloat16 on real weights: it accepts float32's own text, and finds out every token that is not."""

import pytest
import torch

from benchmarks import real_weights
from benchmarks.real_weights import CLOSE_CALL, Parting, Verdict, continuations, judge, partings, prompts_of
from gradus import phases
from gradus.config.options import EngineOptions
from gradus.loading import open_checkpoint
from gradus.models import create_model, randomize
from gradus.models.shapes import SHAPES
from tests.phases.conftest import FAMILIES, limits_of, tiny_model

CPU = torch.device("cpu")
PROMPTS = [[1, 2, 3], [40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 150, 160, 170, 180, 190, 200, 210]]


def texts(shape: str, count: int = 12) -> list[list[int]]:
    engine = phases.load("p01").build(tiny_model(shape), EngineOptions(limits_of(shape)))
    return continuations(engine, PROMPTS, count)


@pytest.mark.parametrize("shape", FAMILIES)
def test_a_models_own_text_parts_nowhere(shape):
    for prompt, tokens in zip(PROMPTS, texts(shape), strict=True):
        assert len(tokens) == 12 and partings(tiny_model(shape), prompt, tokens)[0] == []


def test_a_wrong_token_is_found_and_so_is_every_one_after_it_that_does_not_follow():
    shape = "tiny-llama"
    tokens = texts(shape)[0]
    wrong = [*tokens[:5], (tokens[5] + 1) % 256, *tokens[6:]]
    found, _ = partings(tiny_model(shape), PROMPTS[0], wrong, number=7)
    assert found[0].prompt == 7 and (found[0].step, found[0].token, found[0].best) == (5, wrong[5], tokens[5])
    assert len(found) > 1, "what followed the right token does not follow the wrong one"


def test_another_models_text_is_beyond_the_bound():
    other = create_model(SHAPES["tiny-llama"])
    randomize(other, seed=1, std=0.1)
    found, _ = partings(other, PROMPTS[0], texts("tiny-llama")[0])
    assert not Verdict(1, 12, 0, 12, found).passed and max(parting.gap for parting in found) > CLOSE_CALL


def test_a_parting_passes_below_the_bound_and_not_at_it():
    close, far = (Parting(0, 3, 1, 2, gap) for gap in (CLOSE_CALL - 0.01, CLOSE_CALL))
    assert Verdict(1, 8, 0, 8, [close]).passed and Verdict(1, 8, 1, 8, []).passed
    assert not Verdict(1, 8, 0, 8, [close, far]).passed


def test_a_clear_choice_is_one_whose_neighbor_would_fail():
    model, tokens = tiny_model("tiny-llama"), texts("tiny-llama")[0]
    _, clear = partings(model, PROMPTS[0], tokens)
    caught = 0
    for step, token in enumerate(tokens):
        found, _ = partings(model, PROMPTS[0], [*tokens[:step], (token + 1) % 256])
        caught += found[-1].gap >= CLOSE_CALL
    assert 0 < clear <= caught, "of a clear choice every other token is beyond the bound, the next one too"


def test_both_engines_agree_on_a_tiny_model(capsys):
    checkpoint = open_checkpoint("random:tiny-llama")
    prompts = prompts_of(checkpoint, 4)
    verdict = judge(checkpoint, CPU, torch.float32, prompts, 6)
    assert (verdict.prompts, verdict.tokens) == (8, 6) and verdict.passed
    assert capsys.readouterr().out.count("\n") >= 8, "a line a text"


@pytest.mark.slow
@pytest.mark.weights
def test_real_weights_in_bfloat16_keep_to_the_rule():
    checkpoint = open_checkpoint("smollm2-135m")
    prompts = prompts_of(checkpoint, len(real_weights.QUESTIONS + real_weights.BEGINNINGS))
    assert len({tuple(prompt) for prompt in prompts}) == 16
    assert judge(checkpoint, CPU, torch.bfloat16, prompts[:2], 6).passed
