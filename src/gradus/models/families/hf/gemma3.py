"""config.json of Gemma 3, and of its text part where it also sees."""

from typing import Any

from gradus.models.config import ModelConfig, Rope
from gradus.models.families.hf.fields import Fields
from gradus.models.families.hf.ropes import read_rope, rope_section, spelled_rope
from gradus.models.families.hf.shared import (
    ACTIVATIONS,
    SPELLED,
    beginning,
    common_rotary,
    ends,
    layer_count,
    layer_types,
    some_rope,
    some_window,
    text_part,
    windows_by_type,
)


def read_gemma3(fields: Fields) -> ModelConfig:
    fields.refuse("use_bidirectional_attention", "only causal attention is supported")
    layers = layer_count(fields, default=26)
    window = fields.integer("sliding_window", 4096)
    pattern = fields.integer("sliding_window_pattern", 6)  # every sixth layer sees everything
    usual = tuple(None if (layer + 1) % pattern == 0 else window for layer in range(layers))
    context = fields.integer("max_position_embeddings", 131_072)
    theta, local_theta = fields.number("rope_theta", 1e6), fields.number("rope_local_base_freq", 1e4)
    ropes = rope_section(fields, context)
    if fields.has("rope_parameters"):  # transformers 5 nests them by layer type
        rope = read_rope(ropes.section("full_attention"), theta, context)
        local_rope = read_rope(ropes.section("sliding_attention"), local_theta, context)
    else:
        rope, local_rope = read_rope(ropes, theta, context), Rope(local_theta)
    windows = windows_by_type(fields, window, usual)  # even one as long as the context: it marks a local layer
    bias, hidden = fields.boolean("attention_bias", False), fields.integer("hidden_size", 2304)
    return ModelConfig(
        family="gemma3",
        vocab_size=fields.integer("vocab_size", 262_208),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 9216),
        num_layers=layers,
        num_heads=fields.integer("num_attention_heads", 8),
        num_kv_heads=fields.integer("num_key_value_heads", 4),
        head_dim=fields.integer("head_dim", 256),
        context_length=context,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=fields.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
        tie_embeddings=fields.boolean("tie_word_embeddings", True),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=False,
        ropes=tuple(rope if each is None else local_rope for each in windows),
        windows=windows,
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        attention_softcap=fields.number("attn_logit_softcapping") if fields.has("attn_logit_softcapping") else None,
        final_softcap=fields.number("final_logit_softcapping") if fields.has("final_logit_softcapping") else None,
        bos_token_id=beginning(fields, 2),
        eos_token_ids=ends(fields, 1),
        qk_norm=True,
        post_norms=True,
        embedding_scale=hidden**0.5,
    )


def read_gemma3_multimodal(fields: Fields) -> ModelConfig:
    """Gemma 3 with a vision tower: only its text part is used, which is a Gemma 3 like any other."""
    return read_gemma3(text_part(fields, "Gemma 3"))


def write_gemma3(config: ModelConfig) -> dict[str, Any]:
    kinds = dict(zip(layer_types(config), config.ropes, strict=True))
    common = common_rotary(config)
    del common["hidden_act"]
    return common | {
        "model_type": "gemma3_text",
        "hidden_activation": SPELLED[config.activation],
        "sliding_window": some_window(config) or config.context_length,
        "layer_types": layer_types(config),
        "query_pre_attn_scalar": round(config.attention_scale**-2),
        "final_logit_softcapping": config.final_softcap,
        "attn_logit_softcapping": config.attention_softcap,
        "rope_parameters": {
            kind: spelled_rope(kinds.get(kind) or some_rope(config)) for kind in ("full_attention", "sliding_attention")
        },
    }
