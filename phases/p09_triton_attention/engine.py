"""p09: p06 with a Triton kernel for attention. It reads the pages where they lie, so nothing is gathered."""

import logging

from gradus.cache.radix import PrefixIndex
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.kernels import missing
from gradus.models import Model
from phases.p04_paged_cache.engine import paged_engine
from phases.p06_chunked_prefill.engine import BUDGETS, USES

__all__ = ["USES", "build"]


def build(model: Model, options: EngineOptions) -> Engine:
    budget = options.token_budget or BUDGETS[model.device.type]
    if reason := missing(model.device.type):
        logging.getLogger(__name__).warning("p09 runs without its kernel, as p06 does: %s", reason)
        return paged_engine(model, options, PrefixIndex(), budget)
    from phases.p09_triton_attention.attention import TritonAttention  # here, since Triton is not everywhere

    return paged_engine(model, options, PrefixIndex(), budget, TritonAttention)
