"""Plans an engine's memory before a byte of it is taken.

    cache <= usable - weights - largest step - CUDA graphs - tables with a row per sequence

Weights are counted on a model built without memory (torch's "meta" device), so the count matches what the model and the
precision really allocate. A CPU leaves the experts of a GGUF file in the file, and they are not counted: the system
keeps their pages while it has room. The cache is arithmetic:

    bytes per token = 2 (key, value) x the sum over layers that store them of
                      key-value heads x (head dimension x bytes per number + bytes per scale)

Pages take as much (`gradus.cache.groups`), and more where a group of layers does not fill its pages.

A phase's cache has a fixed size: its slots, or the requested pages; part of the free memory is left to its steps. The
final engine's cache gets the remaining memory. The memory that its steps need is estimated from their shapes, on the
safe side: too low an estimate would end the engine in the middle of its work, too high a one costs a few pages. A cache
is one allocation, made once, so the device is as full at the start as it ever is between two steps. On a GPU, the
memory of the largest step is kept from then on, so that other processes cannot take it.

Defaults that would leave no cache worth having are lowered (concessions.py).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gradus.attention.paged import block_table_bytes
from gradus.cache.capacity import sequences_by_length, sequences_held
from gradus.cache.groups import layer_groups, page_layout
from gradus.cache.windows import decoding_pages, longest_sequence
from gradus.config.options import LONGER_STEP, EngineConfig, EngineOptions
from gradus.config.settings import capacity, heeded
from gradus.device.capability import capability
from gradus.errors import ConfigError
from gradus.execution.gpu.page_copies import staging_bytes
from gradus.execution.memory.concessions import Concession, conceded, descending, worth_having
from gradus.execution.memory.device_memory import DeviceMemory, free_memory, keep, readable
from gradus.execution.memory.footprint import KV_BYTES
from gradus.kernels import check_kv_dtype, missing
from gradus.models import Model
from gradus.models.config import ModelConfig, kv_bytes_per_token
from gradus.models.create import create_model
from gradus.models.precision import Precision
from gradus.quantization.gguf import GGUFLinear
from gradus.sampling.slots import table_bytes
from gradus.scheduling.draft_shapes import MOST_ROWS, NO_SHAPE, DraftShapes, batch_sizes
from gradus.speculative.heads_folder import heads_bytes
from gradus.speculative.history import history_bytes

log = logging.getLogger(__name__)

PHASE_FRACTION = 0.9  # of the free memory, for a phase's weights and cache: the rest is for its steps
# Most bytes that sampling needs per logit: the logit itself, scaled, and as a probability, all in float32, and its
# noise, which is made of 64-bit integers.
SAMPLING_BYTES = 48
MOST_PAGES = 1 << 18  # when memory sizes the cache: each page has entries in tables, which are searched now and then
LONGER_SHARE = 1 / 64  # of a GPU's memory, at most, for making steps longer
GRAPH_BYTES = 16 << 20  # set aside for the driver's own data of a captured graph, in addition to its tensors


@dataclass(frozen=True)
class PagePlan:
    """The paged cache of a model.

    count: its pages without page 0, which no sequence gets. bytes: of all pages, page 0 included.
    positions: how many tokens' keys and values fit, in all layers.
    windows: of the layer groups that have pages of their own.
    """

    page_size: int
    count: int
    bytes: int
    positions: int
    windows: tuple[int | None, ...] = (None,)

    def sequences(self, length: int) -> int:
        """How many sequences of `length` tokens the pages hold while all decode, windows counted."""
        return sequences_held(self.count, self.windows, self.page_size, length)

    @classmethod
    def of(cls, config: ModelConfig, options: EngineOptions, itemsize: int) -> "PagePlan":
        """Size the paged cache that the options describe.

        Each layer group of the final engine has its own pages, all from one pool: a block is one page per group. A
        phase's page holds all layers.
        """
        blocks, per = options.cache_blocks, kv_bytes(options, itemsize)
        windows: tuple[int | None, ...] = (None,)
        position = kv_bytes_per_token(config, *per)
        if isinstance(options, EngineConfig):
            layout = page_layout(config)
            windows, position = tuple(group.window for group in layout.groups), layout.position_bytes(*per)
        count = blocks * len(windows)
        return cls(
            page_size=options.page_size,
            count=count,
            bytes=(count + 1) * options.page_size * position,
            positions=blocks * options.page_size,
            windows=windows,
        )


@dataclass(frozen=True)
class MemoryPlan:
    """Where an engine's memory goes: sizes in bytes.

    dtype: of weights, then of activations if that differs. cache_dtype: of keys and values.
    free_bytes, total_bytes, own_bytes: of the device now (see DeviceMemory). memory_fraction: the part of it that may
    be in use. usable_bytes: how much can therefore be taken.
    weight_bytes: weights and constant tables. mapped_bytes: experts that stay in their file, in addition.
    step_tokens, step_bytes: tokens of the largest step, and its memory; graph_bytes: CUDA graphs. Both are estimates.
    table_bytes: tables with a row per slot, of sampling, pages and texts; what pages pass through on their way to
    host memory; and what long prompts widen keys and values of 8 bits into. These four are the final engine's alone.
    longer_steps: True if memory is plenty, and the token budget therefore LONGER_STEP.
    cache_bytes: of all slots, or all pages. cache_bytes_per_token: all layers, a window counted as full attention.
    pages: None for a phase without. sized: True if memory decided the cache's size, False if the user did.
    max_sequences: the most that run at once.
    context_length: most tokens of a request. wanted_context: the requested limit, if the cache holds less.
    concessions: defaults lowered to leave a cache worth having.
    """

    device: str
    dtype: str
    cache_dtype: str
    free_bytes: int
    total_bytes: int | None
    memory_fraction: float
    usable_bytes: int
    weight_bytes: int
    cache_bytes: int
    cache_bytes_per_token: int
    max_sequences: int
    context_length: int
    step_tokens: int = 0
    step_bytes: int = 0
    graph_bytes: int = 0
    table_bytes: int = 0
    pages: PagePlan | None = None
    sized: bool = False
    wanted_context: int | None = None
    own_bytes: int = 0
    mapped_bytes: int = 0
    concessions: tuple[Concession, ...] = ()
    longer_steps: bool = False

    @property
    def beside_cache(self) -> int:
        return self.weight_bytes + self.step_bytes + self.graph_bytes + self.table_bytes

    @property
    def left_bytes(self) -> int:
        """Usable bytes that the plan leaves over; below 0 if the plan does not fit."""
        return self.usable_bytes - self.beside_cache - self.cache_bytes

    @property
    def fits(self) -> bool:
        return self.left_bytes >= 0

    @property
    def cache_bytes_per_sequence(self) -> int:
        """Bytes of a sequence of full length: its slot, or its pages while it decodes, windows counted."""
        if self.pages is None:
            return self.cache_bytes_per_token * self.context_length
        pages = decoding_pages(self.context_length, self.pages.windows, self.pages.page_size)
        return pages * self.cache_bytes // (self.pages.count + 1)

    @property
    def sequences_that_fit(self) -> int:
        """How many sequences of full length fit next to the rest; 0 if the model hardly fits, or does not."""
        return max(0, self.usable_bytes - self.beside_cache) // self.cache_bytes_per_sequence

    @property
    def sequences(self) -> int:
        """How many sequences of full length run at once: the lowest limit of the engine, the pages and memory."""
        held = self.max_sequences if self.pages is None else self.pages.sequences(self.context_length)
        return min(self.max_sequences, held, self.sequences_that_fit)

    @property
    def sequences_by_length(self) -> dict[int, int]:
        """How many sequences of each usual length run at once; {} without pages."""
        pages = self.pages
        if pages is None:
            return {}
        return sequences_by_length(pages.count, pages.windows, pages.page_size, self.context_length, self.max_sequences)

    @property
    def notes(self) -> list[str]:
        """Lines for the operator: which defaults were lowered, and whether the cache is smaller than one sequence."""
        return [note for note in (self._conceded(), self._short()) if note is not None]

    def _conceded(self) -> str | None:
        if not self.concessions:
            return None
        whole = "" if self.total_bytes is None else f" of {readable(self.total_bytes)}"
        changes = ", ".join(map(str, self.concessions))
        return f"{self.device} has {readable(self.free_bytes)}{whole} free: {changes}, to leave room for the cache"

    def _short(self) -> str | None:
        if self.wanted_context is None or (self.sized and not self.fits):
            return None
        raised = "memory_fraction" if self.sized else "cache_tokens"
        return (
            f"a request may have {self.context_length} tokens, not context_length's {self.wanted_context}: the cache "
            f"holds no more; raise {raised}, or lower context_length"
        )

    @property
    def holders(self) -> str:
        """Name the processes that hold the memory, as the end of a refusal."""
        memory = DeviceMemory(self.free_bytes, self.total_bytes, self.own_bytes)
        return memory.holders(torch.device(self.device))

    def applied(self, options: EngineConfig) -> EngineConfig:
        """Apply this cache, this context, the concessions and longer steps to the options, and log the notes.

        No setting of the result yields any more. Raises ConfigError if memory sizes the cache and none is left for it.
        """
        assert self.pages is not None, "the final engine has pages"
        if self.sized and not self.fits:
            raise ConfigError(self._refusal(options))
        if self.context_length < 2:
            raise ConfigError(f"a cache of {self.pages.positions} tokens holds no request: raise cache_tokens")
        for note in self.notes:
            log.warning("%s", note)
        became: dict[str, Any] = {one.setting: one.became for one in self.concessions}
        if self.longer_steps:
            became["token_budget"] = LONGER_STEP
        limits = replace(options.limits, context_length=self.context_length)
        return replace(options, limits=limits, cache_tokens=self.pages.positions, yielding=frozenset(), **became)

    def _refusal(self, options: EngineConfig) -> str:
        weights, smaller = "weights", "model"
        if options.draft_model is not None:
            weights, smaller = "the model's and the draft's weights", "draft"
        lowered = [one.setting for one in self.concessions]
        largest = {"token_budget" if options.chunked else "context_length": self.step_tokens}
        sizes = largest | {"max_sequences": self.max_sequences}
        left = [name for name, size in sizes.items() if name not in lowered and size > 1]
        raised = "" if "memory_fraction" in lowered else "raise it, "
        lower = f"lower {' or '.join(left)}, or " if left else ""
        return (
            f"no memory is left for a cache on {self.device}: {weights} take {readable(self.weight_bytes)}, the "
            f"largest step {readable(self.step_bytes)}, tables {readable(self.table_bytes)} and CUDA graphs "
            f"{readable(self.graph_bytes)}, of {readable(self.usable_bytes)} that are free within memory_fraction "
            f"{self.memory_fraction:g}; {raised}{lower}take a smaller {smaller}{self.holders}"
        )

    def check_room(self, device: torch.device) -> None:
        """Keep the memory of the largest step, once the engine is built. Raises ConfigError if there is not enough.

        Logs a warning if start-up exceeded the plan by over half of the memory that memory_fraction leaves unused. Does
        nothing on a CPU, where memory is taken only when it is first written to.
        """
        if device.type != "cuda":
            return
        free = free_memory(device)
        unplanned = self.free_bytes - free - (self.beside_cache - self.step_bytes + self.cache_bytes)
        lower = f"memory_fraction (now {self.memory_fraction:g})" if self.sized else "cache_tokens"
        told = (
            f"{readable(free)} are left on {device} beside weights, cache and CUDA graphs, and the largest step "
            f"may take {readable(self.step_bytes)}"
        )
        if unplanned > 0:
            told += f"; start-up, or another process meanwhile, took {readable(unplanned)} more than was planned"
        if free < self.step_bytes:
            raise ConfigError(f"{told}: lower {lower}, token_budget or max_sequences{self.holders}")
        if unplanned > (self.free_bytes - self.usable_bytes) / 2:
            log.warning("%s: a lower %s leaves more", told, lower)
        keep(self.step_bytes, device)


def memory_plan(
    config: ModelConfig,
    options: EngineOptions,
    device: torch.device,
    precision: Precision,
    *,
    phase: str | None = None,
    memory: DeviceMemory | None = None,
    draft: tuple[ModelConfig, Precision] | None = None,
) -> MemoryPlan:
    """Plan the memory of a model, known only by its configuration, that `phase` or the final engine runs.

    options: an EngineConfig for the final engine. memory: measured when None. draft: the draft model, if there is one.
    Raises ConfigError for a kv_dtype that the device's kernels cannot read.
    """
    model = create_model(config, dtype=precision.activations, device="meta", linear=precision.linear)
    at = _At(model, device, precision.activations, memory or DeviceMemory.of(device))
    if phase is not None:
        plan = _fixed(at, options, phase)
    else:
        assert isinstance(options, EngineConfig)
        check_kv_dtype(options.kv_dtype, device, options.kernels)
        plan = _final(at, options, None if draft is None else _draft(*draft))
    return replace(plan, dtype=precision.title)


def _draft(config: ModelConfig, precision: Precision) -> Model:
    try:
        return create_model(config, dtype=precision.activations, device="meta", linear=precision.linear)
    except ConfigError as error:  # names a matrix, and the model has one of the same name
        raise ConfigError(f"the draft model's {error}") from error


def sized(model: Model, options: EngineConfig, draft: Model | None = None) -> EngineConfig:
    """Size the cache by the memory that is free once the model is loaded, if the options leave its size to memory.

    If little is free, defaults are lowered.
    """
    if not options.sized:
        return options
    now = DeviceMemory.of(model.device)
    loaded = sum(resident_bytes(each, model.device) for each in (model, draft) if each is not None)
    before = replace(now, free=now.free + loaded, own=max(0, now.own - loaded))
    return _final(_At(model, model.device, model.dtype, before), options, draft).applied(options)


def _fixed(at: "_At", options: EngineOptions, phase: str) -> MemoryPlan:
    """Plan for a phase, whose cache has the requested pages, or a whole context for each sequence that can run."""
    count, length = capacity(phase, options.max_sequences), options.limits.context_length
    pages = PagePlan.of(at.config, options, at.itemsize) if "page_size" in heeded(phase) else None
    return MemoryPlan(
        **at.facts(options),
        memory_fraction=PHASE_FRACTION,
        usable_bytes=int(at.memory.free * PHASE_FRACTION),
        cache_bytes=pages.bytes if pages else count * length * kv_bytes_per_token(at.config, at.itemsize),
        max_sequences=count,
        context_length=length,
        pages=pages,
    )


def _final(at: "_At", options: EngineConfig, draft: Model | None = None) -> MemoryPlan:
    """Plan for the final engine, with the fewest concessions that leave a cache worth having, or with all of them."""
    for tried in descending(options, at.memory):
        plan = _planned(at, tried, draft)
        if plan.fits and _worth_having(plan, tried):
            break
    plan = replace(plan, concessions=conceded(options, tried))
    return plan if plan.concessions else _with_longer_steps(at, options, plan, draft)


def _with_longer_steps(at: "_At", options: EngineConfig, plan: MemoryPlan, draft: Model | None) -> MemoryPlan:
    """Let steps be twice as long, unless their length was given, clients wait for each other, or the cache loses much.

    Matrices are multiplied a little faster: a prompt of 120,000 tokens of Llama-3.2-1B gained 2 % on an H200, one of
    32,000 3 %.
    """
    free = "token_budget" in options.yielding and options.chunked and not options.step_target
    if not free or at.memory.total is None:
        return plan
    tried = replace(options, token_budget=LONGER_STEP)
    longer = replace(_planned(at, tried, draft), longer_steps=True)
    costs_little = longer.step_bytes - plan.step_bytes <= LONGER_SHARE * at.memory.total
    # the cache may lose the pages of a whole request, and layers with a window need more of them for a longer chunk
    as_long = longer.context_length == plan.context_length
    return longer if costs_little and as_long and longer.fits and _worth_having(longer, tried) else plan


def _worth_having(plan: MemoryPlan, options: EngineConfig) -> bool:
    """True if the cache has its requested size, is worth having, or would not grow with more memory."""
    assert plan.pages is not None
    enough, full = worth_having(options), plan.pages.count > MOST_PAGES - len(plan.pages.windows)
    return not plan.sized or plan.pages.positions >= enough or full


def _planned(at: "_At", options: EngineConfig, draft: Model | None = None) -> MemoryPlan:
    """Plan for the final engine with these options: the cache gets the remaining memory, or its requested size.

    draft: its weights count as weights, and its keys and values as the cache's: each page holds both models'.
    """
    config, kind, itemsize = at.config, at.device.type, at.itemsize
    models = [at.model] if draft is None else [at.model, draft]
    count, wanted, budget = options.max_sequences, options.limits.context_length, options.budget(kind)
    tokens = max(budget or wanted, count)  # without a budget a step is a whole prompt at least
    kernels = options.kernels and not missing(kind)
    rows = min(count * (1 + options.most_drafts), max(count, MOST_ROWS))  # decodes and their drafts
    step = step_bytes(config, tokens, rows, itemsize) + (at.scratch(tokens, rows) if kernels else 0)
    graphs = graph_bytes(at, options, rows, draft) if options.graphs and kernels else 0
    tables = _tables(at, options, models, kernels=kernels)
    fraction = 1.0 if options.memory_fraction is None else options.memory_fraction
    usable = at.memory.usable(fraction)
    weights = sum(resident_bytes(each, at.device) for each in models)
    left = usable - weights - step - graphs - tables
    others = 0  # bytes of the draft model's keys and values in each page
    if draft is not None:
        layout = page_layout(draft.config, layer_groups(config)[0].together)
        others = options.page_size * layout.position_bytes(*kv_bytes(options, draft.dtype.itemsize))
    filled = _filling(config, options, itemsize, left, others) if options.sized else options
    context = _longest(config, filled, budget)
    pages = PagePlan.of(config, filled, itemsize)
    return MemoryPlan(
        **at.facts(options) | {"weight_bytes": weights},
        memory_fraction=fraction,
        usable_bytes=usable,
        cache_bytes=pages.bytes + others * (pages.count + 1),
        max_sequences=count,
        context_length=context,
        step_tokens=tokens,
        step_bytes=step,
        graph_bytes=graphs,
        table_bytes=tables,
        pages=pages,
        sized=options.sized,
        wanted_context=wanted if context < wanted else None,
    )


def _tables(at: "_At", options: EngineConfig, models: Sequence[Model], *, kernels: bool) -> int:
    """Count the bytes of tables with a row per slot, and of the rooms that keys and values pass through.

    models: the model, and the draft model if there is one.
    """
    config, itemsize = at.config, at.itemsize
    count, context, page_size = options.max_sequences, options.limits.context_length, options.page_size
    slots = count + 1 if kernels else count  # the kernels' sampler has one more, for padding
    size = table_bytes(config.vocab_size, slots, masks=kernels)
    size += history_bytes(count, context, whole=bool(options.speculate))
    size += block_table_bytes(len(layer_groups(config)), count + 1, context, page_size)
    if kernels and _in_fp8(options):
        size += sum(_widened(each, at.device, page_size, context) for each in models)
    if options.host_cache is not None:
        size += staging_bytes(page_size * page_layout(config).position_bytes(*kv_bytes(options, itemsize)))
    if options.heads is not None:
        states = (count + 1) * config.hidden_size * itemsize  # one of each slot
        size += heads_bytes(Path(options.heads), itemsize) + states
    return size


def _widened(model: Model, device: torch.device, page_size: int, context: int) -> int:
    """Count the bytes into which long prompts widen a layer's keys and values of 8 bits."""
    from gradus.attention.triton_paged import widened_bytes  # here: it needs Triton

    return widened_bytes(model.config, model.dtype, page_size, capability(device), context)


