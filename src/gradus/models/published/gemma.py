"""Gemma 3 (Gemma Team 2025): google/gemma-3-270m, google/gemma-3-1b-it."""

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
