"""The final engine: what the phases taught, composed, with a switch for each.

    build(model, EngineConfig(limits, max_sequences=256))

The phases teach the same optimizations with parts of their own. Here each has a switch, so that its worth can be
measured in the final engine, by leaving it out alone.
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from gradus.assembly.heads import (
    HeadsModule,
    check_model,
    heads_drafter,
    heads_on_kernels,
    hidden_states,
    most_drafts,
    trained_heads,
)
from gradus.assembly.rehearsal import rehearse
from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.cache.groups import layer_groups
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.config.options import EngineConfig
from gradus.device.threads import use
from gradus.device.transfer import current
from gradus.engine.engine import Engine, Runner
from gradus.engine.time_limits import TimeLimits
from gradus.errors import ConfigError
from gradus.execution.gpu.capturing import Report
from gradus.execution.drafting.draft_model import DraftModel
from gradus.execution.memory.plan import sized
from gradus.execution.runner import LatestTokens, ModelRunner
from gradus.execution.drafting.verifying import SpeculatingRunner
from gradus.kernels import check_kv_dtype, cpu, missing
from gradus.models import Model
from gradus.models.config import ModelConfig
from gradus.sampling.sampler import Sampler
from gradus.scheduling.drafting import MOST_ROWS, DraftControl, choices
from gradus.scheduling.scheduler import Scheduler
from gradus.speculative.drafter import Drafter
from gradus.speculative.heads_folder import HeadsConfig
from gradus.speculative.history import History
from gradus.speculative.ngram import NgramDrafter

if TYPE_CHECKING:
    from gradus.attention.graph_paged import GraphPagedAttention
    from gradus.execution.drafting.draft_passes import DraftPasses
    from gradus.sampling.kernel_sampler import KernelSampler

__all__ = ["EngineConfig", "build"]

log = logging.getLogger(__name__)


def build(
    model: Model, config: EngineConfig, report: Report = lambda done, total: None, draft: Model | None = None
) -> Engine:
    """Compose the engine. On a GPU with `graphs`, this captures them: seconds, in which nothing else may run there.

    draft: the model that drafts, where `speculate` names one, loaded as `draft_quantize` says. Heads are read from the
    folder that it names.

    Where `memory_fraction` sizes the cache, and it turns out shorter than `limits.context_length`, the engine's own
    limits are as short; settings named in `yielding` may turn out lower. Raises ConfigError where no room is left for a
    cache, for a kv_dtype that the GPU cannot read, and for a draft that does not go with the model.
    """
    if draft is not None:
        check_draft(model.config, draft.config)
    trained = trained_heads(config, model.config)
    if trained is not None:
        check_model(config, trained, model)
    check_kv_dtype(config.kv_dtype, model.device, config.kernels)
    config = runnable(sized(model, config, draft), model.device)
    page_size, count, device = config.page_size, config.max_sequences, model.device
    windows = [group.window for group in layer_groups(model.config.windows)]
    pages = config.cache_blocks * len(windows)
    kind = Fp8Storage if config.kv_dtype == "fp8" else PagedStorage
    storage = kind(model.config, pages, page_size, model.dtype, device)
    latest = LatestTokens(count, device) if (config.overlap or config.graphs) and not config.speculate else None
    if config.kernels and device.type == "cuda":
        with current(device):
            runner: Runner = kernel_runner(model, storage, latest, config, report, draft, trained)
            control = drafting(config, runner, trained)
            rehearse(runner, config, PagedCache(pages, page_size, windows), device.type, control)
    else:
        attention = PagedAttention(model.config, storage, slots=count)
        sampler = Sampler(model.config.vocab_size, device, count)
        heads = None if trained is None else HeadsModule(trained, config, model)
        if config.kernels:
            eager = compiled_runner(model, attention, sampler, latest, config.threads, heads)
        else:
            eager = ModelRunner(model, attention, sampler, latest)
        runner = eager
        if config.speculate:
            drafter: Drafter = NgramDrafter()
            states = None
            if draft is not None:
                drafter = draft_drafter(draft, attention, sampler, config)
            if heads is not None:
                states = hidden_states(config, model)
                drafter = heads_drafter(heads, model, states, sampler)
            runner = SpeculatingRunner(eager, attention, drafter, history(config, device), states)
    cache = PagedCache(pages, page_size, windows, PrefixIndex() if config.prefix_cache else None)
    times, drafts = TimeLimits(fastest=1 + most_drafts(config, trained)), drafting(config, runner, trained)
    scheduler = Scheduler(cache, count, config.budget(device.type), config.policy, times, drafts)
    told = None if drafts is None else drafts.stats
    return Engine(scheduler, runner, config.limits, lag(config), times, told)


def lag(config: EngineConfig) -> int:
    return 1 if config.overlap else 0


def drafting(config: EngineConfig, runner: Runner, trained: HeadsConfig | None = None) -> DraftControl | None:
    """How many drafts are verified, where there are any: in steps of no more rows than the runner is quick with."""
    if not config.speculate:
        return None
    rows = runner.runner.quick_rows if isinstance(runner, SpeculatingRunner) else MOST_ROWS
    most, adaptive = most_drafts(config, trained), config.drafts is None
    return DraftControl(most, config.max_sequences, lag=lag(config), adaptive=adaptive, rows=rows)


def history(config: EngineConfig, device: torch.device) -> History:
    return History(config.max_sequences, config.limits.context_length, device)


def draft_drafter(draft: Model, attention: PagedAttention, sampler: Sampler, config: EngineConfig) -> DraftModel:
    """attention, sampler: the model's."""
    storage = attention.storage
    kind, pages = type(storage), storage.keys.shape[1] - 1
    own = PagedAttention(draft.config, kind(draft.config, pages, storage.page_size, draft.dtype, draft.device), slots=1)
    own.tables = attention.tables[:1]  # of the layers without a window: a page of the same number holds the draft's
    eager = compiled_runner(draft, own, sampler, None, config.threads) if config.kernels else None
    return DraftModel(eager or ModelRunner(draft, own, sampler), own)


