"""Gemma 4's config.json: gemma4_text and gemma4_unified_text, and the multimodal files (gemma4, gemma4_unified) around
them, whose text part alone is used.

Layers that see everything ("full") and layers with a window differ in more than the window: the size of a head, the
number of key-value heads, the rotary embedding, and whether values are keys. `ModelConfig` has each as a list by layer.
Torch-free.
"""

import math
from typing import Any

from gradus.errors import ConfigError
from gradus.models.config import Experts, LayerSizes, LinearScaling, ModelConfig, Rope
from gradus.models.families.hf.experts import some_experts
from gradus.models.families.hf.fields import Fields, shown
from gradus.models.families.hf.ropes import read_rope, spelled_rope
from gradus.models.families.hf.shared import (
    ACTIVATIONS,
    SPELLED,
    beginning,
    common_rotary,
    ends,
    layer_count,
    layer_types,
    text_part,
    windows_by_type,
)

GLOBAL_HEAD_DIM = 512  # of layers that see everything, where config.json does not say


def read_gemma4(fields: Fields) -> ModelConfig:
    return _read(fields, context=131_072, window=512, embedded=256)


def read_gemma4_unified(fields: Fields) -> ModelConfig:
    """Gemma 4 12B, which has no embeddings by layer."""
    return _read(fields, context=262_144, window=1024, embedded=0)


def read_gemma4_multimodal(fields: Fields) -> ModelConfig:
    return read_gemma4(text_part(fields, "Gemma 4"))


def read_gemma4_unified_multimodal(fields: Fields) -> ModelConfig:
    return read_gemma4_unified(text_part(fields, "Gemma 4"))


def _read(fields: Fields, *, context: int, window: int, embedded: int) -> ModelConfig:
    _refuse(fields)
    layers = layer_count(fields, default=30)
    context = fields.integer("max_position_embeddings", context)
    windows = _windows(fields, layers, fields.integer("sliding_window", window))
    sources = _sources(fields, windows)
    sizes = _sizes(fields, windows, sources)
    alike = sizes[0] if len(set(sizes)) == 1 else None
    bias = fields.boolean("attention_bias", False)
    hidden = fields.integer("hidden_size", 2304)
    width = fields.integer("hidden_size_per_layer_input", embedded, least=0) if embedded else 0
    vocabulary = _vocabulary(fields, width)
    keys_as_values, experts = fields.boolean("attention_k_eq_v", False), _experts(fields)
    return ModelConfig(
        family="gemma4",
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=alike.intermediate_size if alike else fields.integer("intermediate_size", 9216),
        num_layers=layers,
        num_heads=fields.integer("num_attention_heads", 8),
        num_kv_heads=alike.num_kv_heads if alike else fields.integer("num_key_value_heads", 4),
        head_dim=alike.head_dim if alike else fields.integer("head_dim", 256),
        context_length=context,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=fields.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
        tie_embeddings=fields.boolean("tie_word_embeddings", True),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=False,
        ropes=_ropes(fields, windows, sizes, context),
        windows=windows,  # even one as long as the context: it marks a layer of the other kind
        attention_scale=1.0,  # queries and keys are normalized, and their norms' weights include it
        attention_softcap=None,
        final_softcap=fields.number("final_logit_softcapping") if fields.has("final_logit_softcapping") else None,
        bos_token_id=beginning(fields, 2),
        eos_token_ids=ends(fields, 1),
        post_norms=True,
        qk_norm=True,
        value_norm=True,
        embedding_scale=hidden**0.5,
        layer_scales=True,
        sizes=() if alike else sizes,
        keys_as_values=_keys_as_values(windows, sources) if keys_as_values else (),
        kv_sources=sources if sources != tuple(range(layers)) else (),
        per_layer_width=width,
        experts=() if experts is None else (experts,) * layers,
        experts_apart=experts is not None,
    )


def _experts(fields: Fields) -> Experts | None:
    """The experts next to each layer's MLP (26B-A4B)."""
    if not fields.boolean("enable_moe_block", False):
        return None
    count, chosen = fields.integer("num_experts"), fields.integer("top_k_experts")
    return Experts(count, chosen, fields.integer("moe_intermediate_size"), scaled=True)


