"""Every phase gives the tokens that the bare model gives: greedy, token for token, in fp32.

The final engine does so for every family in every run, and `make stress` for all in every phase. To a phase, families
differ in what they ask of attention and of the scheduler that feeds it; the rest is the model's, the same for all.
"""

from collections.abc import Sequence
from functools import cache

import pytest
import torch

from gradus.engine.request import Request, SamplingParams
from gradus.models.shapes import SHAPES
from phases.p01_kv_cache.contiguous import ContiguousAttention
from tests.phases.conftest import (
    CAPPED,
    CONTENDERS,
    EVERY_FAMILY,
    FAMILIES,
    MIXTURES,
    PHASES,
    all_logits,
    build_engine,
    in_turn,
    limits_of,
    rounded_otherwise,
    tiny_model,
)  # fmt: skip
from tests.phases.drive import Ending, compare, parting, run

LENGTH = 16  # each prompt's continuation leaves the first page or the window, and the last one's the second page
CLEAR = 1e-3  # a smaller gap between the two best logits could fall either way by rounding, and prove nothing


def prompts(shape: str) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    vocab = limits_of(shape).vocab_size
    return [torch.randint(0, vocab, (length,), generator=generator).tolist() for length in (1, 5, 23)]


ATTENTION = [*FAMILIES, CAPPED, "tiny-gemma4", "tiny-gemma4-e", "tiny-gpt-oss"]
"""Families that differ in attention: windows, heads of several sizes, a scale, a soft cap, shared keys, sinks."""
MOST = ["tiny-gemma3", "tiny-gemma4-e", "tiny-gpt-oss"]
"""The same in three, for phases whose attention is an earlier one's."""
HARD = {
    **dict.fromkeys(PHASES, MOST),
    **dict.fromkeys(("p00", "p01", "p02", "p03", "p04"), ATTENTION),  # attention of their own
    "p07": EVERY_FAMILY,  # makes a model of its own from each
    "p14": [*MOST, *MIXTURES],
}


def greedy(shape: str, prompt: list[int], guess: Sequence[int] = ()) -> tuple[tuple[int, ...], float]:
    """The prompt's greedy continuation by the bare model, and the smallest gap between its two best logits.

    guess: tokens that it may be. What it is does not depend on them, but a good guess saves passes: one pass finds the
    model's choice behind every token, and the choices are right up to the first that was guessed wrong, and with it.
    """
    tokens = (*guess, *[0] * LENGTH)[:LENGTH]
    while True:
        best = all_logits(tiny_model(shape), [*prompt, *tokens[:-1]])[len(prompt) - 1 :].topk(2)
        chosen = tuple(best.indices[:, 0].tolist())
        if chosen == tokens:
            return tokens, float((best.values[:, 0] - best.values[:, 1]).min())
        tokens = chosen


@cache
def oracle(shape: str) -> tuple[tuple[tuple[int, ...], float], ...]:
    """`greedy` for each prompt."""
    guesses = run(build_engine("p01", shape), asked(shape, [SamplingParams(max_tokens=LENGTH, ignore_eos=True)] * 3))
    return tuple(greedy(shape, prompt, guesses[f"r{i}", 0].tokens) for i, prompt in enumerate(prompts(shape)))


def asked(shape: str, params: Sequence[SamplingParams]) -> list[Request]:
    """A request for each prompt."""
    pairs = zip(prompts(shape), params, strict=True)
    return [Request.create(f"r{i}", prompt, each, limits_of(shape)) for i, (prompt, each) in enumerate(pairs)]


@pytest.mark.parametrize("shape", [*EVERY_FAMILY, CAPPED])
def test_the_oracles_choices_are_clear(shape):
    assert min(gap for _, gap in oracle(shape)) > CLEAR
    assert len({token for tokens, _ in oracle(shape) for token in tokens}) > 3  # and not one token over and over


