"""How large a cache can be: where the final engine's memory goes, before a byte of it is taken.

    cache = usable - weights - largest step - CUDA graphs

Weights are counted on a model without memory, the cache is arithmetic (both as in `memory`). What a step computes with
is estimated from its shapes, on the safe side: too little would end the engine in the middle of its work, too much
costs a few pages. The cache is one allocation, made once, so the device is as full at the start as it ever is between
two steps.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from gradus.cache.groups import layer_groups
from gradus.cache.windows import longest_sequence
from gradus.config.options import EngineConfig
from gradus.errors import ConfigError
from gradus.execution.memory import PagePlan, dtypes, free_memory, readable, weight_bytes
from gradus.kernels import missing
from gradus.models import Model
from gradus.models.config import ModelConfig, kv_bytes_per_token
from gradus.models.precision import Precision

# What sampling takes of a row of logits, a token of the vocabulary, at most: the logit, scaled, and as a probability,
# all in float32, and its noise, which is made of 64-bit integers.
SAMPLING_BYTES = 48
MOST_PAGES = 1 << 18  # that memory alone decides on: each is an entry in the books, which are gone through now and then
GRAPH_BYTES = 16 << 20  # set aside for what the driver keeps of a captured graph beside its tensors


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes. free: that can still be allocated. total: None on a CPU, whose memory is everybody's."""

    free: int
    total: int | None = None

    @classmethod
    def of(cls, device: torch.device) -> "DeviceMemory":
        return cls(free_memory(device), torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None)

    def usable(self, fraction: float) -> int:
        """What may be taken for `fraction` of the whole to be in use then, by us and all others; on a CPU, `fraction`
        of what is free."""
        if self.total is None:
            return int(self.free * fraction)
        return max(0, int(self.total * fraction) - (self.total - self.free))


@dataclass(frozen=True)
class EnginePlan:
    """Sizes in bytes.

    usable_bytes: what may be taken of the free memory, by memory_fraction (see EngineConfig).
    weight_bytes: weights and constant tables.
    step_tokens, step_bytes: tokens of the largest step, and what it computes with; graph_bytes: CUDA graphs. Estimates.
    pages: the cache. sized: it got what was left; otherwise it has the tokens that were asked for.
    cache_bytes_per_token: all layers, a window counted as full attention.
    context_length: tokens that a request may have. wanted_context: what was asked for, where the cache holds less.
    """

    device: str
    dtype: str
    free_bytes: int
    total_bytes: int | None
    memory_fraction: float
    usable_bytes: int
    weight_bytes: int
    step_tokens: int
    step_bytes: int
    graph_bytes: int
    pages: PagePlan
    sized: bool
    cache_bytes_per_token: int
    max_sequences: int
    context_length: int
    wanted_context: int | None

    @property
    def beside_cache(self) -> int:
        return self.weight_bytes + self.step_bytes + self.graph_bytes

    @property
    def left_bytes(self) -> int:
        """What is usable and not planned for anything; below 0 where the plan does not fit."""
        return self.usable_bytes - self.beside_cache - self.pages.bytes

    @property
    def fits(self) -> bool:
        return self.left_bytes >= 0

    @property
    def note(self) -> str | None:
        """What the operator should know of a cache that is smaller than one sequence; None of any other."""
        if self.wanted_context is None or (self.sized and not self.fits):
            return None
        raised = "memory_fraction" if self.sized else "cache_tokens"
        return (
            f"a request may have {self.context_length} tokens, not context_length's {self.wanted_context}: the cache "
            f"holds no more; raise {raised}, or lower context_length"
        )

    def applied(self, options: EngineConfig) -> EngineConfig:
        """The options with this cache and context. Raises ConfigError where memory was to size it and none was left."""
        if self.sized and not self.fits:
            raise ConfigError(
                f"no memory is left for a cache on {self.device}: weights take {readable(self.weight_bytes)}, the "
                f"largest step {readable(self.step_bytes)} and CUDA graphs {readable(self.graph_bytes)}, of "
                f"{readable(self.usable_bytes)} that are free within memory_fraction {self.memory_fraction:g}; raise "
                "it, lower token_budget or max_sequences, or take a smaller model"
            )
        if self.context_length < 2:
            raise ConfigError(f"a cache of {self.pages.positions} tokens holds no request: raise cache_tokens")
        limits = replace(options.limits, context_length=self.context_length)
        return replace(options, limits=limits, cache_tokens=self.pages.positions)

    def check_room(self, device: torch.device) -> None:
        """Once the engine stands: whether its largest step still fits. Raises ConfigError where it does not.

        On a CPU nothing is looked at: there, memory is taken when it is first written to.
        """
        if device.type != "cuda":
            return
        torch.cuda.empty_cache()  # what loading and capturing have left in torch's hands is free as well
        free = free_memory(device)
        if free < self.step_bytes:
            lower = f"memory_fraction (now {self.memory_fraction:g})" if self.sized else "cache_tokens"
            raise ConfigError(
                f"{readable(free)} are left on {device} beside weights, cache and CUDA graphs, and the largest step "
                f"may take {readable(self.step_bytes)}: lower {lower}, token_budget or max_sequences"
            )

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        derived = {"cache_bytes": self.pages.bytes, "left_bytes": self.left_bytes, "fits": self.fits}
        return asdict(self) | derived

    def render(self) -> str:
        """For people: a line a fact, the conclusion last."""
        total = readable(self.beside_cache + self.pages.bytes)
        verdict = f"which fits; {readable(self.left_bytes)} more could be used" if self.fits else "which does NOT fit"
        lines = [
            ("device", f"{self.device}, {self.dtype}"),
            ("free now", self._free()),
            ("weights", readable(self.weight_bytes)),
            ("largest step", f"{readable(self.step_bytes)}, estimated for {self.step_tokens} tokens"),
            ("CUDA graphs", f"{readable(self.graph_bytes)}, estimated" if self.graph_bytes else "none"),
            ("cache", f"{readable(self.pages.bytes)}, {readable(self.cache_bytes_per_token)} a token"),
            *self.pages.lines(),
            ("runs", f"up to {self.max_sequences} sequences at a time (context {self.context_length} tokens)"),
            *([("note", self.note)] if self.note else ()),
            ("in all", f"{total}, {verdict}"),
        ]
        return "\n".join(f"{name:<20}{value}" for name, value in lines)

    def _free(self) -> str:
        part = f"{readable(self.usable_bytes)} may be taken (memory_fraction {self.memory_fraction:g})"
        whole = "" if self.total_bytes is None else f" of {readable(self.total_bytes)}"
        return f"{readable(self.free_bytes)}{whole}, of which {part}"


