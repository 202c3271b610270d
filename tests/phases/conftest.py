"""Tiny models with well-separated logits, the contenders to run them in, and an oracle that shares no code with any.

A contender is a phase by its name, or "final": the final engine, which keeps every promise of the phases that it grew
from, and some of its own. A phase without an engine (p13, a server around any of them) is no contender.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, TypeVar

import pytest
import torch

from gradus import phases
from gradus.assembly import final
from gradus.config.options import FINAL, EngineConfig, EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits
from gradus.models import Linear, Model, create_model, randomize
from gradus.models.heads import Heads
from gradus.models.shapes import SHAPES

Test = TypeVar("Test")

FAMILIES = ["tiny-gpt2", "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"]
NEWER = [
    "tiny-smollm3",  # two layers of four do not turn
    "tiny-ministral3",  # YaRN, and queries that grow with their position: from 32 on
    "tiny-phi3",  # heads that turn in part
    "tiny-olmo2",  # norms across heads, and behind products alone
    "tiny-olmo3",  # the same with windows
    "tiny-granite",  # multipliers
    "tiny-granite4",  # multipliers, and no layer that turns
    "tiny-gemma4",  # heads of two sizes, and keys that are values
    "tiny-gemma4-e",  # layers that attend to another one's keys and values, and embeddings of their own
]
MIXTURES = [
    "tiny-mixtral",  # experts
    "tiny-qwen2-moe",  # experts next to an MLP with a gate, and a dense layer
    "tiny-qwen3-moe",  # experts alone, and a dense layer
    "tiny-olmoe",  # experts, and norms across heads
    "tiny-granite-moe",  # experts, multipliers
    "tiny-gemma4-moe",  # experts with norms of their own
    "tiny-gpt-oss",  # experts with biases and a clamped gate; attention with sinks, and windows
    "tiny-glm4-moe",  # experts in groups, chosen by sigmoid; heads that turn in part
]
"""Families with experts."""
EVERY_FAMILY = [*FAMILIES, *NEWER, *MIXTURES]
"""All families give the oracle's tokens in the final engine, and take turns in the phases and in random schedules.

Tests of sampling, prefixes and preemption, which do not depend on a layer's parts, run with FAMILIES in every phase,
and with the others in the final engine alone.
"""
MIXED = ["tiny-qwen2-moe", "tiny-gpt-oss"]
"""Have their turn where a test runs FAMILIES: between them, nearly all that a layer with experts may have."""
PHASES = [info.name for info in phases.engines()]
CONTENDERS = [*PHASES, FINAL]
BRANCHES = {"p14": "p06"}
"""Phases that stand on an earlier one than the phase before them, and owe nothing to those in between."""


def reached(first: str) -> list[str]:
    """The contenders that build on phase `first`: it, those after it, and the final engine."""
    return [name for name in CONTENDERS if name in (FINAL, first) or BRANCHES.get(name, name) >= first]


def since(first: str) -> pytest.MarkDecorator:
    """Run the test for the phase that makes the promise, and for all that keep it."""
    return pytest.mark.parametrize("phase", reached(first))


def of(*names: str) -> pytest.MarkDecorator:
    """Run the test for these contenders alone, or phases without an engine, as far as they exist."""
    known = [*(info.name for info in phases.available()), FINAL]
    return pytest.mark.parametrize("phase", [name for name in known if name in names])


def in_turn(names: Sequence[str], shapes: Sequence[str], always: Collection[tuple[str, str]], turns: int = 1) -> list:
    """Contenders with shapes, as parameters. Every run has the final engine with all shapes, the pairs of `always`, and
    each phase with `turns` of the other shapes, so that all have their turn; `make stress` has the rest.
    """
    kept, turn = set(always) | {(FINAL, shape) for shape in shapes}, 0
    for name in names:
        others = [shape for shape in shapes if (name, shape) not in always]
        kept |= {(name, others[(turn + place) % len(others)]) for place in range(turns) if others}
        turn += turns
    marks = {True: (), False: pytest.mark.stress}
    return [pytest.param(*pair, marks=marks[pair in kept]) for pair in product(names, shapes)]


def about(part: str) -> Callable[[Test], Test]:
    """Say which file of its phase a test is about that runs a whole engine: `gradus check` says so to a student."""

    def mark(test: Test) -> Test:
        test.about = part
        return test

    return mark


CAPPED = "capped"
"""A shape of the tests' own: no family has both a soft cap on attention scores and a scale that is not head_dim^-0.5.

