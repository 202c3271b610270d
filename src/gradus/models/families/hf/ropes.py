"""Rotary embeddings in config.json: transformers 5's rope_parameters, or 4's rope_theta and rope_scaling."""

import math
from typing import Any

from gradus.errors import ConfigError
from gradus.models.config import LinearScaling, Llama3Scaling, LongRope, Rope, Scaling, Yarn
from gradus.models.families.hf.fields import REQUIRED, Fields, shown

KINDS = "default, linear, llama3, yarn and longrope"


def rope_section(fields: Fields, context: int, partial: bool = False) -> Fields:
    """transformers 5's rope_parameters, or 4's rope_scaling. If both are present, they must agree.

    partial: whether the family's heads may turn in part; otherwise raises ConfigError if they are to.
    """
    if not partial:
        refuse_partial(fields)
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
    older = fields.section("rope_scaling") if fields.has("rope_scaling") else main
    if read_rope(older, theta, context, partial=partial) != read_rope(main, theta, context, partial=partial):
        raise ConfigError(f"model configuration: {fields.path}rope_scaling contradicts {main.path[:-1]}")
    return parameters


def read_rope(scaling: Fields, theta: float, context: int, original: int | None = None, partial: bool = False) -> Rope:
    """`scaling` is transformers 4's rope_scaling, or 5's rope_parameters, which may hold theta as well.

    context: max_position_embeddings, the trained length where `scaling` names none. original: the trained length, where
    the configuration has it outside `scaling`. partial: see `rope_section`.
    """
    if not partial:
        refuse_partial(scaling)
    theta = scaling.number("rope_theta", theta)
    absent = REQUIRED if scaling.has("factor") else "default"
    key = "type" if scaling.has("type") and not scaling.has("rope_type") else "rope_type"
    kind = scaling.text(key, absent)
    if original is None:
        original = scaling.integer("original_max_position_embeddings", context)
    match kind:
        case "default":
            return Rope(theta)
        case "linear":
            return Rope(theta, LinearScaling(scaling.number("factor")))
        case "llama3":
            return Rope(theta, _llama3(scaling, original))
        case "yarn":
            return Rope(theta, _yarn(scaling, context, original))
        case "longrope" | "su":
            return Rope(theta, _longrope(scaling, context, original))
    raise scaling.fault(key, f"{shown(kind)} is not supported; supported are {KINDS}", "default")


def turned_values(fields: Fields, head_dim: int, absent: float = 1.0) -> int | None:
    """The values of a head that turn, of a family whose heads may turn in part. None: all. absent: the family's part
    where the file has none."""
    parameters = fields.section("rope_parameters") if fields.has("rope_parameters") else fields.section("rope_scaling")
    part = parameters.number("partial_rotary_factor", fields.number("partial_rotary_factor", absent))
    turned = int(head_dim * part)
    if not 2 <= turned <= head_dim or turned % 2:
        raise ConfigError(
            f"model configuration: {fields.path}partial_rotary_factor {part} turns {turned} of a head's {head_dim} "
            "values; an even number of them, at least 2, can turn"
        )
    return None if turned == head_dim else turned


def refuse_partial(fields: Fields) -> None:
    """Raises ConfigError if heads are to turn in part, which this family's code in transformers would ignore."""
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(
            f"model configuration: {fields.path}partial_rotary_factor other than 1 is not supported in this family"
        )


def reach(rope: Rope | None, context: int) -> int:
    """The positions that a model can use: YaRN's factor extends the trained length, whatever the file calls its own."""
    if rope is None or not isinstance(rope.scaling, Yarn):
        return context
    return max(context, int(rope.scaling.original_context * rope.scaling.factor))


def _llama3(scaling: Fields, original: int) -> Llama3Scaling:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if high <= low:
        raise ConfigError(
            f"model configuration: {scaling.path}high_freq_factor must be above low_freq_factor {low}, got {high}"
        )
    return Llama3Scaling(scaling.number("factor"), low, high, original)


def _yarn(scaling: Fields, context: int, original: int) -> Yarn:
    factor = scaling.number("factor", context / original)

    def sharper(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    amplitude = sharper(1.0)
    if scaling.has("mscale") and scaling.has("mscale_all_dim"):
        amplitude = sharper(scaling.number("mscale")) / sharper(scaling.number("mscale_all_dim"))
    return Yarn(
        factor,
        original,
        fast=scaling.number("beta_fast", 32.0),
        slow=scaling.number("beta_slow", 1.0),
        whole=scaling.boolean("truncate", True),
        amplitude=scaling.number("attention_factor", amplitude),
    )


def _longrope(scaling: Fields, context: int, original: int) -> LongRope:
    factor = scaling.number("factor", context / original)
    amplitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRope(
        scaling.numbers("short_factor"),
        scaling.numbers("long_factor"),
        original,
        scaling.number("attention_factor", amplitude),
    )


def spelled_rope(rope: Rope) -> dict[str, Any]:
    """`read_rope` backwards."""
    return _spelled_scaling(rope.scaling) | {"rope_theta": rope.theta}


def _spelled_scaling(scaling: Scaling | None) -> dict[str, Any]:
    match scaling:
        case None:
            return {"rope_type": "default"}
        case LinearScaling(factor):
            return {"rope_type": "linear", "factor": factor}
        case Llama3Scaling(factor, low, high, original):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
        case Yarn() as yarn:
            return {
                "rope_type": "yarn",
                "factor": yarn.factor,
                "original_max_position_embeddings": yarn.original_context,
                "beta_fast": yarn.fast,
                "beta_slow": yarn.slow,
                "truncate": yarn.whole,
                "attention_factor": yarn.amplitude,
            }
        case LongRope() as long:
            return {
                "rope_type": "longrope",
                "short_factor": list(long.short),
                "long_factor": list(long.long),
                "original_max_position_embeddings": long.original_context,
                "attention_factor": long.amplitude,
            }
