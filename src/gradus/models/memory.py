"""What a model takes in memory, by its numbers alone: its weights, and the keys and values of one context.

An engine plans with more (its steps, CUDA graphs, tables: `execution/memory/plan.py`); these two are what a model
brings with it, and what decides whether it fits at all. Torch-free.
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
