"""Reading and writing a Hugging Face config.json, in the spelling of transformers 4 or 5: a reader and a writer per
family, which `records.py` names.

Absent keys take the value that transformers gives them; apart from that nothing is guessed. Torch-free.
"""

from typing import Any

from gradus.errors import ConfigError
from gradus.models.config import LinearScaling, Llama3Scaling, ModelConfig, Rope
from gradus.models.families.hf_fields import LARGEST, REQUIRED, Fields, is_integer, shown

MOST_LAYERS = 4096

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",  # GPT-2's name for the tanh approximation, which has four names
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_SPELLED = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


def read_gpt2(fields: Fields) -> ModelConfig:
    fields.refuse("scale_attn_by_inverse_layer_idx", "attention scaled by layer is not supported")
    fields.refuse("add_cross_attention", "cross-attention is not supported: only decoders are")
    hidden, heads, layers = fields.integer("n_embd"), fields.integer("n_head"), _layer_count(fields, "n_layer")
    head_dim = _even_share(hidden, heads, "n_embd", "n_head")
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
        activation=fields.choice("activation_function", "gelu_new", _ACTIVATIONS),
        tie_embeddings=fields.boolean("tie_word_embeddings", True),
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        rope=None,
        local_rope=None,
        windows=(None,) * layers,
        attention_scale=head_dim**-0.5 if fields.boolean("scale_attn_weights", True) else 1.0,
        attention_softcap=None,
        final_softcap=None,
        bos_token_id=_beginning(fields, 50256),
        eos_token_ids=_ends(fields, 50256),
        gated=False,
        norm_bias=True,
    )


