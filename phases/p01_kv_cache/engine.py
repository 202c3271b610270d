"""p01: p00 with a key-value cache. The loop, the model, the runner and even the scheduler are unchanged."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p00_baseline.runner import ModelRunner
from phases.p00_baseline.scheduler import OneAtATime
from phases.p01_kv_cache.contiguous import Contiguous, ContiguousAttention

CAPACITY = 1  # sequences that run at once, whatever the options allow


def build(model: Model, options: EngineOptions) -> Engine:
    capacity = options.limits.context_length
    attention = ContiguousAttention(model.config, capacity, model.dtype, model.device)
    runner = ModelRunner(model, attention, Sampler(model.config.vocab_size, model.device))
    return Engine(OneAtATime(Contiguous(capacity)), runner, options.limits)
