"""Model types that Gradus knows and does not compute: the reason, and the nearest checkpoint that loads.

A refusal names both, so that a reader knows what to try instead. Names are compared by their letters and digits alone:
`qwen3_5` of a config.json, `qwen35` of a GGUF file and `Qwen3_5ForConditionalGeneration` mean the same. Torch-free.
"""

import difflib
import re
from collections.abc import Collection
from typing import NamedTuple

EXPERTS = "its experts are chosen or stored in a way that is not computed"
STATES = "layers with a state are not computed"
LATENTS = "latent attention is not computed"
ENCODERS = "encoders are not computed, only decoders of text"
IMAGES = "it reads images, and its text part is not loaded alone"
SOUND = "it reads sound, and its text part is not loaded alone"
ALTERED = "its layers predict corrections of several streams, which are not computed"


class Nearest(NamedTuple):
    """A published checkpoint that loads, and its model_type."""

    checkpoint: str
    model_type: str

    def __str__(self) -> str:
        return f"{self.checkpoint} ({self.model_type})"


_LLAMA = Nearest("Llama-3.1-8B", "llama")
_MISTRAL = Nearest("Mistral-Small-3.2-24B", "mistral3")
_QWEN2 = Nearest("Qwen2.5-7B", "qwen2")
_QWEN3_SMALL = Nearest("Qwen3-4B", "qwen3")
_GEMMA_SMALL = Nearest("Gemma-3-270M", "gemma3_text")
_GEMMA = Nearest("Gemma-3-4B", "gemma3")
_GEMMA4 = Nearest("Gemma-4-E2B", "gemma4")
_PHI4 = Nearest("Phi-4-mini", "phi3")
_GRANITE = Nearest("Granite-3.3-2B", "granite")
_QWEN2_MOE = Nearest("Qwen1.5-MoE-A2.7B", "qwen2_moe")
_QWEN3_MOE = Nearest("Qwen3-30B-A3B", "qwen3_moe")
_MIXTRAL = Nearest("Mixtral-8x7B", "mixtral")
_MIXTRAL_LARGE = Nearest("Mixtral-8x22B", "mixtral")
_OLMOE = Nearest("OLMoE-1B-7B", "olmoe")
_GLM_AIR = Nearest("GLM-4.5-Air", "glm4_moe")
_GLM = Nearest("GLM-4.5", "glm4_moe")

UNSUPPORTED: dict[str, tuple[str, Nearest]] = {
    "mistral4": (LATENTS, _MISTRAL),
    "qwen3_next": (STATES, _QWEN3_MOE),
    "qwen3_5": (STATES, _QWEN3_SMALL),
    "qwen3_5_text": (STATES, _QWEN3_SMALL),
    "qwen3_5_moe": (STATES, _QWEN3_MOE),
    "qwen3_5_moe_text": (STATES, _QWEN3_MOE),
    "qwen2_vl": (IMAGES, _QWEN2),
    "qwen2_5_vl": (IMAGES, _QWEN2),
    "qwen3_vl": (IMAGES, _QWEN3_SMALL),
    "qwen3_vl_moe": (IMAGES, _QWEN3_MOE),
    "qwen2_5_omni": (SOUND, _QWEN2),
    "llama4": (EXPERTS, _GLM_AIR),
    "llama4_text": (EXPERTS, _GLM_AIR),
    "mllama": (IMAGES, _LLAMA),
    "deepseek": (EXPERTS, _QWEN2_MOE),
    "deepseek2": (LATENTS, _GLM),  # in GGUF files: V2, V3 and R1
    "deepseek_v2": (LATENTS, _GLM),
    "deepseek_v3": (LATENTS, _GLM),
    "deepseek_v32": (LATENTS, _GLM),
    "kimi_k2": (LATENTS, _GLM),
    "minimax": (STATES, _GLM_AIR),
    "minimax_m2": (EXPERTS, _GLM),
    "dbrx": (EXPERTS, _MIXTRAL_LARGE),
    "phimoe": (EXPERTS, _MIXTRAL),
    "phi4mm": (IMAGES, _PHI4),
    "phi4_multimodal": (IMAGES, _PHI4),
    "gemma3n": (ALTERED, _GEMMA4),
    "gemma3n_text": (ALTERED, _GEMMA4),
    "recurrent_gemma": (STATES, _GEMMA),
    "lfm2": (STATES, _QWEN3_SMALL),
    "lfm2_moe": (STATES, _OLMOE),
    "lfm2_vl": (STATES, _QWEN3_SMALL),
    "falcon_h1": (STATES, _LLAMA),
    "falcon_mamba": (STATES, _LLAMA),
    "mamba": (STATES, _LLAMA),
    "mamba2": (STATES, _LLAMA),
    "jamba": (STATES, _MIXTRAL),
    "bamba": (STATES, _GRANITE),
    "zamba2": (STATES, _LLAMA),
    "rwkv": (STATES, _LLAMA),
    "nemotron_h": (STATES, _LLAMA),
    "bert": (ENCODERS, _GEMMA_SMALL),
    "roberta": (ENCODERS, _GEMMA_SMALL),
    "xlm_roberta": (ENCODERS, _GEMMA_SMALL),
    "distilbert": (ENCODERS, _GEMMA_SMALL),
    "deberta_v2": (ENCODERS, _GEMMA_SMALL),
    "modernbert": (ENCODERS, _GEMMA_SMALL),
    "nomic_bert": (ENCODERS, _GEMMA_SMALL),
    "mpnet": (ENCODERS, _GEMMA_SMALL),
    "t5": (ENCODERS, _GEMMA_SMALL),
    "t5gemma": (ENCODERS, _GEMMA_SMALL),
    "bart": (ENCODERS, _GEMMA_SMALL),
    "whisper": (ENCODERS, _GEMMA_SMALL),
    "clip": (ENCODERS, _GEMMA_SMALL),
    "siglip": (ENCODERS, _GEMMA_SMALL),
    "vit": (ENCODERS, _GEMMA_SMALL),
    "paligemma": (IMAGES, _GEMMA),
    "llava": (IMAGES, _LLAMA),
    "llava_next": (IMAGES, _LLAMA),
    "idefics3": (IMAGES, _LLAMA),
    "smolvlm": (IMAGES, Nearest("SmolLM2-1.7B", "llama")),
    "pixtral": (IMAGES, _MISTRAL),
    "voxtral": (SOUND, _MISTRAL),
}


def why(name: object, supported: Collection[str]) -> str:
    """Why a model type, an architecture's class or a GGUF architecture is not supported, and the nearest that loads.

    A name that is not known is compared with those that are supported.
    """
    letters = _letters(name)
    found = {_letters(kind): known for kind, known in UNSUPPORTED.items()}.get(letters)
    if found is not None:
        reason, nearest = found
        return f"{reason}; {nearest} is the nearest that loads"
    spelled = {_letters(kind): kind for kind in sorted(supported, reverse=True)}
    close = difflib.get_close_matches(letters, spelled, n=1)
    near = f"the nearest name that is supported is {spelled[close[0]]}; " if close else ""
    return f"nothing here computes it; {near}`gradus models --families` lists what loads"


def _letters(name: object) -> str:
    """A name's letters and digits, in lower case; of a class, those of its model."""
    text = name if isinstance(name, str) else ""
    return re.sub(r"[\W_]", "", re.sub(r"(For[A-Z]\w+|(LMHead)?Model)$", "", text)).lower()
