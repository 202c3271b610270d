"""p09: p06 with Triton kernels. Attention reads the pages where they lie, so nothing is gathered.

A GPU runs the attention kernel alone, as the lesson's tables measured it. Triton's interpreter runs all that the lesson
writes: the norm too, and decodes with their keys split.
"""

import logging

from gradus.attention.backend import AttentionBackend
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.kernels import interpreted, missing
from gradus.models import Model, ModelConfig
from phases.p04_paged_cache.attention import PageTensors
from phases.p04_paged_cache.engine import paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.engine import BUDGETS, USES
from phases.p06_chunked_prefill.scheduler import ChunkedPrefill

__all__ = ["USES", "build"]


def build(model: Model, options: EngineOptions) -> Engine:
    cache = PrefixCache(options.cache_blocks, options.page_size)
    budget = options.token_budget or BUDGETS[model.device.type]
    scheduler = ChunkedPrefill(cache, options.max_sequences, budget)
    if interpreted():
        from phases.p09_triton_attention.layers import with_norm_kernel

        return paged_engine(with_norm_kernel(model), options, scheduler, split)
    if reason := missing(str(model.device)):
        logging.getLogger(__name__).warning("p09 runs without its kernel, as p06 does: %s", reason)
        return paged_engine(model, options, scheduler)
    from phases.p09_triton_attention.attention import TritonAttention  # here, since Triton is not everywhere

    return paged_engine(model, options, scheduler, TritonAttention)


def split(config: ModelConfig, storage: PageTensors) -> AttentionBackend:
    from phases.p09_triton_attention.attention import TritonAttention
    from phases.p09_triton_attention.splits import attention

    return TritonAttention(config, storage, attention)