def _refuse(fields: Fields) -> None:
    if fields.has("use_bidirectional_attention") and fields.text("use_bidirectional_attention") != "vision":
        raise ConfigError(  # "vision" leaves text causal
            f"model configuration: {fields.path}use_bidirectional_attention is "
            f"{shown(fields.raw['use_bidirectional_attention'])}, but only causal attention is supported"
        )


def _vocabulary(fields: Fields, per_layer_width: int) -> int:
    size = fields.integer("vocab_size", 262_144)
    if per_layer_width and fields.integer("vocab_size_per_layer_input", 262_144) != size:
        raise ConfigError(
            f"model configuration: {fields.path}vocab_size_per_layer_input must be vocab_size, {size}, got "
            f"{fields.integer('vocab_size_per_layer_input', 262_144)}"
        )
    return size


def _windows(fields: Fields, layers: int, window: int) -> tuple[int | None, ...]:
    """Every sixth layer sees everything, or those that `layer_types` lists, and the last one in any case."""
    usual = tuple(None if (layer + 1) % 6 == 0 else window for layer in range(layers))
    return (*windows_by_type(fields, window, usual)[:-1], None)


def _sources(fields: Fields, windows: tuple[int | None, ...]) -> tuple[int, ...]:
    """The layer whose keys and values each attends to: the last num_kv_shared_layers have none of their own, and take
    those of the last layer of their kind before them."""
    layers = len(windows)
    first = layers - fields.integer("num_kv_shared_layers", 0, least=0, most=layers - 1)
    last = {window: layer for layer, window in enumerate(windows[:first])}
    for window in windows[first:]:
        if window not in last:
            kind = "full_attention" if window is None else "sliding_attention"
            raise ConfigError(
                f"model configuration: {fields.path}num_kv_shared_layers {layers - first} leaves no {kind} layer "
                f"with keys and values among the first {first}"
            )
    return tuple(range(first)) + tuple(last[window] for window in windows[first:])


def _keys_as_values(windows: tuple[int | None, ...], sources: tuple[int, ...]) -> tuple[bool, ...]:
    return tuple(
        window is None and source == layer for layer, (window, source) in enumerate(zip(windows, sources, strict=True))
    )


def _sizes(fields: Fields, windows: tuple[int | None, ...], sources: tuple[int, ...]) -> tuple[LayerSizes, ...]:
    usual = LayerSizes(
        fields.integer("num_key_value_heads", 4), fields.integer("head_dim", 256),
        fields.integer("intermediate_size", 9216),
    )  # fmt: skip
    wide = fields.boolean("use_double_wide_mlp", False)
    sizes = []
    for layer, (window, source) in enumerate(zip(windows, sources, strict=True)):
        kv_heads, head_dim = _heads(fields, usual, layer, window)
        sizes.append(LayerSizes(kv_heads, head_dim, usual.intermediate_size * (2 if wide and source != layer else 1)))
    return tuple(sizes)


def _heads(fields: Fields, usual: LayerSizes, layer: int, window: int | None) -> tuple[int, int]:
    """num_kv_heads and head_dim of a layer: of transformers' `per_layer_config`, or published files' `global_…`."""
    if not fields.has("per_layer_config"):
        if window is not None:
            return usual.num_kv_heads, usual.head_dim
        alone = fields.boolean("attention_k_eq_v", False)  # it decides whether the other key counts, as in transformers
        kv_heads = fields.integer("num_global_key_value_heads", usual.num_kv_heads)
        return kv_heads if alone else usual.num_kv_heads, fields.integer("global_head_dim", GLOBAL_HEAD_DIM)
    own = fields.section("per_layer_config").section(str(layer))
    if others := own.raw.keys() - {"num_key_value_heads", "head_dim"}:
        raise ConfigError(f"model configuration: {own.path}{min(others)} cannot be set by layer")
    return own.integer("num_key_value_heads", usual.num_kv_heads), own.integer("head_dim", usual.head_dim)


