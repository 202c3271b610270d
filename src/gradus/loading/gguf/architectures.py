"""llama.cpp's architectures: the family that computes each, its tensors' names, and what its conversion changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradus.errors import CheckpointError
from gradus.loading.gguf import configurations, mixtures, names
from gradus.loading.gguf.file import GGUFFile
from gradus.loading.gguf.metadata import Metadata
from gradus.loading.quoting import quoted
from gradus.models.config import ModelConfig
from gradus.models.families.unsupported import why


@dataclass(frozen=True)
class Architecture:
    """A family in llama.cpp.

    families: ours that it stores; the first computes its tensors as they are named. names: llama.cpp's tensor names →
    Hugging Face's. config: makes a config.json from the metadata. interleaved: q and k rows are laid out for the other
    kind of rotation. free_width: heads may have any width, not only the hidden size divided by the number of heads.
    windows: llama.cpp computes windows. score_scale: what it multiplies scores by.
    """

    families: tuple[str, ...]
    names: Mapping[str, str]
    config: Callable[[Metadata], dict[str, Any]]
    interleaved: bool = False
    free_width: bool = True
    windows: bool = False
    score_scale: Callable[[ModelConfig], float] = lambda config: config.head_dim**-0.5


ARCHITECTURES = {
    "llama": Architecture(("llama", "mixtral"), names.LLAMA, mixtures.llama, interleaved=True),
    "smollm3": Architecture(("smollm3",), names.LLAMA, configurations.smollm3, interleaved=True),
    "mistral3": Architecture(("ministral3",), names.LLAMA, configurations.mistral3, interleaved=True),
    "qwen2": Architecture(("qwen2",), names.LLAMA, configurations.qwen2, free_width=False),
    "qwen3": Architecture(("qwen3",), names.QWEN3, configurations.qwen3),
    "qwen2moe": Architecture(("qwen2_moe",), names.LLAMA, mixtures.qwen2moe, free_width=False),
    "qwen3moe": Architecture(("qwen3_moe",), names.QWEN3, mixtures.qwen3moe),
    "olmoe": Architecture(("olmoe",), names.QWEN3, mixtures.olmoe, free_width=False),
    "phi3": Architecture(("phi3",), names.PHI3, configurations.phi3, free_width=False),
    "olmo2": Architecture(("olmo2", "olmo3"), names.OLMO2, configurations.olmo2, free_width=False, windows=True),
    "granite": Architecture(
        ("granite", "granite4"),
        names.LLAMA,
        configurations.granite,
        interleaved=True,
        score_scale=lambda config: config.attention_scale,
    ),
    "granitehybrid": Architecture(("granite",), names.LLAMA, configurations.granite, interleaved=True),
    "gemma3": Architecture(
        ("gemma3",), names.GEMMA3, configurations.gemma3, windows=True, score_scale=configurations.gemma3_scale
    ),
    "granitemoe": Architecture(
        ("granitemoe",),
        names.LLAMA,
        mixtures.granitemoe,
        interleaved=True,
        score_scale=lambda config: config.attention_scale,
    ),
    "gemma4": Architecture(("gemma4",), names.GEMMA4, mixtures.gemma4, windows=True, score_scale=lambda config: 1.0),
    "gpt-oss": Architecture(("gpt_oss",), names.GPT_OSS, mixtures.gpt_oss, windows=True),
    "glm4moe": Architecture(("glm4_moe",), names.GLM4, mixtures.glm4moe),
    "gpt2": Architecture(("gpt2",), names.GPT2, configurations.gpt2),
}


def architecture(file: GGUFFile) -> str:
    """The file's architecture, a key of ARCHITECTURES. Raises CheckpointError for any other."""
    found = file.metadata.get("general.architecture")
    if not isinstance(found, str) or found not in ARCHITECTURES:
        raise CheckpointError(
            f"{file.path.name}: architecture {quoted(found)} is not supported: {why(found, ARCHITECTURES)}"
        )
    return found


def hugging_face_config(file: GGUFFile) -> dict[str, Any]:
    """The model's hyperparameters, with the keys of a config.json.

    Raises CheckpointError for metadata that change the model in a way that is not supported.
    """
    read = Metadata(file, architecture(file))
    config = ARCHITECTURES[read.prefix].config(read)
    read.refuse_unread(_usual(config))
    return config | read.special_tokens()


def _usual(config: dict[str, Any]) -> dict[str, float]:
    """The values of further keys that say what the model does anyway."""
    width, theta = config.get("head_dim"), config.get("rope_theta")
    values = {
        "attention.scale": width and width**-0.5,
        "attention.key_length_swa": width,
        "attention.value_length_swa": width,
        "rope.dimension_count_swa": width,
        "attention.head_count_kv": config.get("n_head"),
        "rope.freq_base_swa": theta,
        "rope.global.freq_base": theta,  # Ollama's names
        "rope.local.freq_base": config.get("rope_local_base_freq"),
        "expert_feed_forward_length": config.get("intermediate_size"),
        "embedding_length_out": config.get("hidden_size", config.get("n_embd")),
    }
    return {key: value for key, value in values.items() if value is not None}