@pytest.mark.parametrize(
    ("phase", "shape"),
    in_turn(CONTENDERS, [*EVERY_FAMILY, CAPPED], [(name, shape) for name in HARD for shape in HARD[name]], turns=2),
)
def test_greedy_tokens_are_those_of_the_model_alone(phase, shape):
    done = run(build_engine(phase, shape), asked(shape, [SamplingParams(max_tokens=LENGTH, ignore_eos=True)] * 3))
    for i, (prompt, (tokens, _)) in enumerate(zip(prompts(shape), oracle(shape), strict=True)):
        found = done[f"r{i}", 0].tokens
        assert found == tokens, parting(prompt, found, tokens)
    assert {ending.finish_reason for ending in done.values()} == {"length"}


DRAWN = [
    SamplingParams(max_tokens=16, temperature=1.0, seed=1, n=2),
    SamplingParams(max_tokens=16, temperature=0.8, top_k=20, top_p=0.9, seed=2, repetition_penalty=1.2),
    SamplingParams(max_tokens=12, temperature=1.0, min_p=0.02, presence_penalty=0.5, logit_bias={3: 1.0}, seed=3),
]


@cache
def drawn_by_p00(shape: str) -> dict[tuple[str, int], Ending]:
    return run(build_engine("p00", shape), asked(shape, DRAWN))


@pytest.mark.parametrize(
    ("phase", "shape"), in_turn(CONTENDERS, FAMILIES, [(name, "tiny-llama") for name in CONTENDERS])
)
def test_sampled_tokens_are_the_same_in_every_phase(phase, shape):
    assert run(build_engine(phase, shape), asked(shape, DRAWN)) == drawn_by_p00(shape)


TIE = (28, 245, 115, 246, 128, 46, 318, 284, 300, 189, 280, 309, 280, 309, 150, 9)
"""After it, and 11, tiny-llama's two best logits are the same float32: 150's and 11's."""


def test_of_two_tokens_that_are_as_good_as_each_other_either_is_right_and_no_third_one():
    request = Request.create("r", TIE, SamplingParams(max_tokens=2, ignore_eos=True), limits_of("tiny-llama"))

    def judge(second: int) -> None:
        answers = (run(build_engine("p01", "tiny-llama", model=each), [request]) for each in [None, *others])
        compare({"r": request}, {("r", 0): Ending((11, second), "length")}, next(answers), lambda: answers)

    others = rounded_otherwise("tiny-llama")
    judge(11)
    judge(150)
    with pytest.raises(AssertionError, match="its token 2, position 17: 79 instead of"):
        judge(79)  # the third best


def test_the_check_notices_a_cache_that_is_off_by_one(monkeypatch):
    """The one broken implementation that the oracle must catch: keys stored one position too early."""
    prepare = ContiguousAttention.prepare

    def off_by_one(backend, batch):
        if batch.starts[0] > 0:
            batch.starts, batch.lengths = [batch.starts[0] - 1], [batch.lengths[0] - 1]
        prepare(backend, batch)

    monkeypatch.setattr(ContiguousAttention, "prepare", off_by_one)
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
    requests = [Request.create("r0", prompts("tiny-llama")[1], params, limits_of("tiny-llama"))]
    assert run(build_engine("p01", "tiny-llama"), requests)["r0", 0].tokens != oracle("tiny-llama")[1][0]


def test_the_check_notices_a_window_of_the_wrong_size(monkeypatch):
    wider = tuple(None if window is None else window + 1 for window in SHAPES["tiny-mistral"].windows)
    build = ContiguousAttention.__init__

    def with_wider_windows(backend, config, *arguments):
        build(backend, config, *arguments)
        backend.config = type("Wider", (), {**vars(config), "windows": wider})

    monkeypatch.setattr(ContiguousAttention, "__init__", with_wider_windows)
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
    requests = [Request.create("r2", prompts("tiny-mistral")[2], params, limits_of("tiny-mistral"))]
    assert run(build_engine("p01", "tiny-mistral"), requests)["r2", 0].tokens != oracle("tiny-mistral")[2][0]
