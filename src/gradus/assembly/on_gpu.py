"""Composes the model's runner on a GPU's kernels: a fused view, attention that reads pages in place, captured steps."""

from pathlib import Path

import torch

from gradus.assembly.heads import HeadsModule, heads_on_kernels, hidden_states
from gradus.assembly.start_up import Reading, start_up
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.attention.paged import block_tables
from gradus.attention.storage import PagedStorage
from gradus.config.options import EngineConfig
from gradus.execution.drafting.draft_passes import DraftPasses
from gradus.execution.gpu.capturing import Agree, Report
from gradus.execution.gpu.kernel_pass import KernelPass
from gradus.execution.gpu.masked_draws import MaskedDraws
from gradus.execution.gpu.prompt_graphs import PromptGraphs
from gradus.execution.gpu.results import Results
from gradus.execution.gpu.step_graphs import StepGraphs
from gradus.execution.result import StepClock
from gradus.execution.runner import Runner
from gradus.execution.step import DecodeStep
from gradus.kernels.fuse.model import fused
from gradus.kernels.step.launches import LAUNCHES
from gradus.models import Model
from gradus.parallel.exchange import Exchange
from gradus.parallel.fused import fused_part
from gradus.sampling.constraints import Constraints
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.scheduling.draft_shapes import DraftShapes
from gradus.scheduling.step_times import StepTimes
from gradus.speculative.drafter import Drafter
from gradus.speculative.heads_folder import HeadsConfig
from gradus.speculative.history import History
from gradus.speculative.ngram import NgramDrafter


def gpu_runner(
    model: Model,
    storage: PagedStorage,
    config: EngineConfig,
    report: Report,
    draft: Model | None,
    trained: HeadsConfig | None,
    shapes: DraftShapes | None,
    times: StepTimes,
    constraints: Constraints | None,
    exchange: Exchange | None = None,
) -> Runner:
    """Build the model's runner: compile its kernels, capture its steps, warm it up. shapes: of steps that verify
    drafts. times: learns the cost of drafts. constraints: None in an engine that refuses structured requests.
    exchange: with the other ranks, which call this at the same time, if `model` is a rank's part."""
    count, context = config.max_sequences, config.limits.context_length
    tables = block_tables(storage, count + 1, context)  # the last slot is padding's
    attention = GraphPagedAttention(model.config, storage, count + 1, tables)
    sampler = KernelSampler(model.config.vocab_size, model.device, count, constraints)
    view, readings = fused(model) if exchange is None else fused_part(model, exchange), list[Reading]()
    drafter: Drafter | None = None
    states = None if trained is None else hidden_states(config, model)
    if draft is not None:
        drafter = own = draft_passes(draft, attention, sampler, config)
        longest = min(own.chunk, draft.config.context_length, context)
        readings.append(Reading(own, own.model, own.attention, longest))
    elif trained is not None and states is not None:
        drafter = heads_on_kernels(HeadsModule(Path(config.heads or ""), trained, model), model, states, sampler)
    elif config.speculate:
        drafter = NgramDrafter(kernel=True)
    history = History(count, context, model.device, whole=drafter is not None)
    most = len(history.lengths) * (1 + (0 if shapes is None else shapes.most))
    timed = drafter is not None or bool(config.step_target)
    results, passes = Results(most, model.device, timed=timed), KernelPass(view, attention, sampler)
    step = DecodeStep(passes, history, LAUNCHES, results, drafter, states)
    agree: Agree = list if exchange is None else exchange.group.agree
    graphs = None
    if config.graphs:
        graphs = StepGraphs(step, count, shapes, masked=constraints is not None, agree=agree)
    draws = None if constraints is None else MaskedDraws(constraints, sampler, history, count)
    readings.append(Reading(passes, view, attention, context))
    start_up(readings, graphs, sampler, config, report, times, step.written)
    return Runner(step, graphs, draws, StepClock() if timed else None)


def draft_passes(
    draft: Model, attention: GraphPagedAttention, sampler: KernelSampler, config: EngineConfig
) -> DraftPasses:
    """Build the draft model's passes. attention, sampler: the model's."""
    own_storage, count = attention.storage.of_draft(draft.config, draft.dtype, draft.device), config.max_sequences
    seeing_all = attention.tables[:1]  # of layers without a window; the draft's pages have the same numbers
    own = GraphPagedAttention(draft.config, own_storage, slots=count + 1, tables=seeing_all)
    return DraftPasses(fused(draft), own, sampler, config.budget("cuda"))


def drop_graphs(runner: Runner) -> None:
    """Delete all graphs of a runner, once the steps under way are done. No step may follow."""
    torch.cuda.synchronize(runner.device)
    passes, graphs = runner.step.passes, runner.graphs
    assert isinstance(passes, KernelPass)
    if graphs is not None:
        graphs.captured.clear()
        graphs.halves.clear()
        passes.attention.drop_captured()
    if isinstance(passes.run_model, PromptGraphs):
        passes.run_model.captured.clear()
