"""config.json of Qwen2-MoE and Qwen3-MoE."""

from typing import Any

from gradus.models.config import Experts, ModelConfig
from gradus.models.families.hf.experts import (
    dense_by_list_or_step,
    dense_layers,
    expert_count,
    in_layers,
    shared_width,
    some_experts,
    spelled_choice,
    widest_dense,
    with_dense_layers,
)
from gradus.models.families.hf.fields import Fields
from gradus.models.families.hf.qwen import read_window
from gradus.models.families.hf.shared import (
    common_rotary,
    head_width,
    layer_count,
    layer_types,
    rotary,
    some_window,
    windows_by_type,
)


def read_qwen2_moe(fields: Fields) -> ModelConfig:
    """Qwen2 with experts next to an MLP that all tokens share; some layers may have a dense MLP instead."""
    layers, window = layer_count(fields), read_window(fields)
    first = fields.integer("max_window_layers", 28, least=0)  # of every second layer before it, the window
    usual = tuple(window if layer % 2 == 0 and layer < first else None for layer in range(layers))
    read = rotary(
        fields,
        family="qwen2_moe",
        kv_heads=16,
        attention_bias=fields.boolean("qkv_bias", True),
        windows=windows_by_type(fields, window, usual),
        shared_gate=True,
        experts=_experts(fields, Experts(expert_count(fields, 60), *_choice(fields, 4, 1408))),
    )
    return with_dense_layers(read, shared=fields.integer("shared_expert_intermediate_size", 5632))


def read_qwen3_moe(fields: Fields) -> ModelConfig:
    """Qwen3 with experts in the MLP's place. A window is every layer's."""
    bias = fields.boolean("attention_bias", False)
    read = rotary(
        fields,
        family="qwen3_moe",
        kv_heads=4,
        head_dim=head_width(fields),
        attention_bias=bias,
        attention_output_bias=bias,
        windows=(read_window(fields),) * layer_count(fields),
        qk_norm=True,
        experts=_experts(fields, Experts(expert_count(fields, 128), *_choice(fields, 8, 768))),
    )
    return with_dense_layers(read)


def _choice(fields: Fields, chosen: int, width: int) -> tuple[int, int, bool, bool]:
    """chosen, width, sigmoid, normalized."""
    return (
        fields.integer("num_experts_per_tok", chosen),
        fields.integer("moe_intermediate_size", width),
        False,
        fields.boolean("norm_topk_prob", False),
    )


def _experts(fields: Fields, experts: Experts) -> tuple[Experts | None, ...]:
    layers = layer_count(fields)
    return in_layers(experts, layers, dense_by_list_or_step(fields, layers), "mlp_only_layers or decoder_sparse_step")


def write_qwen2_moe(config: ModelConfig) -> dict[str, Any]:
    return _written(config) | {
        "qkv_bias": config.attention_bias,
        "shared_expert_intermediate_size": shared_width(config),
        "layer_types": layer_types(config),
    }


def write_qwen3_moe(config: ModelConfig) -> dict[str, Any]:
    return _written(config)


def _written(config: ModelConfig) -> dict[str, Any]:
    experts, window = some_experts(config), some_window(config)
    return (
        common_rotary(config)
        | {
            "model_type": config.family,
            "intermediate_size": widest_dense(config),
            "num_experts": experts.count,
            "moe_intermediate_size": experts.width,
            "mlp_only_layers": dense_layers(config),
        }
        | spelled_choice(config)
        | ({} if window is None else {"use_sliding_window": True, "sliding_window": window})
    )
