"""Builds an engine from a checkpoint: a phase's, or the final one with a cache sized for the free memory."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from gradus import phases
from gradus.assembly.draft_rows import fitted
from gradus.assembly.final import build as build_final
from gradus.assembly.final import check_draft, runnable
from gradus.assembly.heads import trained_heads
from gradus.assembly.memory import enough_memory
from gradus.assembly.parallel import assemble_ranks
from gradus.assembly.prefixes import open_prefixes
from gradus.assembly.remote import assemble_remote
from gradus.config.options import EngineConfig, EngineOptions
from gradus.engine.engine import Engine
from gradus.errors import ConfigError
from gradus.execution.memory.plan import memory_plan
from gradus.kernels import cpu
from gradus.kernels.cpu.kept.shown import FUNCTIONS, Compiling, shown
from gradus.loading import Checkpoint, Progress, as_asked, load_model, open_checkpoint
from gradus.models import Model
from gradus.models.precision import AS_ASKED, Precision, resolve_precision
from gradus.quantization.precision import quantized
from gradus.structured import grammars_of

log = logging.getLogger(__name__)

DRAFT_QUANTIZE = "draft_quantize"  # the setting


def assemble(
    checkpoint: Checkpoint,
    phase: str | None,
    options: EngineOptions,
    device: torch.device,
    precision: Precision,
    progress: Progress | None,
    impl: str | None = None,
) -> tuple[Engine, EngineOptions]:
    """Load the model and compose its engine. phase: None is the final one, whose options must be an EngineConfig.

    impl: a student's folder or file, whose functions replace the phase's.

    Also returns the final options: memory may have decided the cache's size, and with it the context length, and a
    device that cannot run the kernels runs without them.
    Raises ConfigError in one line if memory does not suffice.
    """

    def load(which: Checkpoint, kept: Precision) -> Model:
        return load_model(which, dtype=kept.activations, device=device, linear=kept.linear, progress=progress)

    if phase is not None:
        build = phases.load(phase).build if impl is None else _build_of(phase, impl, progress)
        options = replace(options, vocabulary=checkpoint.vocabulary)
        with enough_memory(options, device):
            engine = build(load(checkpoint, precision), options)
        return engine, replace(options, limits=engine.limits)
    assert isinstance(options, EngineConfig)
    if options.runner is not None:
        return assemble_remote(checkpoint, options)
    check_activations(checkpoint, options, device)
    if options.ranks > 1:
        return assemble_ranks(checkpoint, options, device, precision, progress)
    trained_heads(options, checkpoint.config)  # heads that do not match the model are refused before anything is loaded
    with open_prefixes(checkpoint, options, device, precision) as prefixes:
        draft = open_draft(checkpoint, options, device, precision)
        plan = memory_plan(
            checkpoint.config, options, device, precision, draft=None if draft is None else (draft[0].config, draft[1])
        )
        grammars = None if checkpoint.tokenizer is None else grammars_of(checkpoint.tokenizer, options.limits)
        config = runnable(plan.applied(options), device)
        keeps = grammars is not None
        config = replace(config, limits=replace(config.limits, structured=keeps, lazy=keeps, prompt_logprobs=True))
        with enough_memory(config, device):
            drafter = None if draft is None else load(*draft)
            model = load(checkpoint, precision)
            if progress is not None:
                progress.begin("preparing the kernels", None)
            with _compiling(progress):
                engine = build_final(model, config, _capturing(progress), drafter, grammars, prefixes=prefixes)
            plan.check_room(device)
    return engine, config


def keeps_bits(dtype: str, options: EngineOptions, device: torch.device) -> bool:
    """Whether a GGUF file's matrices stay in the bits that they are stored in, unless `quantize` says otherwise.

    They do where that is faster than widening them: in the final engine, by a CPU's kernels. A type that was asked for
    is one that matrices are to have. Phases of the course, ranks and torch alone would unpack them in every step, and a
    GPU's kernels read them more slowly than 16 bits.
    """
    if dtype != "auto" or not isinstance(options, EngineConfig) or not options.kernels or options.ranks > 1:
        return False
    return device.type == "cpu" and cpu.missing() is None


def check_activations(checkpoint: Checkpoint, options: EngineConfig, device: torch.device) -> None:
    """Raise ConfigError for activations that this device, or this checkpoint, does not round."""
    if options.activations == "float":
        return
    if device.type != "cpu":
        raise ConfigError(f"activations {options.activations} is for a CPU: leave it out on {device}")
    stored = checkpoint.quantized
    if stored is not None and any(scheme.startswith("int4") for scheme in stored.schemes):
        raise ConfigError(
            "activations int8: this checkpoint quantizes its weights alone, for activations that are not rounded: "
            "leave activations out"
        )


def _build_of(phase: str, impl: str, progress: Progress | None) -> Callable[[Model, EngineOptions], Engine]:
    """Return the phase's `build` with a student's functions. Notes whose functions run."""
    yours = phases.solution(phase, Path(impl))
    if progress is not None:
        progress.note(yours.note)
    return yours.build


def open_draft(
    checkpoint: Checkpoint, options: EngineConfig, device: torch.device, precision: Precision
) -> tuple[Checkpoint, Precision] | None:
    """Open the checkpoint that `speculate` names, if it names one, and choose its precision.

    precision: the model's. Raises ConfigError for a draft with a different tokenizer, and for one that cannot be
    quantized as `draft_quantize` asks.
    """
    if options.draft_model is None:
        return None
    keeps = keeps_bits("auto" if precision.reason != AS_ASKED else precision.name, options, device)
    draft = as_asked(open_checkpoint(options.draft_model), options.draft_quantize, DRAFT_QUANTIZE, keeps_bits=keeps)
    draft = fitted(draft, checkpoint)
    check_draft(checkpoint.config, draft.config)
    if draft.config.context_length < options.limits.context_length:
        log.warning(
            "%s drafts up to position %d, the end of its context; the rest of a longer sequence is not drafted",
            draft.name, draft.config.context_length,
        )  # fmt: skip
    return draft, draft_precision(draft, device, precision, options.draft_quantize)


def draft_precision(draft: Checkpoint, device: torch.device, precision: Precision, quantize: str | None) -> Precision:
    """Choose the draft's precision: its matrices as the checkpoint or `quantize` has them quantized, and the rest in
    the type of the model's unquantized parts. The scheme also covers the draft's output head: drafts are verified, and
    the head is a large part of a small model's bytes. Raises ConfigError as `gradus.quantization.precision.resolve`
    does."""
    own = precision
    if precision.scheme is not None:
        kinds = {str(kind).removeprefix("torch.") for kind in (precision.weights, precision.activations)}
        own = resolve_precision(kinds.pop() if len(kinds) == 1 else "auto", device, draft.config)
    return quantized(own, quantize, device, draft.config, draft.quantized, setting=DRAFT_QUANTIZE, head=True)


def _capturing(progress: Progress | None) -> Callable[[int, int], None]:
    """Return a function that shows the progress of capturing CUDA graphs."""

    def report(done: int, total: int) -> None:
        if progress is None:
            return
        if done == 0:
            progress.begin("capturing CUDA graphs", total)
        else:
            progress.advance(1)

    return report


@contextmanager
def _compiling(progress: Progress | None) -> Iterator[None]:
    """Show the progress of compiling a CPU's kernels, where something shows it."""
    told = Compiling(0, 0.0, -1)

    def report(now: Compiling) -> None:
        nonlocal told
        assert progress is not None
        if now.task != told.task:
            progress.begin(now.task, FUNCTIONS if now.compiler is None else None)
            told = now._replace(done=0)
        done = min(now.done, FUNCTIONS - 1)  # the last one is compiled when all is
        progress.advance(done - told.done)
        told = now._replace(done=done)

    token = shown.set(None if progress is None else report)
    try:
        yield
    finally:
        shown.reset(token)
