"""OLMoE (Muennighoff et al. 2024), OLMo 2 (OLMo Team 2024) and OLMo 3 (2025): allenai/OLMoE-1B-7B-0924,
allenai/OLMo-2-0425-1B, allenai/Olmo-3-7B-Instruct.
"""

from typing import Any

OLMOE_7B: dict[str, Any] = {
    "model_type": "olmoe",
    "vocab_size": 50304,
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 50279,
}
OLMO2_1B: dict[str, Any] = {
    "model_type": "olmo2",
    "vocab_size": 100352,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "eos_token_id": 100257,
}
OLMO3_7B: dict[str, Any] = {
    "model_type": "olmo3",
    "vocab_size": 100278,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 32,
        "beta_slow": 1,
        "attention_factor": 1.2079441541679836,
    },
    "sliding_window": 4096,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    "tie_word_embeddings": False,
    "eos_token_id": 100257,
}
