"""Tiny models with well-separated logits, and an oracle that shares no code with any phase."""

from functools import cache

import pytest
import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits
from gradus.models import Model, create_model, randomize
from gradus.models.shapes import SHAPES

FAMILIES = ["tiny-gpt2", "tiny-llama", "tiny-mistral", "tiny-qwen3", "tiny-gemma3"]
PHASES = [info.name for info in phases.available()]


@cache
def tiny_model(shape: str) -> Model:
    """fp32, on the CPU; drawn so widely that greedy choices are clear (`test_oracle` asserts how clear)."""
    model = create_model(SHAPES[shape])
    randomize(model, seed=0, std=0.1)
    return model


def limits_of(shape: str) -> ModelLimits:
    config = SHAPES[shape]
    return ModelLimits(config.vocab_size, config.context_length, config.eos_token_ids)


def build_engine(phase: str, shape: str, max_sequences: int = 3) -> Engine:
    """Few places, so that requests wait, and take over what others leave."""
    return phases.load(phase).build(tiny_model(shape), EngineOptions(limits_of(shape), max_sequences))


class NaiveAttention:
    """The textbook formula in float64 over one whole sequence, one query at a time: slow, and hard to get wrong."""

    def __init__(self, model: Model) -> None:
        self.config = model.config

    def attend(self, layer, q, k, v):
        out = torch.empty_like(q)
        group = q.shape[1] // k.shape[1]
        keys, values = (kept.repeat_interleave(group, dim=1).double() for kept in (k, v))  # one for each query head
        window, cap = self.config.windows[layer], self.config.attention_softcap
        for i in range(q.shape[0]):
            seen = slice(0 if window is None else max(0, i - window + 1), i + 1)
            scores = torch.einsum("hd,mhd->hm", q[i].double(), keys[seen]) * self.config.attention_scale
            scores = scores if cap is None else cap * torch.tanh(scores / cap)
            out[i] = torch.einsum("hm,mhd->hd", scores.softmax(-1), values[seen]).to(out.dtype)
        return out


@torch.inference_mode()
def next_logits(model: Model, tokens: list[int]) -> torch.Tensor:
    """[V]: the model's opinion of what follows `tokens`, computed from nothing."""
    hidden = model(torch.tensor(tokens), torch.arange(len(tokens)), NaiveAttention(model))
    return model.logits(hidden[-1:])[0]


@pytest.fixture(params=PHASES)
def phase(request) -> str:
    return request.param
