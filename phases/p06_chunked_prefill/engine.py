"""p06: p05 with a budget of tokens a step. Decodes come first, and a long prompt takes what they leave, in chunks."""

from gradus.cache.radix import PrefixIndex
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p04_paged_cache.engine import paged_engine

USES = frozenset({"page_size", "cache_tokens", "policy", "token_budget"})  # the optional settings that this phase heeds

# What a step costs hardly grows up to some number of tokens, for it must read all weights anyway; then it grows with
# each. A budget beyond that point delays the decodes, one below it wastes the step.
BUDGETS = {"cpu": 256, "cuda": 2048}


def build(model: Model, options: EngineOptions) -> Engine:
    budget = options.token_budget or BUDGETS[model.device.type]
    return paged_engine(model, options, PrefixIndex(), budget)
