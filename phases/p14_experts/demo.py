"""One user, then more and more: how many experts does a step read, and how long does it take?

    gradus demo p14

The model's MLPs are cut into 16 slices, and random routers choose two for each token. Its text means nothing, and its
steps take as long as those of a model that was trained so.
"""

from collections.abc import Iterator
from statistics import median

import torch

from gradus.loading import load_model, open_checkpoint
from gradus.models import Model
from phases.p14_experts.distinct import expected_distinct
from phases.p14_experts.slices import random_routers, sliced
from phases.p14_experts.watch import SLICES, TAKEN, watched

QUESTION = "An MLP is cut into 16 experts, and a token takes two. How many of them does a step read?"
LOOK = (
    "One token reads two experts. Each further user brings tokens that choose for themselves, and soon nearly all "
    "experts are read in every step. Fewer than predicted are, where tokens choose alike: no one has trained these "
    "routers to balance. A step becomes longer with the number of experts, and a token cheaper with that of users."
)
BATCHES, TOKENS, COLUMNS = (1, 2, 4, 8, 16), 6, 32


def decodes(model: Model, users: int) -> tuple[float, float]:
    """Experts that a step reads, the average over layers and steps, and the median of its seconds. The step that
    computes the prompts is left out."""
    prompts = {f"user {number}": [(97 * number + 13 * place) % 256 for place in range(6)] for number in range(users)}
    steps = watched(model, prompts, TOKENS, temperature=1.0)[1:]
    read = [len(chosen.unique()) for step in steps for chosen in step.chosen]
    return sum(read) / len(read), median(step.seconds for step in steps)


def show(model: str) -> Iterator[str]:
    """Yield the lines of the demo. Raises ConfigError for a model that cannot be cut."""
    yield f"{QUESTION}\n"
    dense = load_model(open_checkpoint(model), dtype=torch.float32, device="cpu")
    cut = sliced(dense, SLICES, TAKEN, random_routers(dense, SLICES))
    decodes(cut, 1)  # warm
    yield f"users{'experts read':>{COLUMNS + 4}}  predicted  ms per step  ms per token"
    for users in BATCHES:
        read, seconds = decodes(cut, users)
        bar = "#" * round(COLUMNS * read / SLICES)
        predicted, took = expected_distinct(SLICES, TAKEN, users), 1e3 * seconds
        yield f"{users:5}  {bar:{COLUMNS}}{read:5.1f}{predicted:11.1f}{took:13.1f}{took / users:14.1f}"
    yield f"\n{LOOK}"
