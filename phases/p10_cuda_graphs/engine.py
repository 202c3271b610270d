"""p10: p09 without waits. Steps of decodes are replayed from CUDA graphs, and planned while the one before runs."""

import logging

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.kernels import missing
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p00_baseline.runner import ModelRunner
from phases.p04_paged_cache.attention import GatherAttention, PageTensors
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.engine import BUDGETS, USES
from phases.p10_cuda_graphs.runner import AheadRunner
from phases.p10_cuda_graphs.scheduler import PlanningAhead

__all__ = ["USES", "build"]


def build(model: Model, options: EngineOptions) -> Engine:
    cache = PrefixCache(options.cache_blocks, options.page_size)
    budget = options.token_budget or BUDGETS[model.device.type]
    scheduler = PlanningAhead(cache, options.max_sequences, budget)
    sampler = Sampler(model.config.vocab_size, model.device)
    return Engine(scheduler, runner(model, options, sampler), options.limits, lag=1)


def runner(model: Model, options: EngineOptions, sampler: Sampler) -> ModelRunner:
    storage = PageTensors(model.config, options.cache_blocks, options.page_size, model.dtype, model.device)
    slots = options.max_sequences
    if reason := missing(str(model.device)):
        logging.getLogger(__name__).warning("the phase runs without kernel and graphs: %s", reason)
        return AheadRunner(model, GatherAttention(model.config, storage), sampler, slots)
    from phases.p10_cuda_graphs.graph_runner import CudaGraphs, GraphAttention, GraphRunner  # Triton is not everywhere

    attention = GraphAttention(model.config, storage)
    if reason := unrecordable(model):
        logging.getLogger(__name__).warning("the phase runs without graphs: %s", reason)
        return AheadRunner(model, attention, sampler, slots)
    pages = -(-options.limits.context_length // options.page_size)
    return GraphRunner(model, attention, sampler, slots, pages, CudaGraphs())


def unrecordable(model: Model) -> str | None:
    """Say in a phrase why no graph can hold a step of this model; None if one can."""
    if any(model.config.experts):
        return f"the host reads how many rows each expert of {model.config.family} has (the final engine's does not)"
    return None
