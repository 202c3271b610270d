"""p04: p03 with pages for slots. The cache manager, the attention backend and the scheduler are the ones that stay."""

from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.cache.groups import layer_groups
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.execution.runner import ModelRunner
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from gradus.scheduling.batching import PagedBatching

USES = frozenset({"page_size", "cache_tokens", "policy"})  # the optional settings that this phase heeds


def build(model: Model, options: EngineOptions) -> Engine:
    return paged_engine(model, options)


def paged_engine(
    model: Model,
    options: EngineOptions,
    index: PrefixIndex | None = None,
    token_budget: int | None = None,
    attention_backend: type[PagedAttention] = PagedAttention,
) -> Engine:
    """An engine whose cache has pages. p05, p06 and p09 set one more argument each."""
    page_size, count = options.page_size, options.max_sequences
    windows = [group.window for group in layer_groups(model.config.windows)]
    pages = options.cache_blocks * len(windows)
    storage = PagedStorage(model.config, pages, page_size, model.dtype, model.device)
    attention = attention_backend(model.config, storage, slots=count)
    runner = ModelRunner(model, attention, Sampler(model.config.vocab_size, model.device))
    scheduler = PagedBatching(PagedCache(pages, page_size, windows, index), count, token_budget, options.policy)
    return Engine(scheduler, runner, options.limits)
