"""Qwen1.5 with experts and Qwen2.5 (Qwen Team 2024), and Qwen3 (2025): Qwen/Qwen1.5-MoE-A2.7B, Qwen/Qwen2.5-0.5B,
Qwen/Qwen3-4B and their siblings, Qwen/Qwen3-30B-A3B.
"""

from typing import Any

QWEN15_MOE: dict[str, Any] = {
    "model_type": "qwen2_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "norm_topk_prob": False,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
}


def qwen2(hidden: int, intermediate: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": [151645, 151643],
    }


def qwen3(hidden: int, intermediate: int, layers: int, heads: int, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": tied,
        "bos_token_id": 151643,
        "eos_token_id": [151645, 151643],
    }


def qwen3_moe(layers: int = 48) -> dict[str, Any]:
    """Qwen3-30B-A3B: 128 experts. Each token takes eight."""
    return qwen3(2048, 6144, layers, 32, tied=False) | {
        "model_type": "qwen3_moe",
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    }
