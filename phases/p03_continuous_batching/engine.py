"""p03: the batch is chosen anew at every step. No padding: the runner of p00 and p01 is back."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p00_baseline.runner import ModelRunner
from phases.p02_static_batching.slots import Slots, SlotTensors
from phases.p03_continuous_batching.mixed import MixedAttention
from phases.p03_continuous_batching.scheduler import ContinuousBatching


def build(model: Model, options: EngineOptions) -> Engine:
    capacity, count = options.limits.context_length, options.max_sequences
    tensors = SlotTensors(model.config, count, capacity, model.dtype, model.device)
    attention = MixedAttention(model.config, tensors)
    runner = ModelRunner(model, attention, Sampler(model.config.vocab_size, model.device))
    return Engine(ContinuousBatching(Slots(capacity, count), count), runner, options.limits)
