"""The memory that a model takes, from its numbers alone: its weights, and the keys and values of one context.

An engine also plans its steps, CUDA graphs and tables (`execution/memory/plan.py`). Weights and one context decide
whether a model fits at all. Torch-free.
"""

from gradus.cache.windows import most_pages
from gradus.config.options import DEFAULT_PAGE_SIZE
from gradus.models.config import ModelConfig, parameter_count


def weight_bytes(config: ModelConfig, bytes_per_weight: int = 2) -> int:
    """Bytes of all weights. bytes_per_weight: 2 in bfloat16 and float16, 4 in float32."""
    return parameter_count(config) * bytes_per_weight


def context_bytes(config: ModelConfig, tokens: int, bytes_per_value: int = 2) -> int:
    """Bytes of the pages that hold a context's keys and values while it decodes, in whole pages as the cache has them.

    A layer with a window keeps the pages that its next query sees. A layer that attends to another's keys and values
    keeps none.
    """
    held = 0
    for layer, window in enumerate(config.windows):
        if config.stores_kv(layer):
            sizes = config.layer(layer)
            positions = DEFAULT_PAGE_SIZE * most_pages(tokens, 1, window, DEFAULT_PAGE_SIZE)
            held += positions * 2 * sizes.num_kv_heads * sizes.head_dim * bytes_per_value
    return held
