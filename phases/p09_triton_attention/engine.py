"""p09: p06 with Triton kernels. Attention reads the pages where they lie, and the model's other parts are fused."""

import logging
from dataclasses import replace

from gradus.assembly.final import EngineConfig
from gradus.assembly.final import build as compose
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.kernels import missing
from gradus.models import Model
from phases.p04_paged_cache.engine import paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.engine import BUDGETS, USES
from phases.p06_chunked_prefill.scheduler import ChunkedPrefill

__all__ = ["USES", "build"]


def build(model: Model, options: EngineOptions) -> Engine:
    budget = options.token_budget or BUDGETS[model.device.type]
    if reason := missing(model.device.type):
        logging.getLogger(__name__).warning("p09 runs without its kernels, as p06 does: %s", reason)
        cache = PrefixCache(options.cache_blocks, options.page_size)
        return paged_engine(model, options, ChunkedPrefill(cache, options.max_sequences, budget))
    return compose(model, EngineConfig.of(replace(options, token_budget=budget), graphs=False, overlap=False))
