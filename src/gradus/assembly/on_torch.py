"""Composes the model's runner on a CPU's kernels, or on torch alone."""

import logging

from torch import nn

from gradus.assembly.heads import HeadsModule, heads_drafter, hidden_states
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.config.options import EngineConfig
from gradus.device.threads import use
from gradus.engine.engine import Runner
from gradus.errors import ConfigError
from gradus.execution.drafting.draft_model import DraftModel
from gradus.execution.drafting.verifying import VerifyingRunner
from gradus.execution.runner import ModelRunner
from gradus.models import Model
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.int4 import Int4Linear
from gradus.sampling.constraints import Constraints
from gradus.sampling.sampler import Sampler
from gradus.speculative.drafter import Drafter
from gradus.speculative.heads_folder import HeadsConfig
from gradus.speculative.history import History
from gradus.speculative.ngram import NgramDrafter

log = logging.getLogger(__name__)


def torch_runner(
    model: Model,
    storage: PagedStorage,
    config: EngineConfig,
    draft: Model | None,
    trained: HeadsConfig | None,
    constraints: Constraints | None,
) -> tuple[Runner, int]:
    """Build the model's runner, whose attention gathers pages. Also returns the most rows of a fast step of decodes."""
    count, device = config.max_sequences, model.device
    if config.activations == "int8" and not round_activations(model):
        raise ConfigError("activations int8 does nothing: no matrix of this model is in int4 or a .gguf file's blocks")
    attention = PagedAttention(model.config, storage, slots=count)
    sampler = Sampler(model.config.vocab_size, device, count, constraints)
    whole = bool(config.speculate)
    history = History(count, config.limits.context_length, device, whole=whole)
    heads = None if trained is None else HeadsModule(trained, config, model)
    newest = None if whole else history  # a VerifyingRunner lays decodes out as spans with all their tokens
    eager = quick_runner(model, attention, sampler, newest, config, heads)
    if not whole:
        return eager, eager.max_kernel_rows
    drafter: Drafter = NgramDrafter()
    states = None if heads is None else hidden_states(config, model)
    if draft is not None:
        drafter = draft_drafter(draft, attention, sampler, config)
    if heads is not None and states is not None:
        drafter = heads_drafter(heads, model, states, sampler)
    return VerifyingRunner(eager, attention, drafter, history, states), eager.max_kernel_rows


def round_activations(model: Model) -> bool:
    """Let the model's matrices round activations to int8, where their scheme can. Returns whether any does."""
    found = [part for part in model.modules() if isinstance(part, GGUFLinear | Int4Linear)]
    for part in found:
        part.rounds = True
    return bool(found)


def draft_drafter(draft: Model, attention: PagedAttention, sampler: Sampler, config: EngineConfig) -> DraftModel:
    """Build the draft model's drafter. attention, sampler: the model's."""
    if config.activations == "int8":
        round_activations(draft)
    storage = attention.storage
    kind, pages = type(storage), storage.keys.shape[1] - 1
    own = PagedAttention(draft.config, kind(draft.config, pages, storage.page_size, draft.dtype, draft.device), slots=1)
    own.tables = attention.tables[:1]  # of layers without a window; the draft's pages have the same numbers
    return DraftModel(quick_runner(draft, own, sampler, None, config), own)


def quick_runner(
    model: Model,
    attention: PagedAttention,
    sampler: Sampler,
    history: History | None,
    config: EngineConfig,
    beside: nn.Module | None = None,
) -> ModelRunner:
    """Build a runner with compiled kernels for a CPU, or on torch if a part of the model has no kernel.

    beside: as in CompiledRunner.
    """
    if not config.kernels:
        return ModelRunner(model, attention, sampler, history)
    from gradus.execution.compiled import CompiledRunner  # here: numba is not everywhere
    from gradus.kernels.cpu.matrix import Unsupported

    threads = config.threads or use(None)
    try:
        return CompiledRunner(model, attention, sampler, history, threads=threads, beside=beside)
    except Unsupported as part:
        log.info("decode steps run in torch: there is no kernel for %s", part)
        return ModelRunner(model, attention, sampler, history)
