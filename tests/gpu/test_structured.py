"""Masked steps on a GPU: two graphs each, masks filled while the first one runs, and the same answers as anywhere."""

import json
import re
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus import LLM, SamplingParams
from gradus.engine.structured import Structured
from tests.structured.answers import SCHEMA

pytestmark = [pytest.mark.gpu, pytest.mark.plans_memory]

MODEL = "random:tiny-qwen3"
PROMPTS = [[number] * (3 + 5 * number) for number in range(24)]


def params(number: int) -> SamplingParams:
    """Two in three keep to a grammar; some of these have penalties, or report log-probabilities."""
    structured = None if number % 3 == 2 else Structured(json_schema=SCHEMA, whitespace="compact")
    return SamplingParams(
        max_tokens=60 + number,
        temperature=[0.0, 0.8, 1.0][number % 4 % 3],
        seed=number,
        structured=structured,
        repetition_penalty=1.2 if number % 5 == 4 else 1.0,
        logprobs=2 if number % 7 == 3 else None,
    )


def answers(**settings) -> list[tuple[int, ...]]:
    given: dict[str, Any] = {
        "device": "cuda",
        "dtype": "float32",
        "max_sequences": 16,
        "context_length": 256,
    } | settings
    with LLM(MODEL, **given) as llm:
        done = llm.generate(PROMPTS, [params(number) for number in range(len(PROMPTS))])
        llm.core.check()
        again = llm.generate(PROMPTS, [params(number) for number in range(len(PROMPTS))])
    assert [each.token_ids for each in again] == [each.token_ids for each in done]
    for number, each in enumerate(done):
        if params(number).structured is not None and each.finish_reason == "stop":
            assert set(json.loads(each.text)) == {"name", "sizes", "color"}
    return [each.token_ids for each in done]


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, ...]]:
    return answers(switch_off=("graphs", "overlap", "prefix_cache"), max_sequences=1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"switch_off": ("overlap",)},
        {"switch_off": ("graphs",)},
        {"switch_off": ("kernels", "graphs")},
        {"token_budget": 64},
        {"cache_tokens": 1024},
        {"speculate": "ngram"},
    ],
)
def test_answers_do_not_depend_on_how_they_are_computed(settings, plain):
    assert answers(**settings) == plain


@pytest.mark.quick
def test_masks_are_wide_enough_for_logits_beyond_the_tokenizer():
    with LLM("random:qwen3-0.6b", device="cuda", max_sequences=8, context_length=512) as llm:
        done = llm.generate(
            [[1, 2, 3]] * 8,
            [
                SamplingParams(max_tokens=20, temperature=1.0, seed=n, structured=Structured(regex="[a-f]{8}"))
                for n in range(8)
            ],
        )
    assert all(re.fullmatch("[a-f]{8}", each.text) for each in done)
    torch.cuda.empty_cache()
