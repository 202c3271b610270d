"""Watch experts at work: which of them takes which token, step by step.

    python -m phases.p14_experts.watch
    python -m phases.p14_experts.watch --model smollm2-135m --layer 12

A model without experts is cut into slices first, with routers that are random: its text is noise then, and its choices
are as real as those of any router. (`gradus xray p14` makes a page to step through.)
"""

import argparse
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Result
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.errors import GradusError
from gradus.loading import Tokenizer, load_model, open_checkpoint
from gradus.models import Model
from phases.p14_experts.engine import build
from phases.p14_experts.mixture import mixtures
from phases.p14_experts.slices import random_routers, sliced

PROMPTS = {"Ann": "A calm sea", "Ben": "Sum up:", "Cy": "Why?"}
SLICES, TAKEN = 16, 2
ROOM = 32  # positions per sequence beyond those that it needs, so that no sequence waits for pages


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its tokens as (request, token id), in the order of the batch's rows; each layer's choice, [N, k]; and
    the seconds of its forward pass and sampling. Layers without experts are left out."""

    tokens: list[tuple[str, int]]
    chosen: list[Tensor]
    seconds: float


def watch(engine: Engine) -> list[Step]:
    """Note the steps of an engine of p14 from now on, in the list that is returned."""
    steps: list[Step] = []
    run, layers = engine.runner.run, mixtures(engine.runner.model)  # type: ignore[attr-defined]

    def noted(plan: Plan) -> Result:
        start = time.perf_counter()
        result = run(plan)
        result.get()
        seconds = time.perf_counter() - start
        spans = [(span.sequence, token) for span in plan.spans for token in span.tokens]
        tokens = [(sequence.request.id, token) for sequence, token in spans if sequence is not None]
        steps.append(Step(tokens, [layer.seen for layer in layers if layer.seen is not None], seconds))
        return result

    engine.runner.run = noted  # type: ignore[method-assign]
    return steps


def watched(model: Model, prompts: dict[str, list[int]], max_tokens: int, temperature: float = 0.0) -> list[Step]:
    """Answer the prompts at once, and return the steps that this took."""
    limits = ModelLimits(model.config.vocab_size, max(map(len, prompts.values())) + max_tokens + ROOM, ())
    engine = build(model, EngineOptions(limits, max_sequences=len(prompts)))
    steps = watch(engine)
    for seed, (name, prompt) in enumerate(prompts.items()):
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
        engine.submit(Request.create(name, prompt, params, limits))
    while engine.has_work:
        engine.step()
    return steps


def with_experts_of(name: str) -> tuple[Model, Tokenizer]:
    """Load a model; one without experts is cut into slices."""
    checkpoint = open_checkpoint(name)
    model = load_model(checkpoint, dtype=torch.float32, device="cpu")
    if not any(model.config.experts):
        model = sliced(model, SLICES, TAKEN, random_routers(model, SLICES))
    return model, checkpoint.tokenizer or Tokenizer.of_bytes()


def lines(step: Step, layer: int, count: int, tokenizer: Tokenizer) -> list[str]:
    """One line per expert that was chosen in this layer, with the tokens that it takes."""
    chosen = step.chosen[layer]
    found = []
    for expert in range(count):
        rows = (chosen == expert).any(dim=1).nonzero().flatten().tolist()
        words = [f"{step.tokens[row][0]}:{tokenizer.decode([step.tokens[row][1]])!r}" for row in rows]
        if words:
            found.append(f"  expert {expert:3}  {' '.join(words)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random:tiny-qwen3-moe")
    parser.add_argument("--layer", type=int, default=0, help="which of the layers that have experts (0)")
    parser.add_argument("--max-tokens", type=int, default=4)
    asked = parser.parse_args()
    try:
        model, tokenizer = with_experts_of(asked.model)
    except GradusError as error:
        parser.error(str(error))
    layers = [each for each in model.config.experts if each is not None]
    if not 0 <= asked.layer < len(layers):
        parser.error(f"--layer must be between 0 and {len(layers) - 1}, got {asked.layer}")
    count = layers[asked.layer].count
    prompts = {name: tokenizer.encode(text) for name, text in PROMPTS.items()}
    for number, step in enumerate(watched(model, prompts, asked.max_tokens), 1):
        shown = lines(step, asked.layer, count, tokenizer)
        print(f"step {number}: {len(step.tokens)} tokens, {len(shown)} of {count} experts are read")
        print(*shown, sep="\n")


if __name__ == "__main__":
    main()