def _ropes(
    fields: Fields, windows: tuple[int | None, ...], sizes: tuple[LayerSizes, ...], context: int
) -> tuple[Rope, ...]:
    parameters = fields.section("rope_parameters")
    nearby, everywhere = parameters.section("sliding_attention"), parameters.section("full_attention")
    if not everywhere.raw:
        everywhere = Fields({"rope_type": "proportional", "partial_rotary_factor": 0.25}, everywhere.path[:-1])
    return tuple(
        _rope(everywhere, 1e6, each.head_dim, context) if window is None else _rope(nearby, 1e4, each.head_dim, context)
        for window, each in zip(windows, sizes, strict=True)
    )


def _rope(fields: Fields, theta: float, head_dim: int, context: int) -> Rope:
    """As `read_rope`, and "proportional": a part of each head turns, by the shortest wavelengths of the whole head."""
    if fields.raw.get("rope_type") != "proportional":
        return read_rope(fields, theta, context)
    part = fields.number("partial_rotary_factor", 1.0)
    turned = 2 * int(part * head_dim // 2)
    if not 2 <= turned <= head_dim:
        raise ConfigError(
            f"model configuration: {fields.path}partial_rotary_factor {part} turns {turned} of a head's {head_dim} "
            "values, and must turn 2 at least, and at most all"
        )
    factor = fields.number("factor", 1.0)
    scaling = None if factor == 1 else LinearScaling(factor)
    return Rope(fields.number("rope_theta", theta), scaling, None if turned == head_dim else turned, proportional=True)


# -- backwards ---------------------------------------------------------------------------------------------------------


def write_gemma4(config: ModelConfig) -> dict[str, Any]:
    """Write gemma4_text, which can say all that the other types can, with sizes by layer as transformers 5 has them."""
    raw = common_rotary(config)
    del raw["hidden_act"]
    layers = range(config.num_layers)
    local = next((layer for layer in layers if config.windows[layer] is not None), None)
    return (
        raw
        | {
            "model_type": "gemma4_text",
            "hidden_activation": SPELLED[config.activation],
            "sliding_window": config.context_length if local is None else config.windows[local],
            "layer_types": layer_types(config),
            "final_logit_softcapping": config.final_softcap,
            "use_bidirectional_attention": None,
            "attention_k_eq_v": any(config.keys_as_values),
            "num_kv_shared_layers": sum(not config.stores_kv(layer) for layer in layers),
            "use_double_wide_mlp": any(size.intermediate_size != config.intermediate_size for size in config.sizes),
            "vocab_size_per_layer_input": config.vocab_size,
            "hidden_size_per_layer_input": config.per_layer_width,
            "per_layer_config": {
                str(layer): {"num_key_value_heads": size.num_kv_heads, "head_dim": size.head_dim}
                for layer, size in enumerate(config.sizes)
            },
            "rope_parameters": {
                "full_attention": _spelled(config, config.num_layers - 1),
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}
                if local is None
                else _spelled(config, local),
            },
        }
        | _spelled_experts(config)
    )


def _spelled_experts(config: ModelConfig) -> dict[str, Any]:
    if not config.experts:
        return {}
    experts = some_experts(config)
    return {
        "enable_moe_block": True,
        "num_experts": experts.count,
        "top_k_experts": experts.chosen,
        "moe_intermediate_size": experts.width,
    }


def _spelled(config: ModelConfig, layer: int) -> dict[str, Any]:
    rope, head_dim = config.ropes[layer], config.layer(layer).head_dim
    assert rope is not None
    if not rope.proportional:
        return spelled_rope(rope)
    part = (rope.turned or head_dim) / head_dim
    if 2 * int(part * head_dim // 2) != rope.turned:  # the quotient was rounded down
        part = math.nextafter(part, 1)
    factor = rope.scaling.factor if isinstance(rope.scaling, LinearScaling) else 1.0
    return {"rope_type": "proportional", "rope_theta": rope.theta, "partial_rotary_factor": part, "factor": factor}
