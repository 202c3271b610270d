"""p02: several sequences per step, as one padded rectangle."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p02_static_batching.padded import PaddedAttention, PaddedRunner
from phases.p02_static_batching.scheduler import StaticBatching
from phases.p02_static_batching.slots import Slots, SlotTensors


def build(model: Model, options: EngineOptions) -> Engine:
    capacity, count = options.limits.context_length, options.max_sequences
    tensors = SlotTensors(model.config, count, capacity, model.dtype, model.device)
    attention = PaddedAttention(model.config, tensors)
    runner = PaddedRunner(model, attention, Sampler(model.config.vocab_size, model.device))
    return Engine(StaticBatching(Slots(capacity, count), count), runner, options.limits)
