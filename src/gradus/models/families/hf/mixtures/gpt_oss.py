"""config.json of gpt-oss."""

import math
from dataclasses import replace
from typing import Any

from gradus.models.config import CLAMP, CLAMPED, STEEPNESS, Experts, ModelConfig, Rope, Yarn
from gradus.models.families.hf.experts import expert_count, some_experts, with_dense_layers
from gradus.models.families.hf.fields import Fields
from gradus.models.families.hf.ropes import read_rope, rope_section
from gradus.models.families.hf.shared import (
    common_rotary,
    layer_count,
    layer_types,
    rotary,
    some_window,
    windows_by_type,
)

GATE = {"swiglu_limit": CLAMP, "swiglu_alpha": STEEPNESS}
THETA = 150_000.0


def read_gpt_oss(fields: Fields) -> ModelConfig:
    for key, number in GATE.items():
        if fields.number(key, number) != number:
            raise fields.fault(key, f"is {fields.number(key)}, but the gate is computed with {number} alone", number)
    fields.choice("hidden_act", "silu", {"silu": "silu"})  # the gate's, whatever the key
    layers = layer_count(fields)
    experts = Experts(
        count=expert_count(fields, 128),
        chosen=fields.integer("num_experts_per_tok", 4),
        width=fields.integer("intermediate_size", 2880),
        biased=True,
    )
    bias = fields.boolean("attention_bias", True)
    read = rotary(
        fields,
        family="gpt_oss",
        kv_heads=8,
        head_dim=64,
        attention_bias=bias,
        attention_output_bias=bias,
        rope=_rope(fields),
        windows=_windows(fields, layers),
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        attention_sinks=True,
        experts=(experts,) * layers,
    )
    return replace(with_dense_layers(read), activation=CLAMPED)


def write_gpt_oss(config: ModelConfig) -> dict[str, Any]:
    experts, window = some_experts(config), some_window(config)
    return (
        common_rotary(config)
        | GATE
        | {
            "model_type": "gpt_oss",
            "intermediate_size": experts.width,
            "num_local_experts": experts.count,
            "num_experts_per_tok": experts.chosen,
            "sliding_window": window,
            "layer_types": layer_types(config),
        }
    )


def _rope(fields: Fields) -> Rope:
    """YaRN by 32 from 4,096 tokens on, without rounding, unless the file says otherwise."""
    context = fields.integer("max_position_embeddings")
    if not fields.has("rope_parameters") and not fields.has("rope_scaling"):
        yarn = Yarn(32.0, 4096, whole=False, amplitude=0.1 * math.log(32.0) + 1.0)
        return Rope(fields.number("rope_theta", THETA), yarn)
    return read_rope(rope_section(fields, context), fields.number("rope_theta", THETA), context)


def _windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """A window in every second layer, the first being one of them."""
    window = None if "sliding_window" in fields.raw and not fields.has("sliding_window") else 128
    window = fields.integer("sliding_window") if fields.has("sliding_window") else window
    return windows_by_type(fields, window, tuple(None if layer % 2 else window for layer in range(layers)))
