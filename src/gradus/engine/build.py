"""The final engine: what the phases taught, composed, with a switch for each.

    build(model, EngineConfig(limits, max_sequences=256))

Every phase since p04 is this engine with switches off: p04 without prefix cache, chunks, kernels, graphs and overlap;
p10 is all of them. So the worth of each can be measured in the final engine, by leaving it out alone.
"""

import logging
from dataclasses import dataclass, fields
from typing import Any

from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.cache.groups import layer_groups
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.engine.batching import PagedBatching
from gradus.engine.engine import Engine
from gradus.engine.options import EngineOptions
from gradus.engine.runner import LatestTokens, ModelRunner
from gradus.engine.sampler import Sampler
from gradus.errors import ConfigError
from gradus.kernels import missing
from gradus.models import Model

log = logging.getLogger(__name__)

# What a step costs hardly grows up to some number of tokens, for it must read all weights anyway; then it grows with
# each. A budget beyond that point delays the decodes, one below it wastes the step.
BUDGETS = {"cpu": 256, "cuda": 8192}


@dataclass(frozen=True, slots=True)
class EngineConfig(EngineOptions):
    """EngineOptions, and a switch for each optimization.

    prefix_cache: requests that begin alike share pages. chunked: prompts are cut to the token budget.
    kernels: Triton kernels for attention, the model's other parts and sampling, on a CUDA GPU.
    graphs: steps of decodes are replayed from CUDA graphs; needs `kernels`. overlap: the next step is scheduled while
    the GPU works on this one.
    """

    prefix_cache: bool = True
    chunked: bool = True
    kernels: bool = True
    graphs: bool = True
    overlap: bool = True

    def __post_init__(self) -> None:
        EngineOptions.__post_init__(self)
        if self.graphs and not self.kernels:
            raise ConfigError("graphs need kernels: switch both on, or graphs off")

    @classmethod
    def of(cls, options: EngineOptions, **switches: bool) -> "EngineConfig":
        """The same options with switches."""
        values: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(EngineOptions)}
        return cls(**{**values, **switches})


def build(model: Model, config: EngineConfig) -> Engine:
    """Compose the engine. On a GPU with `graphs`, this captures them: seconds, in which nothing else may run there."""
    page_size, count, device = config.page_size, config.max_sequences, model.device
    windows = [group.window for group in layer_groups(model.config.windows)]
    pages = config.cache_blocks * len(windows)
    storage = PagedStorage(model.config, pages, page_size, model.dtype, device)
    reason = missing(device.type)
    if config.kernels and reason:
        log.warning("the engine runs without its kernels%s: %s", " and graphs" if config.graphs else "", reason)
    latest = LatestTokens(count, device) if config.overlap or config.graphs else None
    if config.kernels and not reason:
        runner = kernel_runner(model, storage, latest, config)
    else:
        attention = PagedAttention(model.config, storage, slots=count)
        runner = ModelRunner(model, attention, Sampler(model.config.vocab_size, device), latest)
    budget = (config.token_budget or BUDGETS[device.type]) if config.chunked else None
    cache = PagedCache(pages, page_size, windows, PrefixIndex() if config.prefix_cache else None)
    scheduler = PagedBatching(cache, count, budget, config.policy)
    return Engine(scheduler, runner, config.limits, lag=1 if config.overlap else 0)


def kernel_runner(
    model: Model, storage: PagedStorage, latest: LatestTokens | None, config: EngineConfig
) -> ModelRunner:
    """The model's fused view on attention that reads pages, and graphs of its decode steps if they are wanted."""
    from gradus.attention.graph_paged import GraphPagedAttention  # here, since Triton is not everywhere
    from gradus.engine.graphs import GraphRunner
    from gradus.engine.kernel_sampler import KernelSampler
    from gradus.kernels.fuse import fused

    count = config.max_sequences
    attention = GraphPagedAttention(model.config, storage, slots=count + 1)  # the last slot is nobody's
    sampler = KernelSampler(model.config.vocab_size, model.device, count)
    if not config.graphs:
        return ModelRunner(fused(model), attention, sampler, latest)
    assert latest is not None
    runner = GraphRunner(fused(model), attention, sampler, latest, count)
    runner.capture()
    return runner