def write_gpt2(config: ModelConfig) -> dict[str, Any]:
    return _common(config) | {
        "model_type": "gpt2",
        "n_positions": config.context_length,
        "n_ctx": config.context_length,
        "n_embd": config.hidden_size,
        "n_inner": config.intermediate_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": (_SPELLED | {"gelu_tanh": "gelu_new"})[config.activation],
        "scale_attn_weights": config.attention_scale != 1.0,
        "resid_pdrop": 0.0,  # absent, these would be 0.1
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def read_llama(fields: Fields) -> ModelConfig:
    bias = fields.boolean("attention_bias", False)
    mlp_bias = fields.boolean("mlp_bias", False)
    return _rotary(fields, attention_bias=bias, attention_output_bias=bias, mlp_bias=mlp_bias, bos=1, eos=2)


def write_llama(config: ModelConfig) -> dict[str, Any]:
    """Write Llama's configuration, or Mistral's, which adds one window for all layers."""
    window = config.windows[0] if config.windows else None
    kind = {"model_type": "llama"} if window is None else {"model_type": "mistral", "sliding_window": window}
    return _common_rotary(config) | kind | {"mlp_bias": config.mlp_bias}


def read_mistral(fields: Fields) -> ModelConfig:
    """Llama without biases, and with a window in every layer: absent means 4096, null means none."""
    window = fields.integer("sliding_window") if fields.has("sliding_window") else None
    window = window if "sliding_window" in fields.raw else 4096
    return _rotary(fields, kv_heads=8, windows=(window,) * _layer_count(fields), bos=1, eos=2)


def read_qwen2(fields: Fields) -> ModelConfig:
    """Llama with biases on queries, keys and values, always; no key says so."""
    return _rotary(fields, family="qwen2", kv_heads=32, attention_bias=True, windows=_qwen_windows(fields))


def read_qwen3(fields: Fields) -> ModelConfig:
    bias = fields.boolean("attention_bias", False)
    return _rotary(
        fields,
        family="qwen3",
        kv_heads=32,
        head_dim=128,
        attention_bias=bias,
        attention_output_bias=bias,
        windows=_qwen_windows(fields),
        qk_norm=True,
    )


def write_qwen(config: ModelConfig) -> dict[str, Any]:
    """Both Qwen2 and Qwen3, whose names are those of our families."""
    window = next((window for window in config.windows if window is not None), None)
    windows = {"use_sliding_window": True, "sliding_window": window, "layer_types": _layer_types(config)}
    return _common_rotary(config) | {"model_type": config.family} | ({} if window is None else windows)


def _qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    """The windows of Qwen2 and Qwen3: off unless a key turns them on, and then only in the last layers."""
    window = fields.integer("sliding_window", 4096) if fields.boolean("use_sliding_window", False) else None
    first = fields.integer("max_window_layers", 28, least=0)  # the layers from here on have the window
    usual = tuple(window if layer >= first else None for layer in range(_layer_count(fields)))
    return _windows_by_type(fields, window, usual)


def read_gemma3(fields: Fields) -> ModelConfig:
    fields.refuse("use_bidirectional_attention", "only causal attention is supported")
    layers = _layer_count(fields, default=26)
    window = fields.integer("sliding_window", 4096)
    pattern = fields.integer("sliding_window_pattern", 6)  # every sixth layer sees everything
    usual = tuple(None if (layer + 1) % pattern == 0 else window for layer in range(layers))
    context = fields.integer("max_position_embeddings", 131_072)
    theta, local_theta = fields.number("rope_theta", 1e6), fields.number("rope_local_base_freq", 1e4)
    ropes = _rope_section(fields, context)
    if fields.has("rope_parameters"):  # transformers 5 nests them by layer type
        rope = _rope(ropes.section("full_attention"), theta, context)
        local_rope = _rope(ropes.section("sliding_attention"), local_theta, context)
    else:
        rope, local_rope = _rope(ropes, theta, context), Rope(local_theta)
    bias = fields.boolean("attention_bias", False)
    return ModelConfig(
        family="gemma3",
        vocab_size=fields.integer("vocab_size", 262_208),
        hidden_size=fields.integer("hidden_size", 2304),
        intermediate_size=fields.integer("intermediate_size", 9216),
        num_layers=layers,
        num_heads=fields.integer("num_attention_heads", 8),
        num_kv_heads=fields.integer("num_key_value_heads", 4),
        head_dim=fields.integer("head_dim", 256),
        context_length=context,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=fields.choice("hidden_activation", "gelu_pytorch_tanh", _ACTIVATIONS),
        tie_embeddings=fields.boolean("tie_word_embeddings", True),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=False,
        rope=rope,
        local_rope=local_rope,
        windows=_windows_by_type(fields, window, usual),  # even one as long as the context: it marks a local layer
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        attention_softcap=fields.number("attn_logit_softcapping") if fields.has("attn_logit_softcapping") else None,
        final_softcap=fields.number("final_logit_softcapping") if fields.has("final_logit_softcapping") else None,
        bos_token_id=_beginning(fields, 2),
        eos_token_ids=_ends(fields, 1),
        qk_norm=True,
        post_norms=True,
    )


def read_gemma3_multimodal(fields: Fields) -> ModelConfig:
    """Gemma 3 with a vision tower: only its text part is used, which is a Gemma 3 like any other."""
    if not fields.has("text_config"):
        raise ConfigError("model configuration: text_config is missing (expected an object: Gemma 3's text part)")
    text = fields.section("text_config")
    outer = {key: fields.raw[key] for key in ("bos_token_id", "eos_token_id") if fields.has(key)}
    return read_gemma3(Fields({**text.raw, **outer}, "text_config"))


def write_gemma3(config: ModelConfig) -> dict[str, Any]:
    assert config.rope is not None
    common = _common_rotary(config)
    del common["hidden_act"]
    return common | {
        "model_type": "gemma3_text",
        "hidden_activation": _SPELLED[config.activation],
        "sliding_window": next((window for window in config.windows if window is not None), config.context_length),
        "layer_types": _layer_types(config),
        "query_pre_attn_scalar": round(config.attention_scale**-2),
        "final_logit_softcapping": config.final_softcap,
        "attn_logit_softcapping": config.attention_softcap,
        "rope_parameters": {
            "full_attention": _spelled_rope(config.rope),
            "sliding_attention": _spelled_rope(config.local_rope or config.rope),
        },
    }


# -- parts that families share -----------------------------------------------------------------------------------------


def _rotary(
    fields: Fields,
    *,
    family: str = "llama",
    kv_heads: int | None = None,
    head_dim: int | None = None,
    attention_bias: bool = False,
    attention_output_bias: bool = False,
    mlp_bias: bool = False,
    windows: tuple[int | None, ...] | None = None,
    qk_norm: bool = False,
    bos: int | None = None,
    eos: int | None = None,
) -> ModelConfig:
    """Read a decoder of Llama's make. The arguments are each family's own: values of absent keys, and its norms."""
    hidden, heads, layers = fields.integer("hidden_size"), fields.integer("num_attention_heads"), _layer_count(fields)
    context = fields.integer("max_position_embeddings")
    if head_dim is None and not fields.has("head_dim"):
        head_dim = _even_share(hidden, heads, "hidden_size", "num_attention_heads")
    head_dim = fields.integer("head_dim", head_dim)
    absent_kv_heads = heads if kv_heads is None or "num_key_value_heads" in fields.raw else kv_heads
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", absent_kv_heads),
        head_dim=head_dim,
        context_length=context,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=fields.choice("hidden_act", "silu", _ACTIVATIONS),
        tie_embeddings=fields.boolean("tie_word_embeddings", False),
        attention_bias=attention_bias,
        attention_output_bias=attention_output_bias,
        mlp_bias=mlp_bias,
        rope=_rope(_rope_section(fields, context), fields.number("rope_theta", 1e4), context),
        local_rope=None,
        windows=_bounded(windows or (None,) * layers, context),
        attention_scale=head_dim**-0.5,
        attention_softcap=None,
        final_softcap=None,
        bos_token_id=_beginning(fields, bos),
        eos_token_ids=_ends(fields, eos),
        qk_norm=qk_norm,
    )


