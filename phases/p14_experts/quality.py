"""Measure what is lost if a dense model is cut into slices and a token takes only some of them.

    python -m phases.p14_experts.quality
    python -m phases.p14_experts.quality --experts 8

The text is the course's own: routers are fitted to the lessons of p00, p01, p04 and p05, and judged on that of p03.
"""

import argparse
from collections.abc import Iterator

import torch

from gradus.errors import GradusError
from gradus.loading import load_model, open_checkpoint
from gradus.models import Model
from phases.p07_quantization.quality import COURSE, JUDGED, judge, log_probabilities
from phases.p14_experts.fitting import routers_for
from phases.p14_experts.slices import sliced

SEEN = [
    COURSE / folder / "README.md" for folder in ("p00_baseline", "p01_kv_cache", "p04_paged_cache", "p05_prefix_cache")
]
SEEN_TOKENS, JUDGED_TOKENS = 2048, 512
Judged = tuple[float, float, float]


def texts(model: str) -> tuple[list[int], list[int]]:
    """The tokens to fit routers to, and the tokens to judge by."""
    tokenizer = open_checkpoint(model).tokenizer
    assert tokenizer is not None, "a model that reads text"
    seen = [token for path in SEEN for token in tokenizer.encode(path.read_text("utf-8"))]
    return seen[:SEEN_TOKENS], tokenizer.encode(JUDGED.read_text("utf-8"))[:JUDGED_TOKENS]


def losses(model: Model, seen: list[int], judged: list[int], count: int) -> Iterator[tuple[int, Judged, Judged]]:
    """Yield, for numbers of slices from all down to a quarter: how many are taken, and what that does to the opinion
    of a router that always takes the first ones, and of a fitted one. See p07's `judge`."""
    wanted, fitted = log_probabilities(model, judged), routers_for(model, seen, count)
    for chosen in taken(count):
        routers = fitted if chosen < count else None
        found = [log_probabilities(sliced(model, count, chosen, each), judged) for each in (None, routers)]
        first, second = (judge(wanted, each, judged) for each in found)
        yield chosen, first, second


def taken(count: int) -> list[int]:
    """All, all but one and but two, then three quarters, half and a quarter."""
    return sorted({count, count - 1, count - 2, 3 * count // 4, count // 2, count // 4} - {0, -1}, reverse=True)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description="What is lost if a token takes some slices of a dense model.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--experts", type=int, default=16, help="slices of each MLP (16)")
    asked = parser.parse_args()
    try:
        model = load_model(open_checkpoint(asked.model), dtype=torch.float32, device="cpu")
        print("slices taken  the first ones: same best token, perplexity  a fitted router's")
        for chosen, first, fitted in losses(model, *texts(asked.model), asked.experts):
            shown = [f"{same:.0%}{perplexity:14,.1f}" for _, same, perplexity in (first, fitted)]
            print(f"{chosen:3} of {asked.experts:<6}{shown[0]:>30}{shown[1]:>28}")
    except GradusError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
