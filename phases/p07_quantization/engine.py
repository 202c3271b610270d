"""p07: p06 over a model whose layers keep a byte for each weight."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import LinearFactory, Model
from phases.p04_paged_cache.engine import paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.engine import BUDGETS, USES
from phases.p06_chunked_prefill.scheduler import ChunkedPrefill
from phases.p07_quantization.linears import Int8Linear, with_layers_of

__all__ = ["USES", "build"]


def build(model: Model, options: EngineOptions) -> Engine:
    return quantized_engine(model, options, Int8Linear)


def quantized_engine(model: Model, options: EngineOptions, linear: LinearFactory) -> Engine:
    """Build the engine. linear: the class of the layers' matrices, such as `Int4Linear`. `model` itself is
    unchanged."""
    cache = PrefixCache(options.cache_blocks, options.page_size)
    budget = options.token_budget or BUDGETS[model.device.type]
    scheduler = ChunkedPrefill(cache, options.max_sequences, budget)
    return paged_engine(with_layers_of(linear, model), options, scheduler)