Without them no test would notice an engine that drops the cap, or computes the scale itself.
"""
OWN_SHAPES = {CAPPED: replace(SHAPES["tiny-gemma3"], attention_scale=0.9, attention_softcap=2.0)}
EVERY_SHAPE = SHAPES | OWN_SHAPES
SEEDS = {"tiny-olmo3": 8, "tiny-granite4": 10, "tiny-mixtral": 10, "tiny-granite-moe": 9, "tiny-gpt-oss": 8}
"""Of weights, where 7 would make two tokens of an oracle's choice nearly equal."""


@cache
def tiny_model(shape: str) -> Model:
    """fp32, on the CPU; drawn so widely that greedy choices are clear (`test_oracle` asserts how clear).

    A layer's weights are whole multiples of one scale per row, up to 127 times it. Eight bits hold them exactly, so p07
    is held to the very tokens of all others.
    """
    model = create_model(EVERY_SHAPE[shape])
    randomize(model, seed=SEEDS.get(shape, 7), std=0.1)
    for part in model.layers.modules():
        if isinstance(part, Heads) and part.sinks is not None:
            part.sinks.mul_(20)  # as great as scores are, so that each head's is its own
        if isinstance(part, Linear):
            scale = part.weight.abs().amax(dim=1, keepdim=True) / 127
            part.weight.copy_((part.weight / scale).round() * scale)
    return model


@cache
def rounded_otherwise(shape: str) -> list[Model]:
    """The tiny model with each weight changed by some hundred-thousandth, in a few ways.

    If two tokens are equally likely, half of these models choose one of them, and half the other.
    """
    models, generator = [create_model(EVERY_SHAPE[shape]) for _ in range(8)], torch.Generator().manual_seed(0)
    for model in models:
        for mine, right in zip(model.parameters(), tiny_model(shape).parameters(), strict=True):
            mine.copy_(right * (1 + 1e-5 * torch.randn(right.shape, generator=generator)))
    return models


def limits_of(shape: str) -> ModelLimits:
    config = EVERY_SHAPE[shape]
    return ModelLimits(config.vocab_size, config.context_length, config.eos_token_ids)


def build_engine(
    contender: str, shape: str, max_sequences: int = 3, model: Model | None = None, **settings: Any
) -> Engine:
    """A contender's engine over the tiny model. Few places, so that requests wait, and take over what others leave.

    model: of that shape, in the tiny model's place. settings: of EngineOptions; the final engine takes those of
    EngineConfig too.
    """
    model, limits = model or tiny_model(shape), limits_of(shape)
    if contender == FINAL:
        return final.build(model, EngineConfig(limits, max_sequences, **settings))
    return phases.load(contender).build(model, EngineOptions(limits, max_sequences, **settings))


class NaiveAttention:
    """The textbook formula in float64 over one whole sequence, one query at a time: slow, and hard to get wrong."""

    def __init__(self, model: Model) -> None:
        self.config = model.config
        self.kept = {}

    def attend(self, layer, q, k, v, sinks=None):
        if k is None:
            k, v = self.kept[self.config.kv_source(layer)]
        self.kept[layer] = k, v
        out = torch.empty_like(q)
        group = q.shape[1] // k.shape[1]
        keys, values = (kept.repeat_interleave(group, dim=1).double() for kept in (k, v))  # one per query head
        window, cap = self.config.windows[layer], self.config.attention_softcap
        for i in range(q.shape[0]):
            seen = slice(0 if window is None else max(0, i - window + 1), i + 1)
            scores = torch.einsum("hd,mhd->hm", q[i].double(), keys[seen]) * self.config.attention_scale
            scores = scores if cap is None else cap * torch.tanh(scores / cap)
            scores = scores if sinks is None else torch.cat((scores, sinks[:, None].double()), 1)
            weights = scores.softmax(-1)[:, : len(values[seen])]
            out[i] = torch.einsum("hm,mhd->hd", weights, values[seen]).to(out.dtype)
        return out


@torch.inference_mode()
def next_logits(model: Model, tokens: list[int]) -> torch.Tensor:
    """Return the logits [V] of the token after `tokens`, computed from scratch."""
    return all_logits(model, tokens)[-1]


@torch.inference_mode()
def all_logits(model: Model, tokens: list[int]) -> torch.Tensor:
    """[T, V]: the same for each beginning of `tokens`."""
    return model.logits(model(torch.tensor(tokens), torch.arange(len(tokens)), NaiveAttention(model)))


@pytest.fixture(params=CONTENDERS)
def phase(request) -> str:
    return request.param
