"""config.json of OLMoE."""

from typing import Any

from gradus.models.config import Experts, ModelConfig
from gradus.models.families.hf.experts import expert_count, some_experts, spelled_choice, with_dense_layers
from gradus.models.families.hf.fields import Fields, shown
from gradus.models.families.hf.shared import common_rotary, layer_count, rotary


def read_olmoe(fields: Fields) -> ModelConfig:
    """Experts of intermediate_size in every layer, and norms across heads."""
    if fields.has("clip_qkv"):
        raise fields.fault("clip_qkv", f"is {shown(fields.raw['clip_qkv'])}, but queries, keys and values are not cut")
    experts = Experts(
        count=expert_count(fields, 64),
        chosen=fields.integer("num_experts_per_tok", 8),
        width=fields.integer("intermediate_size", 2048),
        normalized=fields.boolean("norm_topk_prob", False),
    )
    bias = fields.boolean("attention_bias", False)
    read = rotary(
        fields,
        family="olmoe",
        eos=50_279,
        attention_bias=bias,
        attention_output_bias=bias,
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        qk_norm=True,
        qk_norm_across_heads=True,
        experts=(experts,) * layer_count(fields),
    )
    return with_dense_layers(read)


def write_olmoe(config: ModelConfig) -> dict[str, Any]:
    experts = some_experts(config)
    return (
        common_rotary(config)
        | {"model_type": "olmoe", "intermediate_size": experts.width, "num_experts": experts.count}
        | spelled_choice(config)
    )
