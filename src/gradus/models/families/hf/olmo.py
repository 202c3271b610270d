"""config.json of OLMo 2 and OLMo 3."""

from typing import Any

from gradus.models.config import ModelConfig, Rope
from gradus.models.families.hf.fields import Fields
from gradus.models.families.hf.ropes import read_rope, refuse_partial, spelled_rope
from gradus.models.families.hf.shared import (
    common_rotary,
    layer_count,
    layer_types,
    rotary,
    some_window,
    windows_by_type,
)

TRAITS: dict[str, Any] = {"pre_norms": False, "post_norms": True, "qk_norm": True, "qk_norm_across_heads": True}


def read_olmo2(fields: Fields) -> ModelConfig:
    bias = fields.boolean("attention_bias", False)
    return rotary(
        fields,
        family="olmo2",
        eos=50_279,
        attention_bias=bias,
        attention_output_bias=bias,
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        **TRAITS,
    )


def read_olmo3(fields: Fields) -> ModelConfig:
    """OLMo 2 with a window in three of four layers, which have a rotary embedding of their own."""
    layers, window = layer_count(fields), fields.integer("sliding_window", 4096)
    usual = tuple(None if (layer + 1) % 4 == 0 else window for layer in range(layers))
    windows = windows_by_type(fields, window, usual)
    whole, sliding = _ropes(fields)
    bias = fields.boolean("attention_bias", False)
    return rotary(
        fields,
        family="olmo3",
        eos=50_279,
        ropes=tuple(whole if each is None else sliding for each in windows),
        windows=windows,
        attention_bias=bias,
        attention_output_bias=bias,
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        **TRAITS,
    )


def write_olmo2(config: ModelConfig) -> dict[str, Any]:
    return common_rotary(config) | {"model_type": "olmo2"}


def write_olmo3(config: ModelConfig) -> dict[str, Any]:
    by_kind = dict(zip(layer_types(config), config.ropes, strict=True))
    window = some_window(config) or config.context_length
    return common_rotary(config) | {
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": layer_types(config),
        "rope_parameters": {kind: spelled_rope(rope) for kind, rope in by_kind.items() if rope is not None},
    }


def _ropes(fields: Fields) -> tuple[Rope, Rope]:
    """Read two rotary embeddings: of layers that see everything, which may be scaled, and of layers with a window."""
    refuse_partial(fields)
    context, theta = fields.integer("max_position_embeddings"), fields.number("rope_theta", 5e5)
    parameters = fields.section("rope_parameters")
    sections = [parameters.section(kind) for kind in ("full_attention", "sliding_attention")]
    if not fields.has("rope_parameters"):
        sections[0] = fields.section("rope_scaling")
    whole, sliding = (read_rope(section, theta, context) for section in sections)
    return whole, sliding
