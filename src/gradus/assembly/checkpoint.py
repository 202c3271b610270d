"""From a checkpoint to an engine: a phase's, or the final one with a cache for the memory that is there."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from gradus.assembly.final import build as build_final
from gradus.assembly.final import runnable
from gradus.config.options import EngineConfig, EngineOptions
from gradus.engine.engine import Engine
from gradus.errors import ConfigError
from gradus.execution.memory import ran_out
from gradus.execution.memory_plan import memory_plan
from gradus.loading import Checkpoint, Progress, load_model
from gradus.models import Model
from gradus.models.precision import Precision

log = logging.getLogger(__name__)


def assemble(
    checkpoint: Checkpoint,
    phase: str | None,
    options: EngineOptions,
    device: torch.device,
    precision: Precision,
    progress: Progress | None,
) -> tuple[Engine, EngineOptions]:
    """Load the model and compose its engine. phase: None is the final one, whose options must be an EngineConfig.

    Returns the options as they turned out, too: memory may have decided the cache, and with it the context length, and
    a device without the kernels runs without them.
    Raises ConfigError in one line where memory does not suffice.
    """

    def load() -> Model:
        return load_model(
            checkpoint, dtype=precision.activations, device=device, linear=precision.linear, progress=progress
        )

    if phase is not None:
        from gradus import phases

        build = phases.load(phase).build
        with _enough_memory(options):
            engine = build(load(), options)
        return engine, options
    assert isinstance(options, EngineConfig)
    plan = memory_plan(checkpoint.config, options, device, precision)
    config = runnable(plan.applied(options), device)
    if plan.note:
        log.warning("%s", plan.note)
    with _enough_memory(config):
        engine = build_final(load(), config, _capturing(progress))
        plan.check_room(device)
    return engine, config


@contextmanager
def _enough_memory(options: EngineOptions) -> Iterator[None]:
    """Turns a failed allocation into a ConfigError that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        final = isinstance(options, EngineConfig)
        lower = "memory_fraction or cache_tokens" if final else "cache_tokens (in phases with pages)"
        raise ConfigError(
            f"not enough memory for the weights and a cache of {options.cache_positions} tokens: lower {lower}, "
            "max_sequences or context_length (`gradus serve --dry-run` shows what fits)"
        ) from error


def _capturing(progress: Progress | None) -> Callable[[int, int], None]:
    """Shows how far the capture of CUDA graphs is."""

    def report(done: int, total: int) -> None:
        if progress is None:
            return
        if done == 0:
            progress.begin("capturing CUDA graphs", total)
        else:
            progress.advance(1)

    return report
