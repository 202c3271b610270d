"""Requests that ask for all that sampling offers, to be run side by side, and what became of each."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import torch

from gradus.engine.engine import Engine
from gradus.engine.logprobs import TokenLogprob
from gradus.engine.request import Request, SamplingParams
from tests.phases.conftest import limits_of
from tests.phases.drive import step, submit

LENGTH = 24
CLOSE = 1e-4  # log-probabilities in float32, on different devices
APART = 1e-3  # logits that no rounding makes change places

ASKED = [
    dict(),
    dict(temperature=1.0, seed=1),
    dict(temperature=0.7, top_k=5, seed=2, logprobs=5),
    dict(temperature=1.2, top_p=0.8, seed=3),
    dict(temperature=1.0, min_p=0.1, repetition_penalty=0.5, seed=4, logprobs=0),
    dict(temperature=1.0, top_k=30, top_p=0.5, seed=5, n=2, logprobs=20),
    dict(temperature=1.5, top_k=9, top_p=0.9, min_p=0.02, seed=6, logit_bias={3: 2.0, 7: -100}),
    dict(frequency_penalty=0.7, presence_penalty=0.4, logprobs=1),
    dict(temperature=1.5, top_p=0.99, frequency_penalty=-0.5, seed=8),
    dict(temperature=2.0, seed=9, min_tokens=6, stop_token_ids=tuple(range(0, 320, 5))),
]


@dataclass
class Answer:
    """How one sample ended, all its tokens, and their log-probabilities as far as they were asked for."""

    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)


def mixture(shape: str) -> list[Request]:
    generator = torch.Generator().manual_seed(1)
    limits = limits_of(shape)
    lengths = [1, 5, 23, 9, 2, 14, 7, 3, 20, 6]
    prompts = [torch.randint(0, limits.vocab_size, (length,), generator=generator).tolist() for length in lengths]
    params = [SamplingParams(max_tokens=LENGTH, ignore_eos=True, **asked) for asked in ASKED]
    return [Request.create(f"r{i}", prompt, params[i], limits) for i, prompt in enumerate(prompts)]


def answers(engine: Engine, requests: Iterable[Request]) -> dict[tuple[str, int], Answer]:
    submit(engine, requests)
    found: dict[tuple[str, int], Answer] = {}
    while engine.has_work:
        for output in step(engine):
            answer = found.setdefault((output.request_id, output.index), Answer())
            answer.tokens += output.tokens
            answer.logprobs += output.logprobs
            answer.finish_reason = output.finish_reason
    return found


def assert_same(found: dict[tuple[str, int], Answer], expected: dict[tuple[str, int], Answer]) -> None:
    """The same tokens and endings, and the same log-probabilities but for rounding."""
    assert {name: (answer.tokens, answer.finish_reason) for name, answer in found.items()} == {
        name: (answer.tokens, answer.finish_reason) for name, answer in expected.items()
    }
    for name, answer in found.items():
        for mine, theirs in zip(answer.logprobs, expected[name].logprobs, strict=True):
            _assert_reported_alike(mine, theirs)


def _assert_reported_alike(mine: TokenLogprob, theirs: TokenLogprob) -> None:
    assert mine.token_id == theirs.token_id and len(mine.top) == len(theirs.top)
    assert mine.logprob == pytest.approx(theirs.logprob, abs=CLOSE)
    values = [value for _, value in theirs.top]
    assert [value for _, value in mine.top] == pytest.approx(values, abs=CLOSE)
    for rank in range(len(values) - 1):  # the last one may tie with a token that is not there
        if all(abs(values[rank] - values[other]) > APART for other in (rank - 1, rank + 1) if other >= 0):
            assert mine.top[rank][0] == theirs.top[rank][0]