def planned(
    config: ModelConfig,
    options: EngineConfig,
    device: torch.device,
    precision: Precision,
    memory: DeviceMemory | None = None,
) -> EnginePlan:
    """For a model that is still to be loaded. memory: measured when None."""
    weights = weight_bytes(config, precision)
    plan = _plan(config, options, device, precision.activations, weights, memory or DeviceMemory.of(device))
    return replace(plan, dtype=dtypes(precision))


def sized(model: Model, options: EngineConfig) -> EngineConfig:
    """The options with a cache for what is free now, the model being loaded, if they leave its size to memory."""
    if not options.sized:
        return options
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    now = DeviceMemory.of(model.device)
    before = replace(now, free=now.free + weights)
    return _plan(model.config, options, model.device, model.dtype, weights, before).applied(options)


def _plan(
    config: ModelConfig,
    options: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    weights: int,
    memory: DeviceMemory,
) -> EnginePlan:
    count, wanted, budget = options.max_sequences, options.limits.context_length, options.budget(device.type)
    tokens = max(budget or wanted, count)  # without a budget a step is a whole prompt at least
    step = step_bytes(config, tokens, count, dtype.itemsize)
    graphs = graph_bytes(config, count, dtype.itemsize) if options.graphs and not missing(device.type) else 0
    fraction = 1.0 if options.memory_fraction is None else options.memory_fraction
    usable = memory.usable(fraction)
    filled = options
    if options.sized:
        filled = fitting(config, options, dtype.itemsize, usable - weights - step - graphs)
    context = longest(config, filled, budget)
    pages = PagePlan.of(config, replace(filled, limits=replace(options.limits, context_length=context)), dtype.itemsize)
    return EnginePlan(
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        free_bytes=memory.free,
        total_bytes=memory.total,
        memory_fraction=fraction,
        usable_bytes=usable,
        weight_bytes=weights,
        step_tokens=tokens,
        step_bytes=step,
        graph_bytes=graphs,
        # with windows, the longest that can run may be longer than the positions that all layers have room for
        pages=replace(pages, full_sequences=max(1, pages.full_sequences)),
        sized=options.sized,
        cache_bytes_per_token=kv_bytes_per_token(config, dtype.itemsize),
        max_sequences=count,
        context_length=context,
        wanted_context=wanted if context < wanted else None,
    )


def fitting(config: ModelConfig, options: EngineConfig, itemsize: int, room: int) -> EngineConfig:
    """With the cache that `room` bytes hold: a block at least, and no more than what all sequences can fill.

    Nor more than MOST_PAGES; who wants those asks for larger pages, or for cache_tokens.
    """
    block = PagePlan.of(config, replace(options, cache_tokens=options.page_size), itemsize)
    page = block.bytes // (block.count + 1)  # page 0 is allocated too
    blocks = min((room - page) // (block.count * page), options.cache_blocks, MOST_PAGES // block.count)
    return replace(options, cache_tokens=max(1, blocks) * options.page_size)


def longest(config: ModelConfig, options: EngineConfig, budget: int | None) -> int:
    """Tokens of the longest sequence that the cache, empty, has room for (`PagedCache.fits`), up to context_length."""
    windows = [group.window for group in layer_groups(config.windows)]
    pages = options.cache_blocks * len(windows)
    return longest_sequence(pages, windows, options.page_size, budget, options.limits.context_length)


def step_bytes(config: ModelConfig, rows: int, sampled: int, itemsize: int) -> int:
    """What a step of `rows` tokens, `sampled` of them with logits, holds at once at most: an estimate.

    From layer to layer only the residual stream lives. Beside it a layer needs, for every token, the normed row (in
    float32 while it is made), and either queries, keys and values, before and after rotation, or what lies between the
    MLP's matrices: gate, up and their product.
    """
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    widest = max(2 * heads, 3 * config.intermediate_size)
    row = (2 * config.hidden_size + widest) * itemsize + 2 * config.hidden_size * 4
    return rows * row + sampled * config.vocab_size * SAMPLING_BYTES


def graph_bytes(config: ModelConfig, slots: int, itemsize: int) -> int:
    """What captured decodes keep at most: the memory of the largest one, which all share, and each graph's own."""
    from gradus.execution.graphs import batch_sizes  # here, since it needs Triton, which is not everywhere

    sizes = batch_sizes(slots)
    logits = slots * config.vocab_size * (itemsize + 4)  # once more in float32, where they have a soft cap
    own = sum(sizes) * config.hidden_size * itemsize + len(sizes) * GRAPH_BYTES
    return step_bytes(config, slots, 0, itemsize) + logits + own
