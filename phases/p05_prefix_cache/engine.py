"""p05: p04 with an index of what its pages hold. A prompt starts where an earlier one that began alike is stored."""

from gradus.cache.radix import PrefixIndex
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p04_paged_cache.engine import USES, paged_engine

__all__ = ["USES", "build"]


def build(model: Model, options: EngineOptions) -> Engine:
    return paged_engine(model, options, PrefixIndex())
