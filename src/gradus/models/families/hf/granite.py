"""config.json of Granite 3, and of Granite 4's dense models, whose type `granitemoehybrid` they share with others."""

from typing import Any

from gradus.models.config import ModelConfig
from gradus.models.families.hf.fields import Fields, shown
from gradus.models.families.hf.shared import common_rotary, layer_count, rotary
from gradus.models.families.unsupported import EXPERTS, STATES, Nearest

DENSE = Nearest("Granite-4.0-1B", "granitemoehybrid")


def read_granite(fields: Fields) -> ModelConfig:
    return _read(fields, "granite", mlp_bias=fields.boolean("mlp_bias", False))


def read_granite_hybrid(fields: Fields) -> ModelConfig:
    """Granite 4: dense where it has no experts and every layer attends."""
    experts = fields.integer("num_local_experts", 8, least=0)
    if experts:
        raise fields.fault("num_local_experts", f"is {experts}: {EXPERTS}; {DENSE} is the nearest that loads", 0)
    layers = layer_count(fields)
    kinds = fields.raw.get("layer_types") or fields.raw.get("layers_block_type") or ["linear_attention"] * layers
    others = [kind for kind in kinds if kind not in ("attention", "full_attention")] if isinstance(kinds, list) else []
    if others:
        problem = f"has {shown(others[0])} layers: {STATES}; {DENSE} is the nearest that loads"
        raise fields.fault("layer_types", problem, ["attention"] * layers)
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.fault("layer_types", f"must list {layers} layers, got {shown(kinds)}", ["attention"] * layers)
    turns = fields.text("position_embedding_type", "none") == "rope"
    own: dict[str, Any] = {} if turns else {"ropes": (None,) * layers}
    return _read(fields, "granite4", width_key="shared_intermediate_size", **own)


def write_granite(config: ModelConfig) -> dict[str, Any]:
    return _multipliers(config) | {"model_type": "granite", "mlp_bias": config.mlp_bias}


def write_granite_hybrid(config: ModelConfig) -> dict[str, Any]:
    turns = any(rope is not None for rope in config.ropes)
    return _multipliers(config) | {
        "model_type": "granitemoehybrid",
        "shared_intermediate_size": config.intermediate_size,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "layer_types": ["attention"] * config.num_layers,
        "position_embedding_type": "rope" if turns else "nope",
    }


def _read(fields: Fields, family: str, **own: Any) -> ModelConfig:
    bias = fields.boolean("attention_bias", False)
    return rotary(
        fields,
        family=family,
        bos=1,
        eos=2,
        attention_bias=bias,
        attention_output_bias=bias,
        attention_scale=fields.number("attention_multiplier", 1.0),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logit_scale=1 / fields.number("logits_scaling", 1.0),
        **own,
    )


def _multipliers(config: ModelConfig) -> dict[str, Any]:
    return common_rotary(config) | {
        "attention_multiplier": config.attention_scale,
        "embedding_multiplier": config.embedding_scale,
        "residual_multiplier": config.residual_scale,
        "logits_scaling": 1 / config.logit_scale,
    }
