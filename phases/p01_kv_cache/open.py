"""The open task: a cache as large as what is in it.

p01 sets aside room for the longest sequence that there may be, and answers are short. A cache that grows has to copy
what it holds, or to attend to pieces; and what a step copies is alive as well.
"""

from random import Random
from typing import Any

from gradus.course.open.declaration import Open, Trial
from gradus.course.open.workload import Ask, options, play, prompt, small_model

START = '''"""p01's open task. So far this is p01 itself, which scores 1.00."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p00_baseline.runner import ModelRunner
from phases.p00_baseline.scheduler import OneAtATime
from phases.p01_kv_cache.contiguous import Contiguous, ContiguousAttention


class Yours(ContiguousAttention):
    """Change what you like: how much room there is, when it grows, and how attention reads it."""


def build(model: Model, options: EngineOptions) -> Engine:
    capacity = options.limits.context_length
    attention = Yours(model.config, capacity, model.dtype, model.device)
    runner = ModelRunner(model, attention, Sampler(model.config.vocab_size, model.device))
    return Engine(OneAtATime(Contiguous(capacity)), runner, options.limits)
'''


def trial(yours: Any, seed: int) -> Trial:
    random, model = Random(seed), small_model(seed)
    wanted = [Ask(f"r{number}", prompt(random, random.randint(8, 60)), random.randint(20, 120)) for number in range(3)]
    played = play(yours.build, model, options(model, max_sequences=1), wanted, storage=True)
    peaks = [step.peak for step in played.steps]
    return {"bytes": sum(peaks) / len(peaks), "rows": played.rows}


TASK = Open(
    goal="Run short answers in a context of 512 tokens with 30 % of the memory that p01 takes, on average over the "
    "steps. What a step copies counts, too.",
    counts="bytes",
    unit="bytes alive at once, at the worst moment of an average step",
    reach=0.3,
    bounds={"rows": 1.0},
    trial=trial,
    start=START,
)
