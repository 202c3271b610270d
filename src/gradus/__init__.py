"""Gradus: an LLM inference engine, built one optimization at a time.

The way of a token, which docs/architecture.md follows, is the order in which to read the packages:

    errors.py     every mistake that a user can make, as one line;  extras.py: packages that only some commands need
    config/       every setting
    engine/       the loop, and the words that its parts speak
    scheduling/   which sequences run, and how many tokens of each
    cache/        which pages hold which positions
    execution/    from a plan to sampled tokens on a device;  device/: what works on a device shares
    parallel/     one model on several devices: parts of every matrix, stages of layers
    models/       what is computed;  loading/: from a name to a checkpoint
    quantization/ matrices in fewer bits;  calibration/: checkpoints in fewer bits, written
    attention/    how keys and values are stored and read;  kernels/: the same, and the rest of a layer, in Triton
    sampling/     logits to token ids;  speculative/: tokens drafted for the model to verify
    structured/   grammars that answers obey, and the tokens that they allow next
    assembly/     the final engine, put together;  garbage.py: its process, kept from pausing
    text/         text in, text out: LLM;  training/: heads that draft, trained
    server/       the same over HTTP;  deploy/: several of it behind one address
    phases.py     the course: its syllabus, and loading a phase
    exercises/    what a student writes, put in place of ours;  course/: checking it, views of a phase, figures
    bench/        measuring;  load/: what a server keeps up with
    cli/          the `gradus` command;  __main__.py: the same for `python -m gradus`;  doctor/: what works here

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
