"""Shapes by name, for `random:<name>`: models of real proportions whose weights are noise.

Speed, memory and every scheduling decision depend on shapes alone, so these measure the same as the real checkpoints,
without a download. Quality, acceptance of drafts and early stops depend on meaning, and need real weights. Each entry
holds the relevant part of the published config.json. Torch-free.
"""

from typing import Any

from gradus.models.config import ModelConfig
from gradus.models.families.records import read_config


def _gpt2(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
    }


def _llama3(hidden: int, intermediate: int, layers: int, heads: int, factor: float, tied: bool) -> dict[str, Any]:
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


def _qwen2(hidden: int, intermediate: int, layers: int, heads: int) -> dict[str, Any]:
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


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int, tied: bool) -> dict[str, Any]:
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


def _gemma3(hidden: int, intermediate: int, layers: int) -> dict[str, Any]:
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


_SMOLLM2_135M = {
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

# The tiny ones are for tests: 256 bytes and a few specials as vocabulary, and every trait that a backend could miss
# (grouped queries, heads whose widths do not add up to the hidden size, windows shorter than a prompt).
_TINY = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
}

_TINY_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "llama_4_scaling_beta": 0.1,
}
_TINY_GEMMA4 = _TINY | {
    "model_type": "gemma4_text",
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}
_MULTIPLIERS = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.125,
    "logits_scaling": 4.0,
}

SHAPES: dict[str, ModelConfig] = {
    name: read_config(raw)
    for name, raw in {
        "gpt2-124m": _gpt2(768, 12, 12),
        "gpt2-medium": _gpt2(1024, 24, 16),
        "gpt2-xl": _gpt2(1600, 48, 25),
        "smollm2-135m": _SMOLLM2_135M,
        "llama-3.2-1b": _llama3(2048, 8192, 16, 32, factor=32.0, tied=True),
        "llama-3.2-3b": _llama3(3072, 8192, 28, 24, factor=32.0, tied=True),
        "llama-3.1-8b": _llama3(4096, 14336, 32, 32, factor=8.0, tied=False),
        "llama-3.1-70b": _llama3(8192, 28672, 80, 64, factor=8.0, tied=False),
        "qwen2.5-0.5b": _qwen2(896, 4864, 24, 14),
        "qwen2.5-1.5b": _qwen2(1536, 8960, 28, 12),
        "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tied=True),
        "qwen3-4b": _qwen3(2560, 9728, 36, 32, tied=True),
        "qwen3-8b": _qwen3(4096, 12288, 36, 32, tied=False),
        "gemma3-270m": _gemma3(640, 2048, 18),
        "gemma3-1b": _gemma3(1152, 6912, 26),
        "tiny-gpt2": _gpt2(64, 4, 4)
        | {"vocab_size": 320, "n_positions": 512, "bos_token_id": 256, "eos_token_id": 257},
        "tiny-llama": _TINY | {"model_type": "llama"},
        "tiny-mistral": _TINY | {"model_type": "mistral", "sliding_window": 16},
        "tiny-qwen2": _TINY | {"model_type": "qwen2"},
        "tiny-qwen3": _TINY | {"model_type": "qwen3"},
        "tiny-smollm3": _TINY | {"model_type": "smollm3", "no_rope_layer_interval": 2},
        "tiny-ministral3": _TINY | {"model_type": "ministral3", "rope_parameters": _TINY_YARN},
        "tiny-phi3": _TINY | {"model_type": "phi3", "partial_rotary_factor": 0.75, "head_dim": 16},
        "tiny-olmo2": _TINY | {"model_type": "olmo2"},
        "tiny-olmo3": _TINY | {"model_type": "olmo3", "sliding_window": 16},
        "tiny-granite": _TINY | {"model_type": "granite"} | _MULTIPLIERS,
        "tiny-granite4": _TINY
        | {
            "model_type": "granitemoehybrid",
            "num_local_experts": 0,
            "shared_intermediate_size": 160,
            "layer_types": ["attention"] * 4,
            "position_embedding_type": "nope",
        }
        | _MULTIPLIERS,
        "tiny-gemma3": _TINY
        | {
            "model_type": "gemma3_text",
            "sliding_window": 16,
            "sliding_window_pattern": 2,  # local, global, local, global
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 30.0,
        },
        "tiny-gemma4": _TINY_GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        "tiny-gemma4-e": _TINY_GEMMA4
        | {
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_key_value_heads": 1,
            "num_kv_shared_layers": 3,  # local, global, local: each attends to one of the first three
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": 320,
        },
    }.items()
}
