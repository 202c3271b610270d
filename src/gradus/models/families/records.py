"""The model families, one record each: how others spell a family, and which class computes it.

Whatever distinguishes their layers is in the configuration (`gated`, `qk_norm`, …), so no other file asks for a family
by its name. Torch-free: a class is named here, and imported when a model is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradus.errors import ConfigError
from gradus.models.config import ModelConfig
from gradus.models.families.hf import gemma3, gemma4, gpt2, granite, llama, mistral, olmo, phi3, qwen
from gradus.models.families.hf.fields import Fields, shown
from gradus.models.families.hf.mixtures import glm4, gpt_oss, mixtral, olmoe
from gradus.models.families.hf.mixtures import qwen as qwen_moe
from gradus.models.families.unsupported import why


@dataclass(frozen=True)
class ModelType:
    """One `model_type` of config.json. architecture: the class that transformers has for it."""

    architecture: str
    read: Callable[[Fields], ModelConfig]


@dataclass(frozen=True)
class Family:
    """model: the class that computes it, "module:Class". types: by `model_type`; several may spell one family.
    write: a configuration as config.json has it, its `model_type` included: `read` backwards."""

    model: str
    types: Mapping[str, ModelType]
    write: Callable[[ModelConfig], dict[str, Any]]


HOME = "gradus.models.families"

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        model=f"{HOME}.gpt2:GPT2",
        types={"gpt2": ModelType("GPT2LMHeadModel", gpt2.read_gpt2)},
        write=gpt2.write_gpt2,
    ),
    "llama": Family(
        model=f"{HOME}.llama:Llama",
        types={
            "llama": ModelType("LlamaForCausalLM", llama.read_llama),
            "mistral": ModelType("MistralForCausalLM", mistral.read_mistral),
        },
        write=llama.write_llama,
    ),
    "smollm3": Family(
        model=f"{HOME}.llama:Llama",  # its configuration leaves some layers without a rotary embedding
        types={"smollm3": ModelType("SmolLM3ForCausalLM", llama.read_smollm3)},
        write=llama.write_smollm3,
    ),
    "ministral3": Family(
        model=f"{HOME}.ministral3:Ministral3",
        types={
            "ministral3": ModelType("Ministral3ForCausalLM", mistral.read_ministral3),
            "mistral3": ModelType("Mistral3ForConditionalGeneration", mistral.read_mistral3),
        },
        write=mistral.write_ministral3,
    ),
    "qwen2": Family(
        model=f"{HOME}.llama:Llama",  # its configuration asks for biases on queries, keys and values
        types={"qwen2": ModelType("Qwen2ForCausalLM", qwen.read_qwen2)},
        write=qwen.write_qwen,
    ),
    "qwen3": Family(
        model=f"{HOME}.qwen3:Qwen3",
        types={"qwen3": ModelType("Qwen3ForCausalLM", qwen.read_qwen3)},
        write=qwen.write_qwen,
    ),
    "phi3": Family(
        model=f"{HOME}.phi3:Phi3",
        types={"phi3": ModelType("Phi3ForCausalLM", phi3.read_phi3)},
        write=phi3.write_phi3,
    ),
    "olmo2": Family(
        model=f"{HOME}.olmo2:Olmo2",
        types={"olmo2": ModelType("Olmo2ForCausalLM", olmo.read_olmo2)},
        write=olmo.write_olmo2,
    ),
    "olmo3": Family(
        model=f"{HOME}.olmo2:Olmo2",  # its configuration has windows, and a rotary embedding for their layers
        types={"olmo3": ModelType("Olmo3ForCausalLM", olmo.read_olmo3)},
        write=olmo.write_olmo3,
    ),
    "granite": Family(
        model=f"{HOME}.granite:Granite",
        types={"granite": ModelType("GraniteForCausalLM", granite.read_granite)},
        write=granite.write_granite,
    ),
    "granite4": Family(
        model=f"{HOME}.granite:GraniteHybrid",
        types={"granitemoehybrid": ModelType("GraniteMoeHybridForCausalLM", granite.read_granite_hybrid)},
        write=granite.write_granite_hybrid,
    ),
    "gemma3": Family(
        model=f"{HOME}.gemma3:Gemma3",
        types={
            "gemma3_text": ModelType("Gemma3ForCausalLM", gemma3.read_gemma3),
            "gemma3": ModelType("Gemma3ForConditionalGeneration", gemma3.read_gemma3_multimodal),
        },
        write=gemma3.write_gemma3,
    ),
    "gemma4": Family(
        model=f"{HOME}.gemma4.model:Gemma4",
        types={
            "gemma4_text": ModelType("Gemma4ForCausalLM", gemma4.read_gemma4),
            "gemma4": ModelType("Gemma4ForConditionalGeneration", gemma4.read_gemma4_multimodal),
            "gemma4_unified_text": ModelType("Gemma4UnifiedForCausalLM", gemma4.read_gemma4_unified),
            "gemma4_unified": ModelType("Gemma4UnifiedForConditionalGeneration", gemma4.read_gemma4_unified_multimodal),
        },
        write=gemma4.write_gemma4,
    ),
    "mixtral": Family(
        model=f"{HOME}.mixtures.mixtral:Mixtral",
        types={"mixtral": ModelType("MixtralForCausalLM", mixtral.read_mixtral)},
        write=mixtral.write_mixtral,
    ),
    "qwen2_moe": Family(
        model=f"{HOME}.mixtures.qwen:Qwen2Moe",
        types={"qwen2_moe": ModelType("Qwen2MoeForCausalLM", qwen_moe.read_qwen2_moe)},
        write=qwen_moe.write_qwen2_moe,
    ),
    "qwen3_moe": Family(
        model=f"{HOME}.mixtures.qwen:Qwen3Moe",
        types={"qwen3_moe": ModelType("Qwen3MoeForCausalLM", qwen_moe.read_qwen3_moe)},
        write=qwen_moe.write_qwen3_moe,
    ),
    "olmoe": Family(
        model=f"{HOME}.mixtures.olmoe:Olmoe",
        types={"olmoe": ModelType("OlmoeForCausalLM", olmoe.read_olmoe)},
        write=olmoe.write_olmoe,
    ),
    "granitemoe": Family(
        model=f"{HOME}.mixtures.granite:GraniteMoe",  # Granite 4 with experts too, whose type is with the dense ones
        types={
            "granitemoe": ModelType("GraniteMoeForCausalLM", granite.read_granite_moe),
            "granitemoeshared": ModelType("GraniteMoeSharedForCausalLM", granite.read_granite_moe_shared),
        },
        write=granite.write_granite_moe,
    ),
    "gpt_oss": Family(
        model=f"{HOME}.mixtures.gpt_oss:GptOss",
        types={"gpt_oss": ModelType("GptOssForCausalLM", gpt_oss.read_gpt_oss)},
        write=gpt_oss.write_gpt_oss,
    ),
    "glm4_moe": Family(
        model=f"{HOME}.mixtures.glm4:Glm4Moe",
        types={"glm4_moe": ModelType("Glm4MoeForCausalLM", glm4.read_glm4_moe)},
        write=glm4.write_glm4_moe,
    ),
}


def read_config(raw: object) -> ModelConfig:
    """Read a Hugging Face config.json, in the spelling of transformers 4 or 5.

    Absent keys take the value that transformers gives them. Code that a configuration points to (`auto_map`) is
    ignored. Raises ConfigError naming the key, what it must be, and what was found.
    """
    fields = Fields(raw)
    return _types()[_model_type(fields)].read(fields)


def write_config(config: ModelConfig) -> dict[str, Any]:
    """`read_config` backwards, in the spelling of transformers 5."""
    raw = FAMILIES[config.family].write(config)
    return raw | {"architectures": [architecture(raw["model_type"])]}


def architecture(model_type: str) -> str:
    """The class by which others find a model's code: named in every config.json, and in no GGUF file."""
    return _types()[model_type].architecture


def _types() -> dict[str, ModelType]:
    return {name: kind for family in FAMILIES.values() for name, kind in family.types.items()}


def _model_type(fields: Fields) -> str:
    """model_type, or where that is absent the one of the architecture's class."""
    key, name = "model_type", fields.raw.get("model_type")
    if name is None:
        architectures = fields.raw.get("architectures")
        key, name = (
            "architecture",
            architectures[0] if isinstance(architectures, list) and architectures else architectures,
        )
        if name is None:
            raise ConfigError("model configuration: model_type is missing, and so is architectures")
        name = next((kind for kind in _types() if architecture(kind) == name), name)
    if isinstance(name, str) and name in _types():
        return name
    raise ConfigError(f"model configuration: {key} {shown(name)} is not supported: {why(name, _types())}")
