"""Measure the cost of a bit: a real model whose layers' weights were rounded, against the model as it was.

    python -m phases.p07_quantization.quality --model smollm2-135m --bits 4

The text is the course's own: AWQ and GPTQ may look at the lesson of p01, and all are judged on that of p03. The rounded
weights are multiplied in floating point, so this measures only the rounding, not its speed.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from gradus.loading import load_model, open_checkpoint
from gradus.models import Linear, MatrixId, Model
from phases.p00_baseline.no_cache import Recompute
from phases.p07_quantization.linears import matrices, with_layers_of
from phases.p07_quantization.one_layer import WAYS, Way

COURSE = Path(__file__).parents[1]
SEEN, JUDGED = COURSE / "p01_kv_cache" / "README.md", COURSE / "p03_continuous_batching" / "README.md"


class Watched(Linear):
    """Keeps the inputs of its last product."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return super().forward(x)


def log_probabilities(model: Model, tokens: list[int], attention: Recompute | None = None) -> Tensor:
    """Compute the model's log-probabilities after each token: [T, V]. attention: p00's without one."""
    hidden = model(torch.tensor(tokens), torch.arange(len(tokens)), attention or Recompute(model.config))
    return model.logits(hidden).log_softmax(dim=-1)


def inputs_of(model: Model, tokens: list[int]) -> dict[MatrixId, Tensor]:
    """Collect the inputs [T, K] of each of the layers' matrices while the model reads these tokens."""
    watched = with_layers_of(Watched, model)
    log_probabilities(watched, tokens)
    return {part.matrix_id: part.seen.float() for part in matrices(watched) if isinstance(part, Watched)}


def rounded(model: Model, inputs: dict[MatrixId, Tensor], way: Way, bits: int) -> Model:
    """The model with the weights of its layers rounded, and kept wide."""
    made = with_layers_of(Linear, model)
    for part in matrices(made):
        part.weight.copy_(way(inputs[part.matrix_id], part.weight.float(), bits))
    return made


def judge(wanted: Tensor, found: Tensor, tokens: list[int]) -> tuple[float, float, float]:
    """Compare two opinions [T, V] on the same tokens: KL divergence in nats, the share of positions where both like the
    same token best, and the perplexity of the second."""
    divergence = (wanted.exp() * (wanted - found)).sum(dim=-1).mean()
    same = (wanted.argmax(dim=-1) == found.argmax(dim=-1)).float().mean()
    surprise = -found[:-1].gather(1, torch.tensor(tokens[1:])[:, None]).mean()
    return float(divergence), float(same), float(surprise.exp())


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description="What a bit costs: a real model with rounded weights.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512, help="of each of the two texts")
    asked = parser.parse_args()
    checkpoint = open_checkpoint(asked.model)
    assert checkpoint.tokenizer is not None, "a model that reads text"
    model = load_model(checkpoint, dtype=torch.float32, device="cpu")
    seen, judged = (checkpoint.tokenizer.encode(text.read_text("utf-8"))[: asked.tokens] for text in (SEEN, JUDGED))
    inputs, wanted = inputs_of(model, seen), log_probabilities(model, judged)
    ways: dict[str, Way] = {"not rounded": lambda x, w, bits: w, **WAYS}
    print(f"{asked.bits} bits per weight".ljust(26) + "KL divergence   same best token   perplexity")
    for name, way in ways.items():
        found = log_probabilities(rounded(model, inputs, way, asked.bits), judged)
        divergence, same, perplexity = judge(wanted, found, judged)
        print(f"{name:26}{divergence:13.4f}{same:17.1%}{perplexity:13.2f}")


if __name__ == "__main__":
    main()
