"""config.json of Llama and SmolLM3."""

from typing import Any

from gradus.errors import ConfigError
from gradus.models.config import ModelConfig
from gradus.models.families.hf.fields import Fields, shown
from gradus.models.families.hf.ropes import read_rope, rope_section
from gradus.models.families.hf.shared import (
    common_rotary,
    layer_count,
    layer_types,
    rotary,
    some_window,
    windows_by_type,
)


def read_llama(fields: Fields) -> ModelConfig:
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    return rotary(
        fields, family="llama", bos=1, eos=2, attention_bias=bias, attention_output_bias=bias, mlp_bias=mlp_bias
    )


def write_llama(config: ModelConfig) -> dict[str, Any]:
    """Write Llama's configuration, or Mistral's, which adds one window for all layers."""
    window = config.windows[0] if config.windows else None
    kind = {"model_type": "llama"} if window is None else {"model_type": "mistral", "sliding_window": window}
    return common_rotary(config) | kind | {"mlp_bias": config.mlp_bias}


def read_smollm3(fields: Fields) -> ModelConfig:
    """Llama in which some layers do not turn queries and keys; usually every fourth."""
    layers, context = layer_count(fields), fields.integer("max_position_embeddings")
    interval = fields.integer("no_rope_layer_interval", 4)
    turns = fields.raw.get("no_rope_layers")
    turns = [int((layer + 1) % interval != 0) for layer in range(layers)] if turns is None else turns
    if not isinstance(turns, list) or len(turns) < layers or not all(each in (0, 1) for each in turns):
        raise ConfigError(
            f"model configuration: {fields.path}no_rope_layers must be a list of 0 and 1, one for each layer at least, "
            f"got {shown(turns)}"
        )
    window = fields.integer("sliding_window") if fields.has("sliding_window") else None
    window = window if fields.boolean("use_sliding_window", False) else None
    usual = tuple(None if turn else window for turn in turns[:layers])
    rope = read_rope(rope_section(fields, context), fields.number("rope_theta", 2e6), context)
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    return rotary(
        fields,
        family="smollm3",
        kv_heads=4,
        bos=128_000,
        eos=128_001,
        ropes=tuple(rope if turn else None for turn in turns[:layers]),
        windows=windows_by_type(fields, window, usual),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=mlp_bias,
        tie_embeddings=fields.boolean("tie_word_embeddings", True),
    )


def write_smollm3(config: ModelConfig) -> dict[str, Any]:
    window = some_window(config)
    windows = {"use_sliding_window": True, "sliding_window": window, "layer_types": layer_types(config)}
    return (
        common_rotary(config)
        | {"model_type": "smollm3", "mlp_bias": config.mlp_bias}
        | {"no_rope_layers": [int(rope is not None) for rope in config.ropes]}
        | ({} if window is None else windows)
    )
