"""Llama 3.1 and 3.2 (Llama Team 2024): meta-llama/Llama-3.2-1B and its siblings."""

from typing import Any


def llama3(hidden: int, intermediate: int, layers: int, heads: int, factor: float, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": tied,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
    }
