"""How often drafters are right on real text, and how many tokens a step gives then.

    python -m phases.p08_speculation.acceptance --model smollm2-135m

The prompts are made of the course's own text: a lesson that the model continues, and the same lesson begun a second
time, so that the model copies. Every run's tokens are compared with those of p06, which guesses nothing. Without
`--draft`, a copy of the model in four bits (p07) drafts: no faster in torch, but often right.
"""

import argparse
from pathlib import Path

import torch

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.loading import load_model, open_checkpoint
from gradus.models import Model
from phases.p06_chunked_prefill.engine import build as build_p06
from phases.p07_quantization.linears import Int4Linear, with_layers_of
from phases.p08_speculation.draft_model import ModelDrafter
from phases.p08_speculation.drafting import Drafter, NGramDrafter
from phases.p08_speculation.engine import DRAFTS, speculative_engine
from phases.p08_speculation.scheduler import Speculative

LESSON = Path(__file__).parents[1] / "p03_continuous_batching" / "README.md"


def run(engine: Engine, request: Request) -> list[tuple[int, ...]]:
    """Run a request to its end. Returns the tokens of each step that gave some."""
    engine.submit(request)
    given = []
    while engine.has_work:
        given += [output.tokens for output in engine.step() if output.tokens]
    return given


def loaded(name: str) -> Model:
    return load_model(open_checkpoint(name), dtype=torch.float32, device="cpu")


def prompts(name: str, length: int) -> dict[str, list[int]]:
    """Token ids by what they lead to: `length` tokens of a lesson, and the same begun again."""
    tokenizer = open_checkpoint(name).tokenizer
    assert tokenizer is not None, "a model that reads text"
    tokens = tokenizer.encode(LESSON.read_text("utf-8"))[:length]
    return {"a text that goes on": tokens, "a text that repeats": [*tokens, *tokens[: length // 4]]}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description="How often drafters are right, and how many tokens a step gives then.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", help="a smaller model with the same tokenizer")
    parser.add_argument("--drafts", type=int, default=DRAFTS)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=100, help="to generate, 2 or more")
    parser.add_argument("--prompt", type=int, default=300, help="tokens of text")
    asked = parser.parse_args()
    model = loaded(asked.model)
    limits = ModelLimits(model.config.vocab_size, 2 * asked.prompt + asked.tokens)
    options = EngineOptions(limits, max_sequences=1)
    small = loaded(asked.draft) if asked.draft else with_layers_of(Int4Linear, model)
    drafters: dict[str, Drafter] = {"n-gram": NGramDrafter(), "a draft model": ModelDrafter(small, limits, 1)}
    params = SamplingParams(max_tokens=asked.tokens, temperature=asked.temperature, seed=1, ignore_eos=True)
    for name, tokens in prompts(asked.model, asked.prompt).items():
        request = Request.create("r", tokens, params, limits)
        wanted = sum(run(build_p06(model, options), request), ())
        for kind, drafter in drafters.items():
            engine = speculative_engine(model, options, drafter, asked.drafts)
            given = run(engine, request)
            same = "the same tokens" if sum(given, ()) == wanted else "OTHER TOKENS"
            scheduler = engine.scheduler
            assert isinstance(scheduler, Speculative)
            rate = f"{scheduler.accepted / scheduler.drafted:.0%}" if scheduler.drafted else "none"
            per_step = (asked.tokens - 1) / (len(given) - 1)  # without the first, which ends the prompt
            print(f"{name:22}{kind:16}accepted {rate:>5}   tokens per step {per_step:4.2f}   {same}")


if __name__ == "__main__":
    main()
