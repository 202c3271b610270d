"""The open task: a long prompt's first token in a third of the memory.

A step of 500 rows makes tensors of 500 rows: normalized, projected, rotated, gated. Most of them could be made for some
rows at a time. The peak of all that is alive at once decides how long a prompt may be on a given device.
"""

from random import Random
from typing import Any

from gradus.course.open.declaration import Open, Trial
from gradus.course.open.workload import Ask, options, play, prompt, small_model

START = '''"""p00's open task. So far this is p00 itself, which scores 1.00."""

from torch import Tensor

from gradus.attention.batch import Batch
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p00_baseline.no_cache import NoCache, Recompute
from phases.p00_baseline.runner import ModelRunner
from phases.p00_baseline.scheduler import OneAtATime


class Yours(ModelRunner):
    """Change what you like. `self.model` has `embedding`, `rotations`, `layers` and `norm`."""

    def forward(self, batch: Batch) -> Tensor:
        self.attention.prepare(batch)
        return self.model(batch.token_ids, batch.positions, self.attention)


def build(model: Model, options: EngineOptions) -> Engine:
    runner = Yours(model, Recompute(model.config), Sampler(model.config.vocab_size, model.device))
    return Engine(OneAtATime(NoCache()), runner, options.limits)
'''


def trial(yours: Any, seed: int) -> Trial:
    random, model = Random(seed), small_model(seed)
    wanted = [Ask("r", prompt(random, random.randint(480, 508)), 1)]
    played = play(yours.build, model, options(model, max_sequences=1), wanted, storage=True)
    return {"peak": max(step.peak for step in played.steps), "rows": played.rows}


TASK = Open(
    goal="Compute the first token of a prompt of 500 tokens with a third of the memory that p00 needs for intermediate "
    "results, in no more rows.",
    counts="peak",
    unit="bytes alive at once",
    reach=0.33,
    bounds={"rows": 1.0},
    trial=trial,
    start=START,
)
