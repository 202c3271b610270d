"""Gemma 3 (Gemma Team 2025): google/gemma-3-270m, google/gemma-3-1b-it; and Gemma 4 (2026), the text parts:
google/gemma-4-E2B-it, google/gemma-4-E4B-it, google/gemma-4-12B-it, google/gemma-4-26B-A4B-it and
google/gemma-4-31B-it.
"""

from typing import Any


def gemma3(hidden: int, intermediate: int, layers: int) -> dict[str, Any]:
    return {
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "sliding_window": 512,
        "bos_token_id": 2,
        "eos_token_id": [1, 106],
    }


def gemma4(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, pattern: int, model_type: str = "gemma4"
) -> dict[str, Any]:
    """pattern: the last of each `pattern` layers sees everything."""
    text = {
        "model_type": f"{model_type}_text",
        "vocab_size": 262144,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "global_head_dim": 512,
        "layer_types": (["sliding_attention"] * (pattern - 1) + ["full_attention"]) * (layers // pattern),
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
    }
    return {"model_type": model_type, "text_config": text, "eos_token_id": [1, 106]}


def gemma4_embedded(
    hidden: int, intermediate: int, layers: int, kv_heads: int, pattern: int, shared: int, wide: bool
) -> dict[str, Any]:
    """E2B and E4B: embeddings in every layer, and no keys and values of their own in the last layers."""
    raw = gemma4(hidden, intermediate, layers, 8, kv_heads, pattern)
    raw["text_config"] |= {
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": wide,
        "attention_k_eq_v": False,
    }
    return raw


def gemma4_dense(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, global_kv_heads: int, model_type: str
) -> dict[str, Any]:
    """12B and 31B: the values of layers that see everything are their keys."""
    raw = gemma4(hidden, intermediate, layers, heads, kv_heads, 6, model_type)
    raw["text_config"] |= {
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
        "num_global_key_value_heads": global_kv_heads,
        "attention_k_eq_v": True,
    }
    return raw


def gemma4_moe() -> dict[str, Any]:
    """26B-A4B: the same with experts next to a narrow MLP."""
    raw = gemma4_dense(2816, 2112, 30, 16, 8, 2, "gemma4")
    raw["text_config"] |= {
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    }
    return raw
