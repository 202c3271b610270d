"""The memory that a model takes, from its numbers alone: its weights, and the keys and values of one context.

The plan adds an engine's steps, CUDA graphs and tables. Weights and one context decide whether a model fits at all.
Torch-free.
"""

from gradus.cache.groups import page_layout
from gradus.cache.windows import decoding_pages
from gradus.config.options import DEFAULT_PAGE_SIZE
from gradus.models.config import ModelConfig, parameter_count

KV_BYTES = {"bfloat16": (2, 0), "fp8": (1, 4)}
"""The formats of keys and values: bytes of a number, and of the scale of each head's key, or value."""


def weight_bytes(config: ModelConfig, bytes_per_weight: int = 2) -> int:
    """Bytes of all weights. bytes_per_weight: 2 in bfloat16 and float16, 4 in float32."""
    return parameter_count(config) * bytes_per_weight


def context_pages(config: ModelConfig, tokens: int) -> int:
    """Count the pages that hold a context's keys and values while it decodes.

    Groups with a window keep the pages that their next query sees. Layers that attend to another's keys and values
    have no pages.
    """
    windows = [group.window for group in page_layout(config).groups]
    return decoding_pages(tokens, windows, DEFAULT_PAGE_SIZE)


def context_bytes(config: ModelConfig, tokens: int, per_value: int = 2, per_scale: int = 0) -> int:
    """Bytes of `context_pages`. per_value, per_scale: see `KV_BYTES`."""
    position = page_layout(config).position_bytes(per_value, per_scale)
    return context_pages(config, tokens) * DEFAULT_PAGE_SIZE * position
