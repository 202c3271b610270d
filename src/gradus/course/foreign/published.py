"""The model as a program in another language loads it: a folder in float32, as docs/protocol.md describes one.

    python -m gradus.course.foreign.published FOLDER      # writes it, to develop with: 650 MB

The output head is written as a matrix of its own, though the model ties it to the embedding: the program needs no rule
for that.
"""

import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from gradus.bench.speedrun.rules import MODEL
from gradus.course.foreign.weights import CONFIG, shapes, store
from gradus.errors import ConfigError
from gradus.loading import Checkpoint, open_checkpoint
from gradus.models.config import ModelConfig

HEAD = "lm_head.weight"


def write(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write config.json and model.safetensors. Raises ConfigError for a checkpoint that is not a plain Llama."""
    source, ropes = checkpoint.tensors, checkpoint.config.ropes
    if source is None or ropes[0] is None or {*source.names(), HEAD} != names_of(checkpoint.config):
        raise ConfigError(f"{checkpoint.name} has no weights of a Llama to write")
    found = {name: source.read(name) for name in source.names()}
    tensors = {name: tensor.float() for name, tensor in found.items() if isinstance(tensor, Tensor)}
    if lost := found.keys() - tensors.keys():
        raise ConfigError(f"{checkpoint.name}: {min(lost)} is not made of floats")
    tensors.setdefault(HEAD, tensors["model.embed_tokens.weight"].clone())
    return store(folder, tensors, described(checkpoint.config))


def names_of(config: ModelConfig) -> set[str]:
    """The tensors of a plain Llama: no biases, no further norms."""
    return {name for name, _ in shapes(described(config))}


def described(config: ModelConfig) -> dict[str, Any]:
    """config.json, as published Llama checkpoints have it."""
    rope = config.ropes[0]
    assert rope is not None, "a Llama's queries and keys turn"
    return CONFIG | {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rope_theta": rope.theta,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": config.activation,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


if __name__ == "__main__":
    print(write(open_checkpoint(MODEL), Path(sys.argv[1])))
