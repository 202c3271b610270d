"""Reading a Hugging Face config.json: strictly, in the spelling of transformers 4 or 5, one reader a family.

Nothing here guesses: a key that is missing, of the wrong type or out of range is one line that names it. Torch-free.
"""

import reprlib
from collections.abc import Callable
from typing import Any

from gradus.errors import ConfigError
from gradus.models.config import Family, LinearScaling, Llama3Scaling, ModelConfig, Rope

LARGEST = 1 << 24  # of any count in a configuration: far above every real model, low enough to never exhaust memory
MOST_LAYERS = 4096


def read_config(raw: object) -> ModelConfig:
    """`ModelConfig.from_hf`, which see."""
    fields = _Fields(raw)
    return _READERS[_model_type(fields)](fields)


_REQUIRED: Any = object()


class _Fields:
    """One JSON object, read strictly. A null counts as absent, as it does for transformers."""

    def __init__(self, raw: object, path: str = "") -> None:
        if not isinstance(raw, dict):
            raise ConfigError(f"model configuration: {path or 'it'} must be a JSON object, got {_shown(raw)}")
        self.raw, self.path = raw, f"{path}." if path else ""

    def has(self, key: str) -> bool:
        return self.raw.get(key) is not None

    def integer(self, key: str, default: Any = _REQUIRED, least: int = 1, most: int = LARGEST) -> int:
        expected = f"an integer between {least} and {most}"
        return self._read(key, default, expected, lambda value: _is_integer(value) and least <= value <= most)

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        return float(self._read(key, default, "a number above 0 and below 1e12", _is_number))

    def boolean(self, key: str, default: bool) -> bool:
        return self._read(key, default, "true or false", lambda value: isinstance(value, bool))

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        return self._read(key, default, "a string", lambda value: isinstance(value, str))

    def choice(self, key: str, default: str, choices: dict[str, str]) -> str:
        """The value's meaning in `choices`."""
        value = self._read(
            key, default, f"one of {', '.join(sorted(choices))}", lambda v: isinstance(v, str) and v in choices
        )
        return choices[value]

    def section(self, key: str) -> "_Fields":
        """The object under `key`; an empty one when absent."""
        return _Fields(self.raw[key] if self.has(key) else {}, f"{self.path}{key}")

    def refuse(self, key: str, reason: str) -> None:
        """These are switches that change the mathematics, off in every model supported here."""
        if self.boolean(key, False):
            raise ConfigError(f"model configuration: {self.path}{key} is set, but {reason}")

    def _read(self, key: str, default: Any, expected: str, accepts: Callable[[Any], bool]) -> Any:
        if not self.has(key):
            if default is _REQUIRED:
                raise ConfigError(f"model configuration: {self.path}{key} is missing (expected {expected})")
            return default
        value = self.raw[key]
        if not accepts(value):
            raise ConfigError(f"model configuration: {self.path}{key} must be {expected}, got {_shown(value)}")
        return value


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (_is_integer(value) or isinstance(value, float)) and 0 < value < 1e12  # NaN and Infinity fail this too


def _shown(value: object) -> str:
    """Short enough for one line, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


_ARCHITECTURES = {
    "GPT2LMHeadModel": "gpt2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
}


def _model_type(fields: _Fields) -> str:
    """The key into _READERS: model_type, or where that is absent the architecture's class name."""
    name: Any = fields.raw.get("model_type")
    if name is None:
        architectures = fields.raw.get("architectures")
        name = architectures[0] if isinstance(architectures, list) and architectures else architectures
        if name is None:
            raise ConfigError("model configuration: model_type is missing, and so is architectures")
        if isinstance(name, str):
            name = _ARCHITECTURES.get(name, name)
    if isinstance(name, str) and name in _READERS:
        return name
    raise ConfigError(
        f"model configuration: architecture {_shown(name)} is not supported; "
        f"supported model types are {', '.join(sorted(_READERS))}"
    )


_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",  # GPT-2's name for the tanh approximation, which has four names
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def _read_gpt2(fields: _Fields) -> ModelConfig:
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
    )


def _read_llama(fields: _Fields) -> ModelConfig:
    bias = fields.boolean("attention_bias", False)
    mlp_bias = fields.boolean("mlp_bias", False)
    return _rotary(fields, attention_bias=bias, attention_output_bias=bias, mlp_bias=mlp_bias, bos=1, eos=2)


def _read_mistral(fields: _Fields) -> ModelConfig:
    """Llama without biases, and with a window in every layer: absent means 4096, null means none."""
    window = fields.integer("sliding_window") if fields.has("sliding_window") else None
    window = window if "sliding_window" in fields.raw else 4096
    return _rotary(fields, kv_heads=8, windows=(window,) * _layer_count(fields), bos=1, eos=2)


def _read_qwen2(fields: _Fields) -> ModelConfig:
    """Llama with biases on queries, keys and values, always; no key says so."""
    return _rotary(fields, family="qwen2", kv_heads=32, attention_bias=True, windows=_qwen_windows(fields))


