"""Our configurations in the spelling of others' config.json: for peers that run the same shapes. No torch here."""

from typing import Any

from gradus.models.config import LinearScaling, Llama3Scaling, ModelConfig, Rope


def hugging_face_config(config: ModelConfig) -> dict[str, Any]:
    """`ModelConfig.from_hf` backwards, in the spelling of transformers 5; tests check that it comes back the same."""
    common: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }
    if config.family == "gpt2":
        return common | {
            "n_positions": config.context_length,
            "n_embd": config.hidden_size,
            "n_inner": config.intermediate_size,
            "n_layer": config.num_layers,
            "n_head": config.num_heads,
            "layer_norm_epsilon": config.norm_eps,
        }
    assert config.rope is not None
    common |= {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "attention_bias": config.attention_bias,
    }
    if config.family == "gemma3":
        return common | {
            "sliding_window": next((window for window in config.windows if window is not None), config.context_length),
            "layer_types": ["full_attention" if window is None else "sliding_attention" for window in config.windows],
            "query_pre_attn_scalar": round(config.attention_scale**-2),
            "final_logit_softcapping": config.final_softcap,
            "attn_logit_softcapping": config.attention_softcap,
            "rope_parameters": {
                "full_attention": _rope(config.rope),
                "sliding_attention": _rope(config.local_rope or config.rope),
            },
        }
    if config.family == "llama":
        common |= {"mlp_bias": config.mlp_bias}
    return common | {"rope_parameters": _rope(config.rope)}


def _rope(rope: Rope) -> dict[str, Any]:
    match rope.scaling:
        case None:
            return {"rope_type": "default", "rope_theta": rope.theta}
        case LinearScaling(factor):
            return {"rope_type": "linear", "rope_theta": rope.theta, "factor": factor}
        case Llama3Scaling(factor, low, high, original):
            return {
                "rope_type": "llama3",
                "rope_theta": rope.theta,
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
