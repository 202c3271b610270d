"""GPT-2's config.json."""

from typing import Any

from gradus.models.config import ModelConfig
from gradus.models.families.hf.fields import Fields
from gradus.models.families.hf.shared import ACTIVATIONS, SPELLED, beginning, common, ends, even_share, layer_count


def read_gpt2(fields: Fields) -> ModelConfig:
    fields.refuse("scale_attn_by_inverse_layer_idx", "attention scaled by layer is not supported")
    fields.refuse("add_cross_attention", "cross-attention is not supported: only decoders are")
    hidden, heads, layers = fields.integer("n_embd"), fields.integer("n_head"), layer_count(fields, "n_layer")
    head_dim = even_share(hidden, heads, "n_embd", "n_head")
    return ModelConfig(
        family="gpt2",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("n_inner", 4 * hidden),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        context_length=fields.integer("n_positions"),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation=fields.choice("activation_function", "gelu_new", ACTIVATIONS),
        tie_embeddings=fields.boolean("tie_word_embeddings", True),
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        ropes=(None,) * layers,
        windows=(None,) * layers,
        attention_scale=head_dim**-0.5 if fields.boolean("scale_attn_weights", True) else 1.0,
        attention_softcap=None,
        final_softcap=None,
        bos_token_id=beginning(fields, 50256),
        eos_token_ids=ends(fields, 50256),
        learned_positions=True,
        gated=False,
        norm_bias=True,
    )


def write_gpt2(config: ModelConfig) -> dict[str, Any]:
    return common(config) | {
        "model_type": "gpt2",
        "n_positions": config.context_length,
        "n_ctx": config.context_length,
        "n_embd": config.hidden_size,
        "n_inner": config.intermediate_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": (SPELLED | {"gelu_tanh": "gelu_new"})[config.activation],
        "scale_attn_weights": config.attention_scale != 1.0,
        "resid_pdrop": 0.0,  # absent, these would be 0.1
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
