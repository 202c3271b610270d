"""config.json of Qwen2 and Qwen3."""

from typing import Any

from gradus.models.config import ModelConfig
from gradus.models.families.hf.fields import Fields
from gradus.models.families.hf.shared import (
    common_rotary,
    layer_count,
    layer_types,
    rotary,
    some_window,
    windows_by_type,
)


def read_qwen2(fields: Fields) -> ModelConfig:
    """Llama with biases on queries, keys and values, always; no key says so."""
    return rotary(fields, family="qwen2", kv_heads=32, attention_bias=True, windows=_windows(fields))


def read_qwen3(fields: Fields) -> ModelConfig:
    bias = fields.boolean("attention_bias", False)
    return rotary(
        fields,
        family="qwen3",
        kv_heads=32,
        head_dim=128,
        attention_bias=bias,
        attention_output_bias=bias,
        windows=_windows(fields),
        qk_norm=True,
    )


def write_qwen(config: ModelConfig) -> dict[str, Any]:
    """Both Qwen2 and Qwen3, whose names are those of our families."""
    window = some_window(config)
    windows = {"use_sliding_window": True, "sliding_window": window, "layer_types": layer_types(config)}
    return common_rotary(config) | {"model_type": config.family} | ({} if window is None else windows)


def read_window(fields: Fields) -> int | None:
    """The length of Qwen's windows, in whichever layers they are; None: off."""
    return fields.integer("sliding_window", 4096) if fields.boolean("use_sliding_window", False) else None


def _windows(fields: Fields) -> tuple[int | None, ...]:
    """The windows of Qwen2 and Qwen3: off unless a key turns them on, and then only in the last layers."""
    window = read_window(fields)
    first = fields.integer("max_window_layers", 28, least=0)  # the layers from here on have the window
    usual = tuple(window if layer >= first else None for layer in range(layer_count(fields)))
    return windows_by_type(fields, window, usual)
