"""p00, the baseline: one sequence at a time, and everything computed again for every token."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p00_baseline.no_cache import NoCache, Recompute
from phases.p00_baseline.runner import ModelRunner
from phases.p00_baseline.scheduler import OneAtATime

CAPACITY = 1  # sequences that run at once, whatever the options allow


def build(model: Model, options: EngineOptions) -> Engine:
    attention = Recompute(model.config)
    runner = ModelRunner(model, attention, Sampler(model.config.vocab_size, model.device))
    return Engine(OneAtATime(NoCache()), runner, options.limits)
