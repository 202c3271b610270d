"""The metadata of architectures with experts as a Hugging Face configuration, one function per architecture.

Whether the weights of a token's experts are divided by their sum is llama.cpp's own choice for most architectures: no
key says it.
"""

from typing import Any

from gradus.loading.gguf import configurations
from gradus.loading.gguf.metadata import Metadata
from gradus.loading.gguf.sizes import layer_types, rotary, without_windows

SOFTMAX, SIGMOID = 1, 2  # llama.cpp's numbers of the router's function


def llama(read: Metadata) -> dict[str, Any]:
    """Llama, or Mixtral, which llama.cpp stores as Llama with experts."""
    if not read.integer("expert_count", 0):
        return configurations.llama(read)
    return without_windows(read) | _experts(read) | {"model_type": "mixtral"}


def qwen2moe(read: Metadata) -> dict[str, Any]:
    width = read.integer("feed_forward_length")
    return (
        without_windows(read)
        | _experts(read)
        | {
            "model_type": "qwen2_moe",
            "moe_intermediate_size": read.integer("expert_feed_forward_length"),
            "shared_expert_intermediate_size": read.integer("expert_shared_feed_forward_length", width),
            "qkv_bias": "blk.0.attn_q.bias" in read.file.tensors,
            "norm_topk_prob": False,
        }
    )


def qwen3moe(read: Metadata) -> dict[str, Any]:
    width = read.integer("expert_feed_forward_length")
    own = {"model_type": "qwen3_moe", "moe_intermediate_size": width, "norm_topk_prob": True}
    return without_windows(read) | _experts(read) | own


def olmoe(read: Metadata) -> dict[str, Any]:
    return without_windows(read) | _experts(read) | {"model_type": "olmoe", "norm_topk_prob": False}


def granitemoe(read: Metadata) -> dict[str, Any]:
    """Granite 3 with experts, perhaps next to an MLP that all tokens share."""
    shared = read.integer("expert_shared_feed_forward_length", 0)
    own = {"model_type": "granitemoeshared", "shared_intermediate_size": shared}
    return configurations.multiplied(read) | _experts(read) | own


def gemma4(read: Metadata) -> dict[str, Any]:
    """Gemma 4, with experts in every layer or in none."""
    if not read.integer("expert_count", 0):
        return configurations.gemma4(read)
    experts = _experts(read)
    return configurations.gemma4(read) | {
        "enable_moe_block": True,
        "num_experts": experts["num_experts"],
        "top_k_experts": experts["num_experts_per_tok"],
        "moe_intermediate_size": read.integer("expert_feed_forward_length"),
    }


def gpt_oss(read: Metadata) -> dict[str, Any]:
    """Every second layer has a window. YaRN's bounds are not whole pairs in this model, which llama.cpp rounds."""
    config = rotary(read)
    scaling = config.pop("rope_scaling") or {"rope_type": "default"}
    whole = {"truncate": False} if scaling["rope_type"] == "yarn" else {}
    return (
        config
        | _experts(read)
        | {
            "model_type": "gpt_oss",
            "rope_parameters": {"rope_theta": config["rope_theta"]} | scaling | whole,
            "intermediate_size": read.integer("expert_feed_forward_length"),
            "sliding_window": read.integer("attention.sliding_window"),
            "layer_types": layer_types(read, 2),
        }
    )


def glm4moe(read: Metadata) -> dict[str, Any]:
    """Heads turn in part. The last layers, which draft tokens, are counted with the others, and are not read."""
    config, width = rotary(read, partial=True), read.integer("expert_feed_forward_length")
    return (
        config
        | _experts(read, SIGMOID)
        | {
            "model_type": "glm4_moe",
            "num_hidden_layers": config["num_hidden_layers"] - read.integer("nextn_predict_layers", 0),
            "n_routed_experts": read.integer("expert_count"),
            "moe_intermediate_size": width,
            "n_shared_experts": read.integer("expert_shared_count", 0),
            "first_k_dense_replace": read.integer("leading_dense_block_count", 0),
            "norm_topk_prob": read.get("expert_weights_norm", False),
            "routed_scaling_factor": read.number("expert_weights_scale", 1.0),
            "n_group": read.integer("expert_group_count", 1),
            "topk_group": read.integer("expert_group_used_count", 1),
            "use_qk_norm": "blk.0.attn_q_norm.weight" in read.file.tensors,
            "partial_rotary_factor": read.integer("rope.dimension_count", config["head_dim"]) / config["head_dim"],
        }
    )


def _experts(read: Metadata, function: int = SOFTMAX) -> dict[str, Any]:
    """The keys that families with experts share. function: the router's."""
    if read.integer("expert_gating_func", function) != function:
        read.refuse("expert_gating_func", f"other than {function} is not supported")
    return {
        "num_experts": read.integer("expert_count"),
        "num_experts_per_tok": read.integer("expert_used_count"),
    }
