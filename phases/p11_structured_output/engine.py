"""p11: p10 with masks. A request may say what its answer must be, and no token is drawn that would break it."""

from dataclasses import replace

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.engine import BUDGETS, USES
from phases.p10_cuda_graphs.engine import runner
from phases.p11_structured_output.grammars import Grammars
from phases.p11_structured_output.sampler import MaskingSampler
from phases.p11_structured_output.scheduler import Constrained

__all__ = ["USES", "build"]


def build(model: Model, options: EngineOptions) -> Engine:
    """Without a vocabulary there are no masks, and requests that need one are refused."""
    limits = replace(options.limits, structured=options.vocabulary is not None)
    grammars = Grammars(options.vocabulary() if options.vocabulary else (), limits.eos_token_ids)
    cache = PrefixCache(options.cache_blocks, options.page_size)
    budget = options.token_budget or BUDGETS[model.device.type]
    scheduler = Constrained(cache, options.max_sequences, budget, grammars)
    sampler = MaskingSampler(model.config.vocab_size, model.device, grammars)
    return Engine(scheduler, runner(model, options, sampler), limits, lag=1)
