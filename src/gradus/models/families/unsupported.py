"""Model types that Gradus knows and does not compute: the reason, and the nearest checkpoint that loads.

A refusal names both, so that a reader knows what to try instead. Names are compared by their letters and digits alone:
`qwen3_5` of a config.json, `qwen35` of a GGUF file and `Qwen3_5ForConditionalGeneration` mean the same. Torch-free.
"""

import difflib
import re
from collections.abc import Collection
from typing import NamedTuple

EXPERTS = "mixtures of experts are not computed"
STATES = "layers with a state are not computed"
LATENTS = "experts and latent attention are not computed"
BOTH = "experts and layers with a state are not computed"
SINKS = "experts and attention sinks are not computed"
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
_LLAMA_LARGE = Nearest("Llama-3.3-70B", "llama")
_DISTILLED = Nearest("DeepSeek-R1-Distill-Llama-8B", "llama")
_MISTRAL = Nearest("Mistral-Small-3.2-24B", "mistral3")
_QWEN2 = Nearest("Qwen2.5-7B", "qwen2")
_QWEN3_SMALL = Nearest("Qwen3-4B", "qwen3")
_QWEN3 = Nearest("Qwen3-8B", "qwen3")
_QWEN3_LARGE = Nearest("Qwen3-32B", "qwen3")
_GEMMA_SMALL = Nearest("Gemma-3-270M", "gemma3_text")
_GEMMA = Nearest("Gemma-3-4B", "gemma3")
_GEMMA4 = Nearest("Gemma-4-E2B", "gemma4")
_PHI = Nearest("Phi-3.5-mini", "phi3")
_PHI4 = Nearest("Phi-4-mini", "phi3")
_OLMO = Nearest("OLMo-2-7B", "olmo2")
_GRANITE = Nearest("Granite-3.3-2B", "granite")

UNSUPPORTED: dict[str, tuple[str, Nearest]] = {
    "mixtral": (EXPERTS, _MISTRAL),
    "mistral4": (LATENTS, _MISTRAL),
    "qwen2_moe": (EXPERTS, _QWEN2),
    "qwen3_next": (BOTH, _QWEN3_LARGE),
    "qwen3_5": (STATES, _QWEN3_SMALL),
    "qwen3_5_text": (STATES, _QWEN3_SMALL),
    "qwen3_5_moe": (BOTH, _QWEN3_LARGE),
    "qwen3_5_moe_text": (BOTH, _QWEN3_LARGE),
    "qwen2_vl": (IMAGES, _QWEN2),
    "qwen2_5_vl": (IMAGES, _QWEN2),
    "qwen3_vl": (IMAGES, _QWEN3_SMALL),
    "qwen3_vl_moe": (EXPERTS, _QWEN3_LARGE),
    "qwen2_5_omni": (SOUND, _QWEN2),
    "gpt_oss": (SINKS, _QWEN3),
    "llama4": (EXPERTS, _LLAMA_LARGE),
    "llama4_text": (EXPERTS, _LLAMA_LARGE),
    "mllama": (IMAGES, _LLAMA),
    "deepseek": (EXPERTS, _DISTILLED),
    "deepseek2": (LATENTS, _DISTILLED),  # in GGUF files: V2, V3 and R1
    "deepseek_v2": (LATENTS, _DISTILLED),
    "deepseek_v3": (LATENTS, _DISTILLED),
    "deepseek_v32": (LATENTS, _DISTILLED),
    "kimi_k2": (LATENTS, _LLAMA_LARGE),
    "glm4_moe": (EXPERTS, _QWEN3_LARGE),
    "minimax": (BOTH, _LLAMA_LARGE),
    "minimax_m2": (EXPERTS, _LLAMA_LARGE),
    "dbrx": (EXPERTS, _LLAMA_LARGE),
    "phimoe": (EXPERTS, _PHI),
    "phi4mm": (IMAGES, _PHI4),
    "phi4_multimodal": (IMAGES, _PHI4),
    "olmoe": (EXPERTS, _OLMO),
    "granitemoe": (EXPERTS, _GRANITE),
    "granitemoeshared": (EXPERTS, _GRANITE),
    "gemma3n": (ALTERED, _GEMMA4),
    "gemma3n_text": (ALTERED, _GEMMA4),
    "recurrent_gemma": (STATES, _GEMMA),
    "lfm2": (STATES, _QWEN3_SMALL),
    "lfm2_moe": (BOTH, _QWEN3),
    "lfm2_vl": (STATES, _QWEN3_SMALL),
    "falcon_h1": (STATES, _LLAMA),
    "falcon_mamba": (STATES, _LLAMA),
    "mamba": (STATES, _LLAMA),
    "mamba2": (STATES, _LLAMA),
    "jamba": (BOTH, _LLAMA),
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
