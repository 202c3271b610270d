"""Granite 3.3 (Granite Team 2025) and the dense models of Granite 4.0: ibm-granite/granite-3.3-2b-instruct,
ibm-granite/granite-4.0-1b.
"""

from typing import Any

GRANITE33_2B: dict[str, Any] = {
    "model_type": "granite",
    "vocab_size": 49159,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e7,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.015625,
    "logits_scaling": 8.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GRANITE4_1B: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "vocab_size": 100352,
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "shared_intermediate_size": 4096,
    "num_hidden_layers": 40,
    "layer_types": ["attention"] * 40,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "position_embedding_type": "rope",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000000,
    "embedding_multiplier": 12,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0078125,
    "logits_scaling": 8,
    "tie_word_embeddings": True,
    "bos_token_id": 100257,
    "eos_token_id": 100257,
}
