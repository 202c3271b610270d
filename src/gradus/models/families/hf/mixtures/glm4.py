"""config.json of GLM-4.5."""

from dataclasses import replace
from typing import Any

from gradus.models.config import Experts, ModelConfig, Rope
from gradus.models.families.hf.experts import (
    dense_layers,
    in_layers,
    shared_width,
    some_experts,
    spelled_choice,
    widest_dense,
    with_dense_layers,
)
from gradus.models.families.hf.fields import Fields
from gradus.models.families.hf.ropes import read_rope, rope_section, turned_values
from gradus.models.families.hf.shared import common_rotary, head_width, layer_count, rotary, some_rope


def read_glm4_moe(fields: Fields) -> ModelConfig:
    """Experts by sigmoid next to an MLP that all tokens share, behind a few dense layers. Half of each head turns."""
    layers, width = layer_count(fields), fields.integer("moe_intermediate_size", 1408)
    first = fields.integer("first_k_dense_replace", 1, least=0)
    experts = Experts(
        count=fields.integer("n_routed_experts", fields.integer("num_local_experts", 128)),
        chosen=fields.integer("num_experts_per_tok", 8),
        width=width,
        sigmoid=True,
        normalized=fields.boolean("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 1.0),
        corrected=True,
        groups=fields.integer("n_group", 1),
        chosen_groups=fields.integer("topk_group", 1),
    )
    read = rotary(
        fields,
        family="glm4_moe",
        kv_heads=8,
        rope=_rope(fields),
        attention_bias=fields.boolean("attention_bias", False),
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        qk_norm=fields.boolean("use_qk_norm", False),
        experts=in_layers(experts, layers, range(first), f"first_k_dense_replace {first}"),
    )
    return with_dense_layers(read, shared=width * fields.integer("n_shared_experts", 1, least=0))


def write_glm4_moe(config: ModelConfig) -> dict[str, Any]:
    experts, rope = some_experts(config), some_rope(config)
    raw = (
        common_rotary(config)
        | spelled_choice(config)
        | {
            "model_type": "glm4_moe",
            "intermediate_size": widest_dense(config),
            "use_qk_norm": config.qk_norm,
            "n_routed_experts": experts.count,
            "n_shared_experts": shared_width(config) // experts.width,
            "moe_intermediate_size": experts.width,
            "first_k_dense_replace": len(dense_layers(config)),
            "routed_scaling_factor": experts.scale,
            "n_group": experts.groups,
            "topk_group": experts.chosen_groups,
        }
    )
    raw["rope_parameters"] |= {"partial_rotary_factor": (rope.turned or config.head_dim) / config.head_dim}
    return raw


def _rope(fields: Fields) -> Rope:
    context = fields.integer("max_position_embeddings")
    rope = read_rope(
        rope_section(fields, context, partial=True), fields.number("rope_theta", 1e4), context, partial=True
    )
    return replace(rope, turned=turned_values(fields, head_width(fields), absent=0.5))
