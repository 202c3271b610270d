"""Measures the memory of engines with long contexts, for a process of its own."""

import resource
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from gradus.assembly.final import EngineConfig, build
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.models import Model, create_model, randomize
from gradus.models.config import ModelConfig
from gradus.models.shapes import SHAPES

CONTEXT, SEQUENCES, PROMPT = 131_072, 256, 16_384
TINY = SHAPES["tiny-gemma3"]


def shape(context: int) -> ModelConfig:
    """A layer with a window of 16 tokens, and one that sees everything."""
    return replace(TINY, context_length=context, num_layers=2, windows=TINY.windows[:2], ropes=TINY.ropes[:2])


def model_of(context: int) -> Model:
    model = create_model(shape(context), dtype=torch.float32)
    randomize(model)
    return model


def engine_of(model: Model, **settings) -> Engine:
    context = model.config.context_length
    usual = {"cache_tokens": 2 * context, "kernels": False, "graphs": False}
    return build(model, EngineConfig(ModelLimits(model.config.vocab_size, context), **usual | settings))


def run(engine: Engine, tokens: int) -> None:
    prompt = [number * 7 % TINY.vocab_size for number in range(tokens)]
    engine.submit(Request.create("a", prompt, SamplingParams(max_tokens=3, ignore_eos=True), engine.limits))
    while engine.has_work:
        engine.step()


def most_resident() -> int:
    """The most bytes that this process has held so far.

    On Linux, ru_maxrss begins with that of the process that started this one; on macOS it counts bytes.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def grown(what: str) -> int:
    """Return the bytes that this process grows by. An engine with short contexts runs before, so that libraries and
    allocators have their memory."""
    settings = {"chunked": False} if what == "whole" else {"token_budget": 1024}
    settings |= {"speculate": "ngram"} if what == "build" else {}
    run(engine_of(model_of(512), **settings), 64)
    model = model_of(CONTEXT)
    before = psutil.Process().memory_info().rss
    engine = engine_of(model, max_sequences=SEQUENCES, **settings)
    if what == "build":
        return psutil.Process().memory_info().rss - before
    run(engine, PROMPT)
    return most_resident() - before
