"""p09: p06 with a Triton kernel for attention. It reads the pages where they lie, so nothing is gathered."""

import logging

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
    cache = PrefixCache(options.cache_blocks, options.page_size)
    budget = options.token_budget or BUDGETS[model.device.type]
    scheduler = ChunkedPrefill(cache, options.max_sequences, budget)
    if reason := missing(str(model.device)):
        logging.getLogger(__name__).warning("p09 runs without its kernel, as p06 does: %s", reason)
        return paged_engine(model, options, scheduler)
    from phases.p09_triton_attention.attention import TritonAttention  # here, since Triton is not everywhere

    return paged_engine(model, options, scheduler, TritonAttention)
