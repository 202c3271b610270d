"""Parts that the families' config.json share."""

from typing import Any

from gradus.errors import ConfigError
from gradus.models.config import CLAMPED, ModelConfig, Rope
from gradus.models.families.hf.fields import LARGEST, REQUIRED, Fields, is_integer, shown
from gradus.models.families.hf.ropes import reach, read_rope, rope_section, spelled_rope

MOST_LAYERS = 4096

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",  # GPT-2's name for the tanh approximation, which has four names
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
SPELLED = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", CLAMPED: "silu"}


def rotary(
    fields: Fields,
    *,
    family: str,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    bos: int | None = None,
    eos: int | None = None,
    rope: Rope | None = None,
    windows: tuple[int | None, ...] | None = None,
    width_key: str = "intermediate_size",
    **own: Any,
) -> ModelConfig:
    """Read a decoder of Llama's make. The arguments are each family's own: values of absent keys, and its traits.

    rope: of all layers, if the family reads it in its own way. own: fields of the configuration.
    """
    layers, context = layer_count(fields), fields.integer("max_position_embeddings")
    heads, head_dim = fields.integer("num_attention_heads"), head_width(fields, head_dim)
    absent_kv_heads = heads if kv_heads is None or "num_key_value_heads" in fields.raw else kv_heads
    if rope is None and "ropes" not in own:
        rope = read_rope(rope_section(fields, context), fields.number("rope_theta", 1e4), context)
    ropes = own.pop("ropes", (rope,) * layers)
    longest = max(reach(rope, context) for rope in (rope, *ropes))
    read = {
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
        "attention_bias": False,
        "attention_output_bias": False,
        "mlp_bias": False,
        "attention_scale": head_dim**-0.5,
        "attention_softcap": None,
        "final_softcap": None,
        "tie_embeddings": fields.boolean("tie_word_embeddings", False),
    }
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer(width_key),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", absent_kv_heads),
        head_dim=head_dim,
        context_length=longest,
        activation=fields.choice("hidden_act", "silu", ACTIVATIONS),
        ropes=ropes,
        windows=bounded(windows or (None,) * layers, longest),
        bos_token_id=beginning(fields, bos),
        eos_token_ids=ends(fields, eos),
        **(read | own),
    )


def head_width(fields: Fields, absent: int | None = None) -> int:
    """head_dim; where the key is absent, the family's own value, or an even share of the hidden size."""
    if absent is None and not fields.has("head_dim"):
        hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
        return even_share(hidden, heads, "hidden_size", "num_attention_heads")
    return fields.integer("head_dim", absent)


def text_part(fields: Fields, family: str) -> Fields:
    """The text part of a model that sees or hears, with the special tokens of the whole."""
    if not fields.has("text_config"):
        raise ConfigError(f"model configuration: text_config is missing (expected an object: {family}'s text part)")
    text = fields.section("text_config")
    outer = {key: fields.raw[key] for key in ("bos_token_id", "eos_token_id") if fields.has(key)}
    return Fields({**text.raw, **outer}, "text_config")


def layer_count(fields: Fields, key: str = "num_hidden_layers", default: Any = REQUIRED) -> int:
    return fields.integer(key, default, most=MOST_LAYERS)


def even_share(hidden: int, heads: int, hidden_key: str, heads_key: str) -> int:
    if hidden % heads:
        raise ConfigError(f"model configuration: {hidden_key} {hidden} is not a multiple of {heads_key} {heads}")
    return hidden // heads


def windows_by_type(fields: Fields, window: int | None, usual: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """One window per layer, as `layer_types` lists them, or the family's usual pattern if that key is absent."""
    if not fields.has("layer_types"):
        return usual
    types = fields.raw["layer_types"]
    if not isinstance(types, list) or not all(kind in ("full_attention", "sliding_attention") for kind in types):
        kinds = "must be a list of 'full_attention' and 'sliding_attention'"
        raise fields.fault("layer_types", f"{kinds}, got {shown(types)}")
    if window is None and "sliding_attention" in types:
        raise fields.fault("layer_types", "has sliding attention, but no window is set")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def bounded(windows: tuple[int | None, ...], context: int) -> tuple[int | None, ...]:
    """Drop windows as long as the context: they hide nothing, and backends run full attention faster."""
    return tuple(None if window is None or window >= context else window for window in windows)


def beginning(fields: Fields, default: int | None) -> int | None:
    if "bos_token_id" not in fields.raw:
        return default
    return fields.integer("bos_token_id", least=0) if fields.has("bos_token_id") else None


def ends(fields: Fields, default: int | None) -> tuple[int, ...]:
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


def common(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


def common_rotary(config: ModelConfig) -> dict[str, Any]:
    return common(config) | {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": SPELLED[config.activation],
        "attention_bias": config.attention_bias,
        "rope_parameters": spelled_rope(some_rope(config)),
    }


def layer_types(config: ModelConfig) -> list[str]:
    return ["full_attention" if window is None else "sliding_attention" for window in config.windows]


def some_window(config: ModelConfig) -> int | None:
    """The window of the layers that have one; None: no layer has."""
    return next((window for window in config.windows if window is not None), None)


def some_rope(config: ModelConfig) -> Rope:
    """The rotary embedding of the layers that have one; Llama's first, if none has."""
    return next((rope for rope in config.ropes if rope is not None), Rope(1e4))
