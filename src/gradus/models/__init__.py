"""The models: what they compute, and nothing about how they are served.

Read gpt2.py first, then llama.py; qwen3.py and gemma3.py are variations. config.py and shapes.py do without torch, so
the names below are looked up when first used (PEP 562) and `import gradus.models` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.models.config import (
        LinearScaling,
        Llama3Scaling,
        ModelConfig,
        Rope,
        kv_bytes_per_token,
        parameter_count,
    )
    from gradus.models.create import create_model, randomize
    from gradus.models.layers import Linear, LinearFactory, Model, Place
    from gradus.models.shapes import SHAPES
    from gradus.models.weights import TensorSource, load_weights

_HOMES = {
    "LinearScaling": "config",
    "Llama3Scaling": "config",
    "ModelConfig": "config",
    "Rope": "config",
    "kv_bytes_per_token": "config",
    "parameter_count": "config",
    "create_model": "create",
    "randomize": "create",
    "Linear": "layers",
    "LinearFactory": "layers",
    "Model": "layers",
    "Place": "layers",
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
    "Model",
    "ModelConfig",
    "Place",
    "Rope",
    "TensorSource",
    "create_model",
    "kv_bytes_per_token",
    "load_weights",
    "parameter_count",
    "randomize",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
