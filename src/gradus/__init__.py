"""Gradus: an LLM inference engine, built one optimization at a time.

The names below are imported when they are first used (PEP 562), so `import gradus` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradus.errors import CapacityError, CheckpointError, ConfigError, GradusError, RequestError

if TYPE_CHECKING:
    from gradus.engine.request import SamplingParams as SamplingParams
    from gradus.engine.request import SchedulingParams as SchedulingParams
    from gradus.text.completion import Completion as Completion
    from gradus.text.completion import Delta as Delta
    from gradus.text.llm import LLM as LLM

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CapacityError",
    "CheckpointError",
    "Completion",
    "ConfigError",
    "Delta",
    "GradusError",
    "RequestError",
    "SamplingParams",
    "SchedulingParams",
    "__version__",
]

_HOME = {
    "LLM": "gradus.text.llm",
    "SamplingParams": "gradus.engine.request",
    "SchedulingParams": "gradus.engine.request",
    "Completion": "gradus.text.completion",
    "Delta": "gradus.text.completion",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gradus' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
