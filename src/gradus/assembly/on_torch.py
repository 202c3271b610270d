"""Composes the model's runner on a CPU's kernels, or on torch alone: its tables are in the host's memory."""

import logging
from pathlib import Path

import torch
from torch import nn

from gradus.assembly.heads import HeadsModule, heads_in_torch, hidden_states
from gradus.attention.paged import PagedAttention, block_tables
from gradus.attention.storage import PagedStorage
from gradus.config.options import EngineConfig
from gradus.device.threads import use
from gradus.errors import ConfigError
from gradus.execution.drafting.draft_model import DraftModel
from gradus.execution.passes import RunModel, TorchPass
from gradus.execution.result import Handed
from gradus.execution.runner import Runner
from gradus.execution.step import DecodeStep
from gradus.kernels.step.plain import PLAIN
from gradus.models import Model
from gradus.parallel.pipeline import in_step
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
    run_model: RunModel | None = None,
) -> Runner:
    """Build the model's runner, whose attention gathers pages. run_model: runs a rank's part of a model."""
    count, device = config.max_sequences, model.device
    if config.activations == "int8" and not round_activations(model):
        raise ConfigError("activations int8 does nothing: no matrix of this model is in int4 or a .gguf file's blocks")
    context = config.limits.context_length
    tables = block_tables(storage, count + 1, context)  # the last slot is padding's
    attention = PagedAttention(model.config, storage, count + 1, tables)
    sampler = Sampler(model.config.vocab_size, device, count + 1, constraints)
    history = History(count, context, torch.device("cpu"), whole=bool(config.speculate), on_host=True)
    heads = None if trained is None else HeadsModule(Path(config.heads or ""), trained, model)
    passes = quick_pass(model, attention, sampler, config, heads)
    if run_model is not None:
        passes = in_step(passes, run_model, history)
    drafter: Drafter | None = NgramDrafter() if config.speculate else None
    states = None if heads is None else hidden_states(config, model)
    if draft is not None:
        drafter = draft_drafter(draft, attention, sampler, config)
    if heads is not None and states is not None:
        drafter = heads_in_torch(heads, model, states, sampler)
    return Runner(DecodeStep(passes, history, PLAIN, Handed(), drafter, states))


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
    own_storage = attention.storage.of_draft(draft.config, draft.dtype, draft.device)
    seeing_all = attention.tables[:1]  # of layers without a window; the draft's pages have the same numbers
    own = PagedAttention(draft.config, own_storage, slots=1, tables=seeing_all)
    return DraftModel(quick_pass(draft, own, sampler, config))


def quick_pass(
    model: Model,
    attention: PagedAttention,
    sampler: Sampler,
    config: EngineConfig,
    heads: nn.Module | None = None,
) -> TorchPass:
    """Run the model in compiled kernels for a CPU, or in torch if a part of it has no kernel.

    heads: as in CompiledPass; a step then keeps hidden states for them.
    """
    keeps = heads is not None
    if not config.kernels:
        return TorchPass(model, attention, sampler, keeps_hidden=keeps)
    from gradus.execution.compiled import CompiledPass  # here: numba is not everywhere
    from gradus.kernels.cpu.matrix import Unsupported

    threads = config.threads or use(None)
    try:
        return CompiledPass(model, attention, sampler, threads=threads, heads=heads, keeps_hidden=keeps)
    except Unsupported as part:
        log.info("decode steps run in torch: there is no kernel for %s", part)
        return TorchPass(model, attention, sampler, keeps_hidden=keeps)
