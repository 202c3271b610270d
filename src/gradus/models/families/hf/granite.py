"""config.json of Granite 3, dense and with experts, and of Granite 4 where every layer attends.

Granite 4's type, `granitemoehybrid`, also has layers with a state.
"""

from typing import Any

from gradus.models.config import Experts, ModelConfig
from gradus.models.families.hf.experts import expert_count, some_experts, with_dense_layers
from gradus.models.families.hf.fields import Fields, shown
from gradus.models.families.hf.shared import common_rotary, layer_count, rotary
from gradus.models.families.unsupported import STATES, Nearest

DENSE = Nearest("Granite-4.0-1B", "granitemoehybrid")


def read_granite(fields: Fields) -> ModelConfig:
    return _read(fields, "granite", mlp_bias=fields.boolean("mlp_bias", False))


def read_granite_moe(fields: Fields) -> ModelConfig:
    """Granite 3 with experts of intermediate_size in every layer."""
    return with_dense_layers(_read(fields, "granitemoe", experts=_experts(fields)))


def read_granite_moe_shared(fields: Fields) -> ModelConfig:
    """The same, perhaps next to an MLP that all tokens share."""
    shared = fields.integer("shared_intermediate_size", 0, least=0)
    return with_dense_layers(_read(fields, "granitemoe", experts=_experts(fields)), shared)


def read_granite_hybrid(fields: Fields) -> ModelConfig:
    """Granite 4, where every layer attends: dense, or with experts next to the MLP."""
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
    if fields.integer("num_local_experts", 8, least=0) == 0:
        return _read(fields, "granite4", width_key="shared_intermediate_size", **own)
    shared = fields.integer("shared_intermediate_size", 1024)
    return with_dense_layers(_read(fields, "granitemoe", experts=_experts(fields), **own), shared)


def _experts(fields: Fields) -> tuple[Experts, ...]:
    chosen, width = fields.integer("num_experts_per_tok", 2), fields.integer("intermediate_size")
    return (Experts(expert_count(fields, 8), chosen, width),) * layer_count(fields)


def write_granite(config: ModelConfig) -> dict[str, Any]:
    return _multipliers(config) | {"model_type": "granite", "mlp_bias": config.mlp_bias}


def write_granite_hybrid(config: ModelConfig) -> dict[str, Any]:
    return _multipliers(config) | _attending(config) | {"num_local_experts": 0, "num_experts_per_tok": 0}


def write_granite_moe(config: ModelConfig) -> dict[str, Any]:
    """Write Granite 3's configuration, or where no layer turns, which only Granite 4's can say, that one."""
    experts, turns = some_experts(config), any(rope is not None for rope in config.ropes)
    shared = {"model_type": "granitemoeshared", "shared_intermediate_size": config.intermediate_size}
    kind = {"model_type": "granitemoe"} if config.intermediate_size == 0 else shared if turns else _attending(config)
    return (
        _multipliers(config)
        | kind
        | {
            "intermediate_size": experts.width,
            "num_local_experts": experts.count,
            "num_experts_per_tok": experts.chosen,
        }
    )


def _attending(config: ModelConfig) -> dict[str, Any]:
    turns = any(rope is not None for rope in config.ropes)
    return {
        "model_type": "granitemoehybrid",
        "shared_intermediate_size": config.intermediate_size,
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
