"""The models: what they compute, and nothing about how they are served.

Read in this order:

    config.py       a model in numbers;  published/: what config.json files say of known ones;  shapes.py: their names
    attention.py    the one seam to the engine: how keys and values are kept and read
    families/       GPT-2, Llama and all others, and how config.json spells them
    heads.py        between the qkv product and the output product;  rope.py: a token's position as an angle
    layers.py       linear layers, embeddings, norms;  embedded.py: embeddings of each layer
    experts.py      a layer's experts, and the router that chooses some for each token
    parts.py        a model's description of its layers, for kernels that compute them whole
    create.py       a model from its configuration
    weights.py      copies a checkpoint's tensors into a model;  source.py: which tensors a parameter comes from
    precision.py    the types it computes with

config.py, shapes.py and the records of families/ need no torch, so the names below are looked up when first
used (PEP 562) and `import gradus.models` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.models.config import (
        LinearScaling,
        Llama3Scaling,
        ModelConfig,
        Rope,
        Shard,
        kv_bytes_per_token,
        parameter_count,
        parameters_per_token,
    )
    from gradus.models.create import create_model, randomize
    from gradus.models.families.records import read_config, write_config
    from gradus.models.layers import Linear, LinearFactory, MatrixId, Model
    from gradus.models.shapes import SHAPES
    from gradus.models.weights import TensorSource, load_weights

_HOMES = {
    "LinearScaling": "config",
    "Llama3Scaling": "config",
    "ModelConfig": "config",
    "Rope": "config",
    "Shard": "config",
    "kv_bytes_per_token": "config",
    "parameter_count": "config",
    "parameters_per_token": "config",
    "create_model": "create",
    "randomize": "create",
    "read_config": "families.records",
    "write_config": "families.records",
    "Linear": "layers",
    "LinearFactory": "layers",
    "Model": "layers",
    "MatrixId": "layers",
    "SHAPES": "shapes",
    "TensorSource": "weights",
    "load_weights": "weights",
}

__all__ = [
    "SHAPES",
    "Linear",
    "LinearFactory",
    "LinearScaling",
    "Llama3Scaling",
    "MatrixId",
    "Model",
    "ModelConfig",
    "Rope",
    "Shard",
    "TensorSource",
    "create_model",
    "kv_bytes_per_token",
    "load_weights",
    "parameter_count",
    "parameters_per_token",
    "randomize",
    "read_config",
    "write_config",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
