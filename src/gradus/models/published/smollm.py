"""SmolLM2 (Allal et al. 2025) and SmolLM3 (Bakouch et al. 2025): HuggingFaceTB/SmolLM2-135M-Instruct,
HuggingFaceTB/SmolLM3-3B.
"""

from typing import Any

SMOLLM2_135M: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMOLLM3_3B: dict[str, Any] = {
    "model_type": "smollm3",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000000.0,
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "bos_token_id": 128000,
    "eos_token_id": 128012,
}
