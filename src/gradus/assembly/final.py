"""Composes the final engine from the phases' optimizations, with a switch for each.

    build(model, EngineConfig(limits, max_sequences=256))

The phases teach the same optimizations with parts of their own. Here each has a switch, so that its worth can be
measured by leaving it alone out of the final engine. `on_gpu.py` composes the model's runner on a GPU's kernels, and
`on_torch.py` on a CPU's kernels or on torch alone.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from gradus.assembly.heads import check_model, most_drafts, trained_heads
from gradus.assembly.on_torch import torch_runner
from gradus.assembly.prefixes import Prefixes, second_tier, with_tier
from gradus.assembly.rehearsal import rehearse
from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.storage import PagedStorage
from gradus.cache.groups import layer_groups
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.config.options import EngineConfig
from gradus.device.transfer import current
from gradus.engine.engine import Engine, Runner
from gradus.engine.plan import Column
from gradus.engine.time_limits import TimeLimits
from gradus.errors import ConfigError
from gradus.execution.gpu.capturing import Report
from gradus.execution.memory.plan import sized
from gradus.kernels import check_kv_dtype, cpu, missing
from gradus.models import Model
from gradus.models.config import ModelConfig, even_position
from gradus.parallel.compiling import compiler_of
from gradus.parallel.ranks import ParallelRunner, RankZero
from gradus.sampling.constraints import Constraints
from gradus.scheduling.draft_shapes import DraftShapes
from gradus.scheduling.drafting import DraftControl
from gradus.scheduling.hindsight import Hindsight
from gradus.scheduling.scheduler import Scheduler
from gradus.scheduling.step_target import StepTarget
from gradus.scheduling.step_times import StepTimes
from gradus.speculative.heads_folder import HeadsConfig
from gradus.structured import Grammars

__all__ = ["EngineConfig", "build"]

log = logging.getLogger(__name__)


def build(
    model: Model,
    config: EngineConfig,
    report: Report = lambda done, total: None,
    draft: Model | None = None,
    grammars: Grammars | None = None,
    ranks: RankZero | None = None,
    prefixes: Prefixes | None = None,
) -> Engine:
    """Compose the engine. On a GPU with `graphs`, this captures them, for seconds in which nothing else may run there.

    draft: the draft model, if `speculate` names one, loaded as `draft_quantize` asks. If `speculate` names a folder of
    heads, they are read from it. grammars: of the model's tokenizer; without them, structured requests are refused.
    ranks: the other ranks, if `model` is rank 0's part of one that several devices share. prefixes: the directory that
    keeps them.

    If `memory_fraction` sizes the cache, and it holds fewer tokens than `limits.context_length`, the engine's own limit
    shrinks to fit; settings named in `yielding` may be lowered too. Raises ConfigError if no room is left for a cache,
    for a kv_dtype that the GPU cannot read, and for a draft that does not match the model.
    """
    if draft is not None:
        check_draft(model.config, draft.config)
    trained = trained_heads(config, model.config)
    if trained is not None:
        check_model(config, trained, model)
    check_kv_dtype(config.kv_dtype, model.device, config.kernels)
    config = runnable(sized(model, config, draft), model.device)
    page_size, count, device = config.page_size, config.max_sequences, model.device
    windows = [group.window for group in layer_groups(model.config)]
    pages = config.cache_blocks * len(windows)
    storage = storage_of(model, config)
    shapes = draft_shapes(config, trained, draft is not None)
    times, constraints = StepTimes(), None if grammars is None else Constraints(grammars)
    on_kernels = config.kernels and device.type == "cuda"
    if on_kernels:
        from gradus.assembly.on_gpu import drop_graphs, gpu_runner  # here: Triton is not everywhere

        with current(device):
            exchange = None if ranks is None else ranks.exchange
            own = gpu_runner(model, storage, config, report, draft, trained, shapes, times, constraints, exchange)
            runner: Runner = own if ranks is None else ParallelRunner(own, ranks, partial(drop_graphs, own))
            control = drafting(config, shapes, StepTimes())
            rehearse(runner, config, PagedCache(pages, page_size, windows), device.type, control)
    else:
        run_model = None if ranks is None else ranks.run_model
        own = torch_runner(model, storage, config, draft, trained, constraints, run_model)
        runner = own if ranks is None else ParallelRunner(own, ranks, far=config.pipeline_parallel > 1)
        shapes = None if shapes is None else shapes.unpadded(own.step.passes.most_rows)
    tier = second_tier(prefixes, config, storage, lambda: own.repeats)
    cache = PagedCache(pages, page_size, windows, PrefixIndex() if config.prefix_cache else None, tier)
    sure = None
    if constraints is not None and shapes is not None and not on_kernels:
        sure = partial(constraints.sure, most=shapes.most)  # known when a step is planned, as no step is under way
    limits, looked_up = TimeLimits(fastest=1 + most_drafts(config, trained)), draft is None and trained is None
    hindsight = Hindsight(own.verifies if on_kernels else None) if looked_up else None
    control = drafting(config, shapes, times, sure, hindsight)
    budget, target = config.budget(device.type), step_target(config, model.config, limits)
    scheduler = Scheduler(cache, count, budget, config.policy, limits, control, config.pipeline_parallel, target)
    stats, compiler = None if control is None else control.stats, compiler_of(grammars, ranks)
    return with_tier(Engine(scheduler, runner, config.limits, lag(config), limits, stats, compiler), tier)


def storage_of(model: Model, config: EngineConfig) -> PagedStorage:
    """Allocate the pages of keys and values."""
    pages = config.cache_blocks * len(layer_groups(model.config))
    kind = Fp8Storage if config.kv_dtype == "fp8" else PagedStorage
    return kind(model.config, pages, config.page_size, model.dtype, model.device)


def lag(config: EngineConfig) -> int:
    """Return how many steps stay under way between calls: one per stage after the first, and one more with overlap."""
    return config.pipeline_parallel - 1 + (1 if config.overlap else 0)


def step_target(config: EngineConfig, model: ModelConfig, times: TimeLimits) -> StepTarget | None:
    """Create the target of steps that several sequences share; None without one."""
    if not config.step_target:
        return None
    turns, slowdown = config.pipeline_parallel, math.inf if config.slowdown is None else config.slowdown
    return StepTarget(config.step_target, even_position(model), times.clock, turns, slowdown)


def draft_shapes(config: EngineConfig, trained: HeadsConfig | None, model: bool) -> DraftShapes | None:
    """Choose the shapes of steps that verify drafts; None without speculation. model: True if a draft model drafts."""
    if not config.speculate:
        return None
    passes = config.drafts is None and (model or (trained is not None and trained.shape.kind == "eagle"))
    return DraftShapes(most_drafts(config, trained), config.max_sequences, passes=passes)


def drafting(
    config: EngineConfig,
    shapes: DraftShapes | None,
    times: StepTimes,
    sure: Callable[[Column], Column] | None = None,
    hindsight: Hindsight | None = None,
) -> DraftControl | None:
    """Create the control that chooses how many drafts are verified; None without speculation. hindsight: given where
    drafts are looked up in the text."""
    if shapes is None:
        return None
    adaptive, slots = config.drafts is None, config.max_sequences
    return DraftControl(shapes, slots, lag=lag(config), adaptive=adaptive, times=times, sure=sure, hindsight=hindsight)


def check_draft(config: ModelConfig, draft: ModelConfig) -> None:
    """Raise ConfigError for a draft that does not match the model."""
    if config.vocab_size != draft.vocab_size:
        raise ConfigError(
            f"the draft has logits for {draft.vocab_size} tokens, the model for {config.vocab_size}: both need as many"
        )
    if len(layer_groups(draft)) > 1 or layer_groups(config)[0].window is not None:
        raise ConfigError(
            "a draft reads the pages of layers that see everything: the model must have such layers, and the draft no "
            "mixture of sliding windows or head sizes; use speculate=ngram"
        )


def runnable(config: EngineConfig, device: torch.device) -> EngineConfig:
    """Switch off kernels and graphs that cannot run on the device, and log a warning."""
    reason = missing(str(device)) if device.type == "cuda" else cpu.missing()
    if config.kernels and reason:
        log.warning("the engine runs without its kernels%s: %s", " and graphs" if config.graphs else "", reason)
        return replace(config, kernels=False, graphs=False)
    if config.graphs and device.type != "cuda":
        log.warning("the engine runs without graphs: the model is on the %s, and graphs are CUDA's", device)
        return replace(config, graphs=False)
    return config
