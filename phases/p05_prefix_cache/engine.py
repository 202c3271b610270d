"""p05: p04 with an index of its pages' tokens. A prompt starts after the longest prefix that was computed before."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p04_paged_cache.engine import USES, paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p05_prefix_cache.scheduler import PrefixBatching

__all__ = ["USES", "build"]


def build(model: Model, options: EngineOptions) -> Engine:
    cache = PrefixCache(options.cache_blocks, options.page_size)
    return paged_engine(model, options, PrefixBatching(cache, options.max_sequences))