@dataclass(frozen=True)
class _At:
    """A model, loaded or on torch's "meta" device, and the device that it runs on, before its cache is allocated.

    dtype: of activations.
    """

    model: Model
    device: torch.device
    dtype: torch.dtype
    memory: DeviceMemory

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def weights(self) -> int:
        return resident_bytes(self.model, self.device)

    def scratch(self, rows: int, sampled: int) -> int:
        """Count the bytes of scratch memory that kernels need for products with quantized matrices."""
        from gradus.kernels.fuse.quantized import scratch_bytes  # here, since it needs Triton

        return scratch_bytes(self.model, rows, sampled, self.dtype, self.device)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def facts(self, options: EngineOptions) -> dict[str, Any]:
        """List the fields that every plan has in common."""
        return {
            "device": str(self.device),
            "dtype": _name(self.dtype),
            "free_bytes": self.memory.free,
            "total_bytes": self.memory.total,
            "own_bytes": self.memory.own,
            "weight_bytes": self.weights,
            "mapped_bytes": mapped_bytes(self.model, self.device),
            "cache_dtype": "fp8" if _in_fp8(options) else _name(self.dtype),
            "cache_bytes_per_token": kv_bytes_per_token(self.config, *kv_bytes(options, self.itemsize)),
        }


def kv_bytes(options: EngineOptions, itemsize: int) -> tuple[int, int]:
    """Return the cache's bytes per number, and the bytes of the scale of each head's key or value (0 without scales).

    itemsize: of the model's own type.
    """
    return KV_BYTES["fp8"] if _in_fp8(options) else (itemsize, 0)


