"""config.json of Mistral, Ministral 3, and the text part of Mistral 3, which also sees."""

from dataclasses import replace
from typing import Any

from gradus.models.config import ModelConfig, QueryGrowth, Rope, Yarn
from gradus.models.families.hf.fields import Fields, shown
from gradus.models.families.hf.ropes import read_rope, rope_section, spelled_rope
from gradus.models.families.hf.shared import common_rotary, layer_count, rotary, some_rope, some_window, text_part
from gradus.models.families.unsupported import why


def read_mistral(fields: Fields) -> ModelConfig:
    """Llama without biases, and with a window in every layer: absent means 4096, null means none."""
    return rotary(fields, family="llama", kv_heads=8, windows=_windows(fields, 4096), bos=1, eos=2)


def read_ministral3(fields: Fields) -> ModelConfig:
    """Mistral with YaRN, and with queries that grow with their position."""
    context = fields.integer("max_position_embeddings")
    return rotary(
        fields,
        family="ministral3",
        kv_heads=8,
        head_dim=128,
        rope=_growing_rope(fields, context),
        windows=_windows(fields, None),
        bos=1,
        eos=2,
        norm_eps=fields.number("rms_norm_eps", 1e-5),
    )


def read_mistral3(fields: Fields) -> ModelConfig:
    """Mistral Small 3, or Ministral 3, with a vision tower: only its text part is used."""
    text = text_part(fields, "Mistral 3")
    readers = {"mistral": read_mistral, "ministral3": read_ministral3}
    kind = text.text("model_type", "mistral")
    if kind not in readers:
        raise text.fault("model_type", f"{shown(kind)} is not supported: {why(kind, readers)}", "mistral")
    if "tie_word_embeddings" not in text.raw:
        text = Fields({**text.raw, "tie_word_embeddings": fields.boolean("tie_word_embeddings", False)}, "text_config")
    return replace(readers[kind](text), family="ministral3")


def write_ministral3(config: ModelConfig) -> dict[str, Any]:
    """Write Ministral 3's configuration, or where queries do not grow, Mistral Small 3's, around its text part."""
    window = some_window(config)
    rope, common = some_rope(config), common_rotary(config) | {"sliding_window": window}
    if rope.growth is None:
        return {"model_type": "mistral3", "text_config": common | {"model_type": "mistral"}}
    growth = {
        "llama_4_scaling_beta": rope.growth.beta,
        "original_max_position_embeddings": rope.growth.original_context,
    }
    return common | {"model_type": "ministral3", "rope_parameters": spelled_rope(rope) | growth}


def _windows(fields: Fields, absent: int | None) -> tuple[int | None, ...]:
    window = fields.integer("sliding_window") if fields.has("sliding_window") else None
    window = window if "sliding_window" in fields.raw else absent
    return (window,) * layer_count(fields)


def _growing_rope(fields: Fields, context: int) -> Rope:
    if not fields.has("rope_parameters") and not fields.has("rope_scaling"):
        return Rope(1e6, Yarn(16.0, 16_384), growth=QueryGrowth(0.1, 16_384))
    section = rope_section(fields, context)
    rope = read_rope(section, fields.number("rope_theta", 1e4), context)
    if not section.has("llama_4_scaling_beta"):
        return rope
    original = section.integer("original_max_position_embeddings", context)
    return replace(rope, growth=QueryGrowth(section.number("llama_4_scaling_beta"), original))
