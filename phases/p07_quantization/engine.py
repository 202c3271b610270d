"""p07: p06 over a model whose layers keep fewer bits for each weight.

On a CPU that is four bits, multiplied as they are (`fused.py`). On a GPU, and for a model that is too small to gain
from it, it is eight bits, widened by torch for each product.
"""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import LinearFactory, Model
from phases.p04_paged_cache.engine import paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.engine import BUDGETS, USES
from phases.p06_chunked_prefill.scheduler import ChunkedPrefill
from phases.p07_quantization.fused import FusedInt4Linear
from phases.p07_quantization.linears import Int8Linear, matrices, with_layers_of

__all__ = ["USES", "build"]

WORTH = 1 << 24  # weights in the layers, from which four bits pay: fewer stay in a processor's caches, however wide


def build(model: Model, options: EngineOptions) -> Engine:
    return quantized_engine(model, options, linear_for(model))


def linear_for(model: Model) -> LinearFactory:
    """Choose the class of the layers' matrices for this model on its device."""
    weights = sum(sum(matrix.out_features) * matrix.in_features for matrix in matrices(model))
    return FusedInt4Linear if model.device.type == "cpu" and weights >= WORTH else Int8Linear


def quantized_engine(model: Model, options: EngineOptions, linear: LinearFactory) -> Engine:
    """Build the engine. linear: the class of the layers' matrices, such as `Int4Linear`. `model` itself is
    unchanged."""
    cache = PrefixCache(options.cache_blocks, options.page_size)
    budget = options.token_budget or BUDGETS[model.device.type]
    scheduler = ChunkedPrefill(cache, options.max_sequences, budget)
    return paged_engine(with_layers_of(linear, model), options, scheduler)