def _in_fp8(options: EngineOptions) -> bool:
    return isinstance(options, EngineConfig) and options.kv_dtype == "fp8"


def _filling(config: ModelConfig, options: EngineConfig, itemsize: int, room: int, others: int) -> EngineConfig:
    """Set the cache's size to fill `room` bytes: at least a block, and at most what all sequences can fill.

    others: the bytes of another model in each page.

    It also has at most MOST_PAGES: a larger cache needs larger pages, or an explicit cache_tokens.
    """
    block = PagePlan.of(config, replace(options, cache_tokens=options.page_size), itemsize)
    page = block.bytes // (block.count + 1) + others  # page 0 is allocated too
    blocks = min((room - page) // (block.count * page), options.cache_blocks, MOST_PAGES // block.count)
    return replace(options, cache_tokens=max(1, blocks) * options.page_size)


def _longest(config: ModelConfig, options: EngineConfig, budget: int | None) -> int:
    """Count the tokens of the longest sequence that fits an empty cache (`PagedCache.fits`), up to context_length."""
    windows = [group.window for group in layer_groups(config)]
    pages = options.cache_blocks * len(windows)
    return longest_sequence(pages, windows, options.page_size, budget, options.limits.context_length)


def weight_bytes(model: Model) -> int:
    """Count the bytes of weights and constant tables."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def mapped_bytes(model: Model, device: torch.device) -> int:
    """Count the bytes of experts that stay in a GGUF file, which only a CPU reads."""
    if device.type != "cpu":
        return 0
    found = (part for part in model.modules() if isinstance(part, GGUFLinear) and part.stays_in_file)
    return sum(part.blocks.nbytes for part in found)


def resident_bytes(model: Model, device: torch.device) -> int:
    """Count the bytes of weights and constant tables that must be in the device's memory."""
    return weight_bytes(model) - mapped_bytes(model, device)


def step_bytes(config: ModelConfig, rows: int, sampled: int, itemsize: int) -> int:
    """Estimate the most memory that a step of `rows` tokens, `sampled` of them with logits, needs at once.

    Only the residual stream lives from layer to layer. In addition, a layer needs for every token the normed row (in
    float32 while it is made), and either queries, keys and values, before and after rotation, or the values between the
    MLP's matrices: gate, up and their product. For each of a token's experts these are its own, with its row and its
    result, in addition to those of the dense MLP next to the experts. Inputs that layers have of their own are made
    before the first, and live until the last.
    """
    layers = range(config.num_layers)
    heads = max(sum(config.qkv_parts(layer)) for layer in layers)
    widest = max(2 * heads, *(_mlp_values(config, layer) for layer in layers))
    inputs = config.num_layers * config.per_layer_width
    narrow = 2 * config.hidden_size + inputs + max(widest, 3 * inputs)
    row = narrow * itemsize + 2 * max(config.hidden_size, inputs) * 4
    return rows * row + sampled * config.vocab_size * SAMPLING_BYTES


def _mlp_values(config: ModelConfig, layer: int) -> int:
    """Count the values of a token between the matrices of a layer's MLP and of its experts."""
    dense, experts = 3 * config.layer(layer).intermediate_size, config.experts_at(layer)
    if experts is None:
        return dense
    each = 3 * experts.width + 2 * config.hidden_size  # gate, features, their product; the row and the result
    return dense + experts.chosen * each + 2 * experts.count  # and the router's logits, in float32


def graph_bytes(at: "_At", options: EngineConfig, sampled: int, draft: Model | None = None) -> int:
    """Estimate the most memory that captured steps keep: that of the largest, which all share, and each graph's own.

    sampled: rows of the largest step of decodes. draft: a model whose passes over prompts are captured as well.
    """
    from gradus.execution.gpu.prompt_graphs import prompt_sizes  # here: it needs Triton, which is not everywhere

    config, itemsize = at.config, at.itemsize
    slots, most = options.max_sequences, options.most_drafts
    drafts = DraftShapes(most, slots, passes=draft is not None or options.heads is not None) if most else None
    sizes = [(size, shape) for size in batch_sizes(slots) for shape in (NO_SHAPE, *(drafts.of(size) if drafts else ()))]
    logits = sampled * config.vocab_size * (itemsize + 4)  # once more in float32, for a soft cap
    own, largest = 2 * len(sizes) * GRAPH_BYTES, 0  # two graphs for each step of decodes
    for read in (config, *([] if draft is None else [draft.config])):
        prompts = prompt_sizes(read, options.budget("cuda"))
        own += len(prompts) * GRAPH_BYTES + sum(prompts) * read.hidden_size * itemsize  # and their hidden states
        largest = max(largest, step_bytes(read, max([sampled, *prompts]), 0, itemsize))
    rows = max([sampled, *prompt_sizes(config, options.budget("cuda"))])
    return largest + logits + own + at.scratch(rows, sampled)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