def _layer_count(fields: Fields, key: str = "num_hidden_layers", default: Any = REQUIRED) -> int:
    return fields.integer(key, default, most=MOST_LAYERS)


def _even_share(hidden: int, heads: int, hidden_key: str, heads_key: str) -> int:
    if hidden % heads:
        raise ConfigError(f"model configuration: {hidden_key} {hidden} is not a multiple of {heads_key} {heads}")
    return hidden // heads


def _windows_by_type(fields: Fields, window: int | None, usual: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """One window per layer, as `layer_types` lists them, or the family's usual pattern if that key is absent."""
    if not fields.has("layer_types"):
        return usual
    types = fields.raw["layer_types"]
    if not isinstance(types, list) or not all(kind in ("full_attention", "sliding_attention") for kind in types):
        raise ConfigError(
            f"model configuration: {fields.path}layer_types must be a list of 'full_attention' and "
            f"'sliding_attention', got {shown(types)}"
        )
    if window is None and "sliding_attention" in types:
        raise ConfigError(f"model configuration: {fields.path}layer_types has sliding attention, but no window is set")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _bounded(windows: tuple[int | None, ...], context: int) -> tuple[int | None, ...]:
    """Drop windows as long as the context: they hide nothing, and backends run full attention faster."""
    return tuple(None if window is None or window >= context else window for window in windows)


def _rope_section(fields: Fields, context: int) -> Fields:
    """transformers 5's rope_parameters, or 4's rope_scaling. If both are present, they must agree."""
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"model configuration: {fields.path}partial_rotary_factor other than 1 is not supported")
    if not fields.has("rope_parameters"):
        return fields.section("rope_scaling")
    parameters = fields.section("rope_parameters")
    main = parameters.section("full_attention") if parameters.has("full_attention") else parameters
    theta = main.number("rope_theta", fields.number("rope_theta", 1e4))
    if fields.number("rope_theta", theta) != theta:
        raise ConfigError(
            f"model configuration: {fields.path}rope_theta {fields.number('rope_theta')} contradicts "
            f"{main.path}rope_theta {theta}"
        )
    if fields.has("rope_scaling") and _rope(fields.section("rope_scaling"), theta, context) != _rope(
        main, theta, context
    ):
        raise ConfigError(f"model configuration: {fields.path}rope_scaling contradicts {main.path[:-1]}")
    return parameters


def _rope(scaling: Fields, theta: float, context: int) -> Rope:
    """`scaling` is transformers 4's rope_scaling, or 5's rope_parameters, which may hold theta as well."""
    theta = scaling.number("rope_theta", theta)
    if scaling.number("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"model configuration: {scaling.path}partial_rotary_factor other than 1 is not supported")
    absent = REQUIRED if scaling.has("factor") else "default"
    kind = scaling.text("type" if scaling.has("type") and not scaling.has("rope_type") else "rope_type", absent)
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, LinearScaling(scaling.number("factor")))
    if kind == "llama3":
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if high <= low:
            raise ConfigError(
                f"model configuration: {scaling.path}high_freq_factor must be above low_freq_factor {low}, got {high}"
            )
        original = scaling.integer("original_max_position_embeddings", context)
        return Rope(theta, Llama3Scaling(scaling.number("factor"), low, high, original))
    raise ConfigError(
        f"model configuration: rope scaling {shown(kind)} is not supported; supported are default, linear and llama3"
    )


def _beginning(fields: Fields, default: int | None) -> int | None:
    if "bos_token_id" not in fields.raw:
        return default
    return fields.integer("bos_token_id", least=0) if fields.has("bos_token_id") else None


def _ends(fields: Fields, default: int | None) -> tuple[int, ...]:
    """Read eos_token_id: a number, a list of numbers, or null, which means that only its length ends a text."""
    value = fields.raw.get("eos_token_id", default)
    if value is None:
        return ()
    tokens = value if isinstance(value, list) else [value]
    if not all(is_integer(token) and 0 <= token <= LARGEST for token in tokens):
        raise ConfigError(
            f"model configuration: {fields.path}eos_token_id must be a token id or a list of them, got {shown(value)}"
        )
    return tuple(dict.fromkeys(tokens))


def _common(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


def _common_rotary(config: ModelConfig) -> dict[str, Any]:
    assert config.rope is not None
    return _common(config) | {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": _SPELLED[config.activation],
        "attention_bias": config.attention_bias,
        "rope_parameters": _spelled_rope(config.rope),
    }


def _layer_types(config: ModelConfig) -> list[str]:
    return ["full_attention" if window is None else "sliding_attention" for window in config.windows]


def _spelled_rope(rope: Rope) -> dict[str, Any]:
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