def _read_qwen3(fields: _Fields) -> ModelConfig:
    bias = fields.boolean("attention_bias", False)
    return _rotary(
        fields,
        family="qwen3",
        kv_heads=32,
        head_dim=128,
        attention_bias=bias,
        attention_output_bias=bias,
        windows=_qwen_windows(fields),
    )


def _qwen_windows(fields: _Fields) -> tuple[int | None, ...]:
    """What Qwen2 and Qwen3 share: a window that is off unless a key turns it on, and then only in the last layers."""
    window = fields.integer("sliding_window", 4096) if fields.boolean("use_sliding_window", False) else None
    first = fields.integer("max_window_layers", 28, least=0)  # the layers from here on have the window
    usual = tuple(window if layer >= first else None for layer in range(_layer_count(fields)))
    return _windows_by_type(fields, window, usual)


def _read_gemma3(fields: _Fields) -> ModelConfig:
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
    )


def _read_gemma3_multimodal(fields: _Fields) -> ModelConfig:
    """Gemma 3 with a vision tower: its text part is a Gemma 3 like any other, and all that is used of it."""
    if not fields.has("text_config"):
        raise ConfigError("model configuration: text_config is missing (expected an object: Gemma 3's text part)")
    text = fields.section("text_config")
    outer = {key: fields.raw[key] for key in ("bos_token_id", "eos_token_id") if fields.has(key)}
    return _read_gemma3(_Fields({**text.raw, **outer}, "text_config"))


_READERS: dict[str, Callable[[_Fields], ModelConfig]] = {
    "gpt2": _read_gpt2,
    "llama": _read_llama,
    "mistral": _read_mistral,
    "qwen2": _read_qwen2,
    "qwen3": _read_qwen3,
    "gemma3_text": _read_gemma3,
    "gemma3": _read_gemma3_multimodal,
}


def _rotary(
    fields: _Fields,
    *,
    family: Family = "llama",
    kv_heads: int | None = None,
    head_dim: int | None = None,
    attention_bias: bool = False,
    attention_output_bias: bool = False,
    mlp_bias: bool = False,
    windows: tuple[int | None, ...] | None = None,
    bos: int | None = None,
    eos: int | None = None,
) -> ModelConfig:
    """What Llama, Mistral, Qwen2 and Qwen3 share. The arguments are what absent keys mean, to each of them."""
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
    )


def _layer_count(fields: _Fields, key: str = "num_hidden_layers", default: Any = _REQUIRED) -> int:
    return fields.integer(key, default, most=MOST_LAYERS)


def _even_share(hidden: int, heads: int, hidden_key: str, heads_key: str) -> int:
    if hidden % heads:
        raise ConfigError(f"model configuration: {hidden_key} {hidden} is not a multiple of {heads_key} {heads}")
    return hidden // heads


def _windows_by_type(fields: _Fields, window: int | None, usual: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """A window a layer as `layer_types` lists them, or the family's usual pattern where it is absent."""
    if not fields.has("layer_types"):
        return usual
    types = fields.raw["layer_types"]
    if not isinstance(types, list) or not all(kind in ("full_attention", "sliding_attention") for kind in types):
        raise ConfigError(
            f"model configuration: {fields.path}layer_types must be a list of 'full_attention' and "
            f"'sliding_attention', got {_shown(types)}"
        )
    if window is None and "sliding_attention" in types:
        raise ConfigError(f"model configuration: {fields.path}layer_types has sliding attention, but no window is set")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _bounded(windows: tuple[int | None, ...], context: int) -> tuple[int | None, ...]:
    """A window as long as the context hides nothing: full attention, which backends do faster."""
    return tuple(None if window is None or window >= context else window for window in windows)


def _rope_section(fields: _Fields, context: int) -> _Fields:
    """transformers 5's rope_parameters, or 4's rope_scaling. Where both are there, they must say the same."""
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


def _rope(scaling: _Fields, theta: float, context: int) -> Rope:
    """`scaling` is transformers 4's rope_scaling, or 5's rope_parameters, which may hold theta as well."""
    theta = scaling.number("rope_theta", theta)
    if scaling.number("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"model configuration: {scaling.path}partial_rotary_factor other than 1 is not supported")
    absent = _REQUIRED if scaling.has("factor") else "default"
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
        f"model configuration: rope scaling {_shown(kind)} is not supported; supported are default, linear and llama3"
    )


def _beginning(fields: _Fields, default: int | None) -> int | None:
    if "bos_token_id" not in fields.raw:
        return default
    return fields.integer("bos_token_id", least=0) if fields.has("bos_token_id") else None


def _ends(fields: _Fields, default: int | None) -> tuple[int, ...]:
    """eos_token_id is a number, a list of numbers, or null: nothing ends the text but its length."""
    value = fields.raw.get("eos_token_id", default)
    if value is None:
        return ()
    tokens = value if isinstance(value, list) else [value]
    if not all(_is_integer(token) and 0 <= token <= LARGEST for token in tokens):
        raise ConfigError(
            f"model configuration: {fields.path}eos_token_id must be a token id or a list of them, got {_shown(value)}"
        )
    return tuple(dict.fromkeys(tokens))
