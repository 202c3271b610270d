"""config.json of Mixtral."""

from typing import Any

from gradus.models.config import Experts, ModelConfig
from gradus.models.families.hf.experts import expert_count, some_experts, with_dense_layers
from gradus.models.families.hf.fields import Fields
from gradus.models.families.hf.ropes import read_rope, rope_section
from gradus.models.families.hf.shared import common_rotary, layer_count, rotary


def read_mixtral(fields: Fields) -> ModelConfig:
    """Mistral with experts of intermediate_size; without a window, unless a key sets one for every layer."""
    layers, context = layer_count(fields), fields.integer("max_position_embeddings")
    experts = Experts(
        count=expert_count(fields, 8),
        chosen=fields.integer("num_experts_per_tok", 2),
        width=fields.integer("intermediate_size", 14_336),
    )
    window = fields.integer("sliding_window") if fields.has("sliding_window") else None
    read = rotary(
        fields,
        family="mixtral",
        kv_heads=8,
        bos=1,
        eos=2,
        rope=read_rope(rope_section(fields, context), fields.number("rope_theta", 1e6), context),
        windows=(window,) * layers,
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        experts=(experts,) * layers,
    )
    return with_dense_layers(read)


def write_mixtral(config: ModelConfig) -> dict[str, Any]:
    experts = some_experts(config)
    return common_rotary(config) | {
        "model_type": "mixtral",
        "intermediate_size": experts.width,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "sliding_window": config.windows[0],
    }
