"""The published checkpoints of each family.

A checkpoint's type alone decides its family; these are the names that people look for. docs/models.md shows the table,
and tests compare it with the readers. Torch-free.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gradus.models.families.records import FAMILIES

CHECKPOINTS: dict[str, tuple[str, ...]] = {
    "gpt2": ("GPT-2", "GPT-2-medium", "GPT-2-large", "GPT-2-XL"),
    "llama": (
        "Llama-3.1-8B", "Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.3-70B", "SmolLM2-135M", "SmolLM2-360M", "SmolLM2-1.7B",
        "DeepSeek-R1-Distill-Llama-8B",
    ),
    "mistral": ("Mistral-7B", "Mistral-Nemo-12B", "Mistral-Small-24B-2501"),
    "mistral3": (
        "Mistral-Small-3.1-24B", "Mistral-Small-3.2-24B", "Ministral-3-3B", "Ministral-3-8B", "Ministral-3-14B",
        "Devstral-Small-2-24B",
    ),
    "ministral3": ("Devstral-2-123B",),
    "smollm3": ("SmolLM3-3B",),
    "qwen2": (
        "Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B", "Qwen2.5-72B",
        "Qwen2.5-Coder-0.5B", "Qwen2.5-Coder-1.5B", "DeepSeek-R1-Distill-Qwen-7B",
    ),
    "qwen3": ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B"),
    "gemma3_text": ("Gemma-3-270M", "Gemma-3-1B"),
    "gemma3": ("Gemma-3-4B", "Gemma-3-12B", "Gemma-3-27B"),
    "gemma4_text": (),
    "gemma4": ("Gemma-4-E2B", "Gemma-4-E4B", "Gemma-4-26B-A4B", "Gemma-4-31B"),
    "gemma4_unified_text": (),
    "gemma4_unified": ("Gemma-4-12B",),
    "phi3": ("Phi-3-mini", "Phi-3-medium", "Phi-3.5-mini", "Phi-4", "Phi-4-mini"),
    "olmo2": ("OLMo-2-1B", "OLMo-2-7B", "OLMo-2-13B", "OLMo-2-32B"),
    "olmo3": ("Olmo-3-7B", "Olmo-3-32B", "Olmo-3.1-32B"),
    "granite": ("Granite-3.3-2B", "Granite-3.3-8B"),
    "granitemoehybrid": ("Granite-4.0-350M", "Granite-4.0-1B", "Granite-4.0-Micro"),
    "mixtral": ("Mixtral-8x7B", "Mixtral-8x22B"),
    "qwen2_moe": ("Qwen1.5-MoE-A2.7B", "Qwen2-57B-A14B"),
    "qwen3_moe": ("Qwen3-30B-A3B", "Qwen3-Coder-30B-A3B", "Qwen3-235B-A22B"),
    "olmoe": ("OLMoE-1B-7B",),
    "granitemoe": ("Granite-3.1-1B-A400M", "Granite-3.1-3B-A800M"),
    "granitemoeshared": (),
    "gpt_oss": ("gpt-oss-20b", "gpt-oss-120b"),
    "glm4_moe": ("GLM-4.5-Air", "GLM-4.5", "GLM-4.6"),
}  # fmt: skip
"""Checkpoints by model_type, none for types that only occur inside others. Those that also see or hear load as their
text part."""


class Loads(NamedTuple):
    """One family: its own name, and those that others have for it."""

    name: str
    model_types: tuple[str, ...]
    checkpoints: tuple[str, ...]


def loadable() -> Iterator[Loads]:
    """Every family, in the order of its record."""
    for name, family in FAMILIES.items():
        yield Loads(
            name,
            tuple(family.types),
            tuple(checkpoint for kind in family.types for checkpoint in CHECKPOINTS.get(kind, ())),
        )