def draft_passes(
    draft: Model, attention: "GraphPagedAttention", sampler: "KernelSampler", config: EngineConfig
) -> "DraftPasses":
    """The same on a GPU's kernels."""
    from gradus.attention.graph_paged import GraphPagedAttention
    from gradus.execution.drafting.draft_passes import DraftPasses
    from gradus.kernels.fuse.model import fused

    storage, count = attention.storage, config.max_sequences
    kind, pages = type(storage), storage.keys.shape[1] - 1
    own_storage = kind(draft.config, pages, storage.page_size, draft.dtype, draft.device)
    own = GraphPagedAttention(draft.config, own_storage, slots=count + 1)
    own.tables = attention.tables[:1]
    return DraftPasses(fused(draft), own, sampler, config.budget("cuda"))


def check_draft(config: ModelConfig, draft: ModelConfig) -> None:
    """Raises ConfigError for a draft that does not go with the model."""
    if config.vocab_size != draft.vocab_size:
        raise ConfigError(
            f"the draft has logits for {draft.vocab_size} tokens, the model for {config.vocab_size}: both need as many"
        )
    if len(layer_groups(draft.windows)) > 1 or layer_groups(config.windows)[0].window is not None:
        raise ConfigError(
            "a draft reads the pages of layers that see everything: the model must have such layers, and the draft no "
            "mixture of sliding windows; use speculate=ngram"
        )


def runnable(config: EngineConfig, device: torch.device) -> EngineConfig:
    """The same without the kernels and graphs that cannot run on the device, of which it warns."""
    reason = missing(str(device)) if device.type == "cuda" else cpu.missing()
    if config.kernels and reason:
        log.warning("the engine runs without its kernels%s: %s", " and graphs" if config.graphs else "", reason)
        return replace(config, kernels=False, graphs=False)
    if config.graphs and device.type != "cuda":
        log.warning("the engine runs without graphs: the model is on the %s, and graphs are CUDA's", device)
        return replace(config, graphs=False)
    return config


def kernel_runner(
    model: Model,
    storage: PagedStorage,
    latest: LatestTokens | None,
    config: EngineConfig,
    report: Report,
    draft: Model | None = None,
    trained: HeadsConfig | None = None,
) -> Runner:
    """Runs the model's fused view on attention that reads pages.

    Steps of decodes are replayed, and verify drafts, where the configuration says so.
    """
    from gradus.assembly.start_up import Reading, start_up
    from gradus.attention.graph_paged import GraphPagedAttention  # here: Triton is not everywhere
    from gradus.execution.gpu.step_graphs import DraftGraphs
    from gradus.execution.gpu.decode_step import DraftRunner, DraftStep
    from gradus.execution.graphs import DecodeGraphs, GraphRunner
    from gradus.kernels.fuse.model import fused
    from gradus.sampling.kernel_sampler import KernelSampler

    count = config.max_sequences
    attention = GraphPagedAttention(model.config, storage, slots=count + 1)  # the last slot is the padding's
    sampler = KernelSampler(model.config.vocab_size, model.device, count)
    view = fused(model)
    context = config.limits.context_length
    graphs: DecodeGraphs | DraftGraphs | None = None
    readings: list[Reading] = []
    if config.speculate:
        drafter: Drafter = NgramDrafter(kernel=True)
        if draft is not None:
            drafter = passes = draft_passes(draft, attention, sampler, config)
            longest = min(passes.chunk, draft.config.context_length, context)
            readings.append(Reading(passes, passes.model, passes.attention, longest))
        states = None if trained is None else hidden_states(config, model)
        if trained is not None and states is not None:
            drafter = heads_on_kernels(trained, config, model, states, sampler)
        step = DraftStep(view, attention, sampler, drafter, history(config, model.device), states)
        most, adaptive = most_drafts(config, trained), config.drafts is None
        graphs = DraftGraphs(step, count, choices(most, adaptive=adaptive)) if config.graphs else None
        draft_runner = DraftRunner(step, graphs)
        runner: Runner = draft_runner
        readings.append(Reading(draft_runner, view, attention, context))
    else:
        eager = ModelRunner(view, attention, sampler, latest)
        runner = eager
        readings.append(Reading(eager, view, attention, context))
        if config.graphs and latest is not None:
            graphs = DecodeGraphs(view, attention, sampler, latest, count)
            runner = GraphRunner(eager, graphs)
    start_up(readings, graphs, sampler, config, report)
    return runner


def compiled_runner(
    model: Model,
    attention: PagedAttention,
    sampler: Sampler,
    latest: LatestTokens | None,
    threads: int | None,
    beside: nn.Module | None = None,
) -> ModelRunner:
    """On a CPU: decode steps through compiled kernels; through torch where the model has a part without one. beside: as
    in CompiledRunner."""
    from gradus.execution.compiled import CompiledRunner  # here: numba is not everywhere
    from gradus.kernels.cpu.matrix import Unsupported

    try:
        return CompiledRunner(model, attention, sampler, latest, threads=threads or use(None), beside=beside)
    except Unsupported as part:
        log.info("decode steps run in torch: there is no kernel for %s", part)
        return ModelRunner(model, attention, sampler, latest)
