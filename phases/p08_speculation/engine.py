"""p08: p06 with drafts after its decodes. A step gives a sequence between one token and one more than it guessed."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p04_paged_cache.engine import paged_engine
from phases.p06_chunked_prefill.engine import BUDGETS, USES
from phases.p08_speculation.cache import RollbackCache
from phases.p08_speculation.drafting import Drafter, NGramDrafter
from phases.p08_speculation.scheduler import Speculative

__all__ = ["USES", "build"]

DRAFTS = 4


def build(model: Model, options: EngineOptions) -> Engine:
    return speculative_engine(model, options, NGramDrafter())


def speculative_engine(model: Model, options: EngineOptions, drafter: Drafter, drafts: int = DRAFTS) -> Engine:
    """drafts: most tokens that `drafter` may guess for a sequence in a step."""
    cache = RollbackCache(options.cache_blocks, options.page_size)
    budget = options.token_budget or BUDGETS[model.device.type]
    return paged_engine(model, options, Speculative(cache, options.max_sequences, budget, drafter, drafts))
