"""p14: p06 over a model whose experts multiply sorted rows, group by group. A dense model runs as in p06."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p04_paged_cache.engine import paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.engine import BUDGETS, USES
from phases.p06_chunked_prefill.scheduler import ChunkedPrefill
from phases.p14_experts.mixture import with_sorted_mixtures

__all__ = ["USES", "build"]


def build(model: Model, options: EngineOptions) -> Engine:
    cache = PrefixCache(options.cache_blocks, options.page_size)
    budget = options.token_budget or BUDGETS[model.device.type]
    scheduler = ChunkedPrefill(cache, options.max_sequences, budget)
    return paged_engine(with_sorted_mixtures(model), options, scheduler)
