"""How a GGUF file says that positions are scaled: as config.json says it, from metadata and from tensors of factors.

Llama 3's scaling and LongRoPE are stored as what they amount to, a factor for each pair of values: `rope_freqs`,
`rope_factors_long` and `rope_factors_short`. Llama 3's four parameters are recovered from its factors.
"""

import math
from typing import Any

from gradus.errors import CheckpointError
from gradus.loading.gguf.metadata import Metadata
from gradus.loading.quoting import quoted

FACTORS = "rope_freqs.weight"  # Llama 3's scaling, computed for each frequency
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
DESCRIBING = frozenset({FACTORS, LONG, SHORT})
"""Tensors that no model has: they belong to the configuration."""

KINDS = ("none", "linear", "yarn", "longrope")


def rope_scaling(read: Metadata, turned: int) -> dict[str, Any] | None:
    """Read how positions are scaled. As in llama.cpp, a factor without a type is linear, and had another name once.

    turned: values of each head that turn.
    """
    kind = read.get("rope.scaling.type", "linear")
    if kind not in KINDS:
        raise CheckpointError(
            f"{read.label}: rope scaling {quoted(kind)} is not supported; supported are {', '.join(KINDS)}"
        )
    factor = read.number("rope.scaling.factor", read.number("rope.scale_linear", 0.0))
    linear = kind == "linear" and factor not in (0.0, 1.0)
    stored = DESCRIBING & read.file.tensors.keys()
    if stored and (linear or kind == "yarn"):
        read.refuse("rope.scaling", f"= {factor} and tensor {min(stored)!r} scale positions twice: not supported")
    if kind == "yarn":
        return _yarn(read, factor)
    if kind == "longrope" or LONG in stored or SHORT in stored:
        return _longrope(read)
    if FACTORS in stored:
        return _llama3(read, turned)
    return {"rope_type": "linear", "factor": factor} if linear else None


def original_context(read: Metadata) -> int:
    """The length of the contexts that the model was first trained on."""
    return read.integer("rope.scaling.original_context_length", read.integer("context_length"))


def _yarn(read: Metadata, factor: float) -> dict[str, Any]:
    """llama.cpp derives the amplitude from the factor, and from the log multiplier (DeepSeek's mscale_all_dim)."""
    if read.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        read.refuse("rope.scaling.yarn_ext_factor", "other than 1 is not supported")

    def sharper(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    key = "rope.scaling.yarn_log_multiplier"
    if not (weight := read.number(key, 0.0)) >= 0:
        read.refuse(key, f"must be at least 0, got {weight}")
    amplitude = sharper(1.0) / sharper(weight)
    amplitude *= read.number("rope.scaling.attn_factor", 1.0)
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original_context(read),
        "beta_fast": read.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": read.number("rope.scaling.yarn_beta_slow", 1.0),
        "attention_factor": read.number("rope.scaling.yarn_attn_factor", amplitude),
    }


def _longrope(read: Metadata) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "long_factor": _factors(read, LONG),
        "short_factor": _factors(read, SHORT),
        "original_max_position_embeddings": original_context(read),
        "attention_factor": read.number("rope.scaling.attn_factor", 1.0),
    }


def _factors(read: Metadata, tensor: str) -> list[float]:
    if tensor not in read.file.tensors:
        raise CheckpointError(f"{read.label}: tensor {tensor!r} is missing, which LongRoPE needs")
    return [float(value) for value in read.file.read(tensor).flatten()]


def _llama3(read: Metadata, turned: int) -> dict[str, Any]:
    """Recover Llama 3's parameters from the stored factors, assuming the constants that all Llama 3 models share.

    The factor of the slowest rotation is `factor` itself; the others must equal the file's.
    """
    import torch

    from gradus.models.config import Llama3Scaling, Rope
    from gradus.models.rope import frequencies

    factors, context = read.file.read(FACTORS).float(), read.integer("context_length")
    theta, factor = read.number("rope.freq_base", 10000.0), factors.max().item()
    known = factors.shape == (turned // 2,) and 1.0 <= factor < 1e6
    if known:
        scaled = frequencies(Rope(theta, Llama3Scaling(factor, 1.0, 4.0, 8192)), turned, context)
        known = torch.allclose(frequencies(Rope(theta), turned, context) / scaled, factors, rtol=1e-3)
    if not known:
        raise CheckpointError(f"{read.label}: tensor {FACTORS!r} does not hold the factors of Llama 3's scaling")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
