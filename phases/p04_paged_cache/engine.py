"""p04: p03 with pages for slots. A sequence takes memory as it grows, and the batch is as large as memory allows."""

from collections.abc import Callable

from gradus.attention.backend import AttentionBackend
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model, ModelConfig
from gradus.sampling.sampler import Sampler
from phases.p00_baseline.runner import ModelRunner
from phases.p04_paged_cache.attention import GatherAttention, PageTensors
from phases.p04_paged_cache.cache import PagedCache
from phases.p04_paged_cache.scheduler import PagedBatching

USES = frozenset({"page_size", "cache_tokens"})  # the optional settings that this phase uses


def build(model: Model, options: EngineOptions) -> Engine:
    cache = PagedCache(options.cache_blocks, options.page_size)
    return paged_engine(model, options, PagedBatching(cache, options.max_sequences))


def paged_engine(
    model: Model,
    options: EngineOptions,
    scheduler: PagedBatching,
    attention_backend: Callable[[ModelConfig, PageTensors], AttentionBackend] = GatherAttention,
    storage: PageTensors | None = None,
) -> Engine:
    """Build an engine whose cache has pages. p05 and p06 pass another scheduler and cache, p09 another backend.

    storage: where the cache itself moves pages in and out (p05's tiers).
    """
    storage = storage or page_tensors(model, options)
    attention = attention_backend(model.config, storage)
    runner = ModelRunner(model, attention, Sampler(model.config.vocab_size, model.device))
    return Engine(scheduler, runner, options.limits)


def page_tensors(model: Model, options: EngineOptions) -> PageTensors:
    return PageTensors(model.config, options.cache_blocks, options.page_size, model.dtype, model.device)
