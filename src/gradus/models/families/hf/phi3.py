"""config.json of Phi-3, Phi-3.5, Phi-4 and Phi-4-mini."""

from dataclasses import replace
from typing import Any

from gradus.errors import ConfigError
from gradus.models.config import LongRope, ModelConfig, Rope
from gradus.models.families.hf.fields import Fields
from gradus.models.families.hf.ropes import read_rope, rope_section, turned_values
from gradus.models.families.hf.shared import common_rotary, head_width, layer_count, rotary, some_rope, some_window


def read_phi3(fields: Fields) -> ModelConfig:
    """Llama whose heads may turn in part, with LongRoPE, and perhaps with a window in every layer."""
    window = fields.integer("sliding_window") if fields.has("sliding_window") else None
    return rotary(
        fields,
        family="phi3",
        bos=1,
        eos=32_000,
        rope=_rope(fields),
        windows=(window,) * layer_count(fields),
        norm_eps=fields.number("rms_norm_eps", 1e-5),
    )


def write_phi3(config: ModelConfig) -> dict[str, Any]:
    raw, rope = common_rotary(config), some_rope(config)
    del raw["attention_bias"]
    window = some_window(config)
    raw |= {"model_type": "phi3", "sliding_window": window}
    raw["rope_parameters"] |= {"partial_rotary_factor": (rope.turned or config.head_dim) / config.head_dim}
    if isinstance(rope.scaling, LongRope):
        raw["original_max_position_embeddings"] = rope.scaling.original_context
    return raw


def _rope(fields: Fields) -> Rope:
    context = fields.integer("max_position_embeddings")
    section = rope_section(fields, context, partial=True)
    if section.raw.get("rope_type", section.raw.get("type")) == "yarn":  # what early files call LongRoPE
        section = Fields({**section.raw, "rope_type": "longrope"}, section.path[:-1])
    original = fields.integer("original_max_position_embeddings", 4096)
    head_dim = head_width(fields)
    rope = read_rope(section, fields.number("rope_theta", 1e4), context, original, partial=True)
    rope = replace(rope, turned=turned_values(fields, head_dim))
    if isinstance(rope.scaling, LongRope):
        for name, factors in (("short_factor", rope.scaling.short), ("long_factor", rope.scaling.long)):
            if len(factors) != (rope.turned or head_dim) // 2:
                raise ConfigError(
                    f"model configuration: {section.path}{name} has {len(factors)} numbers, but "
                    f"{(rope.turned or head_dim) // 2} pairs of each head turn"
                )
    return rope
