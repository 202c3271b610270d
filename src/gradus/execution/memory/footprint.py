"""The memory that a model takes, from its numbers alone: its weights, and the keys and values of one context.

The plan adds an engine's steps, CUDA graphs and tables. Weights and one context decide whether a model fits at all.
Torch-free.
"""

from gradus.cache.groups import page_layout
from gradus.cache.windows import most_pages
from gradus.config.options import DEFAULT_PAGE_SIZE
from gradus.models.config import ModelConfig, parameter_count


def weight_bytes(config: ModelConfig, bytes_per_weight: int = 2) -> int:
    """Bytes of all weights. bytes_per_weight: 2 in bfloat16 and float16, 4 in float32."""
    return parameter_count(config) * bytes_per_weight


def context_bytes(config: ModelConfig, tokens: int, bytes_per_value: int = 2) -> int:
    """Bytes of the pages that hold a context's keys and values while it decodes, in whole pages as the cache has them.

    Groups with a window keep the pages that their next query sees. Layers that attend to another's keys and values
    have no pages.
    """
    layout = page_layout(config)
    pages = sum(most_pages(tokens, 1, group.window, DEFAULT_PAGE_SIZE) for group in layout.groups)
    return pages * DEFAULT_PAGE_SIZE * layout.position_bytes(bytes_per_value)
