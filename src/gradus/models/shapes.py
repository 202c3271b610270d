"""Shapes by name, for `random:<name>`: models of real proportions whose weights are noise.

Speed, memory and every scheduling decision depend on shapes alone, so these measure the same as the real checkpoints,
without a download. Quality, acceptance of drafts and early stops depend on meaning, and need real weights. The numbers
are those of `published/`. Torch-free.
"""

from gradus.models.config import ModelConfig
from gradus.models.families.records import read_config
from gradus.models.published.gemma import gemma3, gemma4_dense, gemma4_embedded, gemma4_moe
from gradus.models.published.glm import GLM45_AIR
from gradus.models.published.gpt2 import gpt2
from gradus.models.published.gpt_oss import gpt_oss
from gradus.models.published.granite import GRANITE4_1B, GRANITE31_1B_A400M, GRANITE33_2B
from gradus.models.published.llama import llama3
from gradus.models.published.mistral import MISTRAL_SMALL_24B, MIXTRAL_8X7B, ministral3
from gradus.models.published.olmo import OLMO2_1B, OLMO3_7B, OLMOE_7B
from gradus.models.published.phi import PHI4_14B, PHI4_MINI, PHI35_MINI
from gradus.models.published.qwen import QWEN15_MOE, qwen2, qwen3, qwen3_moe
from gradus.models.published.smollm import SMOLLM2_135M, SMOLLM3_3B

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
_CHOICE = {"num_experts_per_tok": 2, "norm_topk_prob": True}
_LOCAL = _CHOICE | {"num_local_experts": 8, "intermediate_size": 96}
_EXPERTS = _CHOICE | {"num_experts": 8, "moe_intermediate_size": 96, "mlp_only_layers": [1]}
_TINY_GPT_OSS = {
    "model_type": "gpt_oss",
    "sliding_window": 16,
    "rope_theta": 1e4,
    "rope_scaling": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 32, "truncate": False},
}
_TINY_GLM4 = _CHOICE | {
    "model_type": "glm4_moe",
    "n_routed_experts": 8,
    "moe_intermediate_size": 96,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "attention_bias": True,
    "use_qk_norm": True,
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
        "gpt2-124m": gpt2(768, 12, 12),
        "gpt2-medium": gpt2(1024, 24, 16),
        "gpt2-xl": gpt2(1600, 48, 25),
        "smollm2-135m": SMOLLM2_135M,
        "smollm3-3b": SMOLLM3_3B,
        "llama-3.2-1b": llama3(2048, 8192, 16, 32, factor=32.0, tied=True),
        "llama-3.2-3b": llama3(3072, 8192, 28, 24, factor=32.0, tied=True),
        "llama-3.1-8b": llama3(4096, 14336, 32, 32, factor=8.0, tied=False),
        "llama-3.1-70b": llama3(8192, 28672, 80, 64, factor=8.0, tied=False),
        "qwen2.5-0.5b": qwen2(896, 4864, 24, 14),
        "qwen2.5-1.5b": qwen2(1536, 8960, 28, 12),
        "qwen3-0.6b": qwen3(1024, 3072, 28, 16, tied=True),
        "qwen3-4b": qwen3(2560, 9728, 36, 32, tied=True),
        "qwen3-8b": qwen3(4096, 12288, 36, 32, tied=False),
        "gemma3-270m": gemma3(640, 2048, 18),
        "gemma3-1b": gemma3(1152, 6912, 26),
        "gemma4-e2b": gemma4_embedded(1536, 6144, 35, 1, pattern=5, shared=20, wide=True),
        "gemma4-e4b": gemma4_embedded(2560, 10240, 42, 2, pattern=6, shared=18, wide=False),
        "gemma4-12b": gemma4_dense(3840, 15360, 48, 16, 8, 1, "gemma4_unified"),
        "gemma4-31b": gemma4_dense(5376, 21504, 60, 32, 16, 4, "gemma4"),
        "ministral3-3b": ministral3(3072, 9216, 26, theta=1e6, tied=True),
        "ministral3-8b": ministral3(4096, 14336, 34, theta=1e6, tied=False),
        "mistral-small-24b": MISTRAL_SMALL_24B,
        "phi3.5-mini": PHI35_MINI,
        "phi4-mini": PHI4_MINI,
        "phi4-14b": PHI4_14B,
        "olmo2-1b": OLMO2_1B,
        "olmo3-7b": OLMO3_7B,
        "granite3.3-2b": GRANITE33_2B,
        "granite4-1b": GRANITE4_1B,
        "mixtral-8x7b": MIXTRAL_8X7B,
        "qwen1.5-moe-a2.7b": QWEN15_MOE,
        "qwen3-30b-a3b": qwen3_moe(),
        "olmoe-7b": OLMOE_7B,
        "granite3-1b-a400m": GRANITE31_1B_A400M,
        "gemma4-26b-a4b": gemma4_moe(),
        "gpt-oss-20b": gpt_oss(24, 32),
        "gpt-oss-120b": gpt_oss(36, 128),
        "glm4.5-air": GLM45_AIR,
        "tiny-gpt2": gpt2(64, 4, 4) | {"vocab_size": 320, "n_positions": 512, "bos_token_id": 256, "eos_token_id": 257},
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
        "tiny-mixtral": _TINY | _LOCAL | {"model_type": "mixtral"},
        "tiny-qwen2-moe": _TINY | _EXPERTS | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 128},
        "tiny-qwen3-moe": _TINY | _EXPERTS | {"model_type": "qwen3_moe"},
        "tiny-olmoe": _TINY
        | _LOCAL
        | {"model_type": "olmoe", "head_dim": 16, "num_experts_per_tok": 3, "norm_topk_prob": False},
        "tiny-granite-moe": _TINY
        | _LOCAL
        | {"model_type": "granitemoeshared", "shared_intermediate_size": 160}
        | _MULTIPLIERS,
        "tiny-gemma4-moe": _TINY_GEMMA4
        | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True}
        | {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 96},
        "tiny-gpt-oss": _TINY | _LOCAL | _TINY_GPT_OSS,
        "tiny-glm4-moe": _TINY | _TINY_GLM4,
    }.items()
}
