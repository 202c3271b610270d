"""p06: p05 with a budget of tokens per step. A long prompt runs in chunks, together with the others' decodes."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p04_paged_cache.engine import paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.scheduler import ChunkedPrefill

USES = frozenset({"page_size", "cache_tokens", "token_budget"})  # the optional settings that this phase uses

# Up to some number of tokens a step takes hardly longer than for one, since it must read all weights anyway; beyond it,
# each token adds its own time. A budget far beyond that number delays the decodes, one below it wastes the step.
BUDGETS = {"cpu": 256, "cuda": 2048}


def build(model: Model, options: EngineOptions) -> Engine:
    cache = PrefixCache(options.cache_blocks, options.page_size)
    budget = options.token_budget or BUDGETS[model.device.type]
    return paged_engine(model, options, ChunkedPrefill(cache, options.max_sequences, budget))
