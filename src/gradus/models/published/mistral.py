"""Mixtral (Jiang et al. 2024); Mistral Small 3 (Mistral AI 2025) and Ministral 3 (Liu et al. 2026), the text parts of
models that see: mistralai/Mixtral-8x7B-Instruct-v0.1, mistralai/Mistral-Small-3.2-24B-Instruct-2506,
mistralai/Ministral-3-3B-Instruct-2512 and its siblings.
"""

from typing import Any

MIXTRAL_8X7B: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_TEXT = {
    "vocab_size": 131072,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

MISTRAL_SMALL_24B: dict[str, Any] = {
    "model_type": "mistral3",
    "text_config": _TEXT
    | {
        "model_type": "mistral",
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "num_hidden_layers": 40,
        "max_position_embeddings": 131072,
        "rope_theta": 1e9,
        "tie_word_embeddings": False,
    },
}


def ministral3(hidden: int, intermediate: int, layers: int, theta: float, tied: bool) -> dict[str, Any]:
    rope = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
    text = {
        "model_type": "ministral3",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "max_position_embeddings": 262144,
        "rope_parameters": rope,
        "tie_word_embeddings": tied,
    }
    return {"model_type": "mistral3", "text_config": _TEXT | text}
