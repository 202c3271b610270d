"""What a model will need, before a byte of it is loaded: weights, cache, and how many sequences fit beside them.

The weights are counted on a model that is built without memory (torch's "meta" device), so the count follows whatever
the model and the precision really allocate. The cache is arithmetic:

    bytes a token = 2 (key, value) x layers x key-value heads x head dimension x bytes a number

A paged cache is one allocation, made once; how many sequences it holds is decided by their real lengths. Other phases
reserve a whole context for each sequence that can run.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gradus.cache.groups import layer_groups
from gradus.config.options import EngineConfig, EngineOptions, resolve_context
from gradus.errors import CapacityError, ConfigError
from gradus.models.config import ModelConfig, kv_bytes_per_token
from gradus.models.create import create_model
from gradus.models.precision import Precision, resolve_device, resolve_precision

# Of the free memory, what weights and cache may take. The rest is for activations, logits and the allocator's gaps.
USABLE = 0.9


@dataclass(frozen=True)
class PagePlan:
    """The paged cache of a model. count: its pages, beside page 0, which is nobody's. bytes: of all, page 0 included.

    positions: how many tokens' keys and values it has room for, in all layers.
    full_sequences: how many of full length it holds at once; shorter ones take only the pages that they fill.
    """

    page_size: int
    count: int
    bytes: int
    positions: int
    full_sequences: int

    @classmethod
    def of(cls, config: ModelConfig, options: EngineOptions, itemsize: int) -> "PagePlan":
        """In the final engine each layer group has its own pages: a block is one page per group. A phase's page holds
        all layers."""
        windows = config.windows if isinstance(options, EngineConfig) else (None,) * config.num_layers
        groups = layer_groups(windows)
        blocks = options.cache_blocks
        count = blocks * len(groups)
        numbers = 2 * len(groups[0].layers) * options.page_size * config.num_kv_heads * config.head_dim
        return cls(
            page_size=options.page_size,
            count=count,
            bytes=(count + 1) * numbers * itemsize,
            positions=blocks * options.page_size,
            full_sequences=blocks // -(-options.limits.context_length // options.page_size),
        )

    def lines(self) -> list[tuple[str, str]]:
        """For MemoryPlan.render."""
        return [
            ("pages", f"{self.count} of {self.page_size} tokens; {self.positions} tokens in all layers"),
            ("holds at once", f"{self.full_sequences} sequences of full length, or more that are shorter"),
        ]


@dataclass(frozen=True)
class MemoryPlan:
    """All sizes in bytes.

    dtype: of weights, then of activations and cache where that differs.
    weight_bytes: weights and constant tables. cache_bytes_per_token: all layers, a window counted as full attention.
    free_bytes: what the device has free now (on a CPU: what the machine has available, or the container's limit).
    sequences_that_fit: of context_length tokens, beside the weights; 0 means that the model does not fit.
    phase_capacity: how many sequences the phase runs at once; None is as many as fit.
    pages: of the paged cache; None in phases without.
    """

    device: str
    dtype: str
    context_length: int
    weight_bytes: int
    cache_bytes_per_token: int
    free_bytes: int
    phase_capacity: int | None
    pages: PagePlan | None = None

    @property
    def cache_bytes_per_sequence(self) -> int:
        return self.cache_bytes_per_token * self.context_length

    @property
    def sequences_that_fit(self) -> int:
        return max(0, int(self.free_bytes * USABLE) - self.weight_bytes) // self.cache_bytes_per_sequence

    @property
    def cache_bytes(self) -> int:
        """What the phase allocates for its cache."""
        if self.pages is not None:
            return self.pages.bytes
        return self.cache_bytes_per_sequence * (self.phase_capacity or self.sequences_that_fit)

    @property
    def fits(self) -> bool:
        """Weights and cache together."""
        return self.sequences_that_fit > 0 and self.weight_bytes + self.cache_bytes <= self.free_bytes * USABLE

    @property
    def sequences(self) -> int:
        """How many full-length sequences run at once: memory's limit, the phase's or the pages', the lowest of them."""
        held = self.sequences_that_fit if self.pages is None else self.pages.full_sequences
        return min(self.sequences_that_fit, self.phase_capacity or self.sequences_that_fit, held)

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self) | {
            "cache_bytes_per_sequence": self.cache_bytes_per_sequence,
            "cache_bytes": self.cache_bytes,
            "sequences_that_fit": self.sequences_that_fit,
            "sequences": self.sequences,
            "fits": self.fits,
        }

    def render(self) -> str:
        """For people: a line a fact, the conclusion last."""
        total = f"{readable(self.weight_bytes + self.cache_bytes)}, which {'fits' if self.fits else 'does NOT fit'}"
        lines = [
            ("device", f"{self.device}, {self.dtype}"),
            ("weights", readable(self.weight_bytes)),
            ("cache per token", readable(self.cache_bytes_per_token)),
            ("cache per sequence", f"{readable(self.cache_bytes_per_sequence)} (context {self.context_length} tokens)"),
            *(self.pages.lines() if self.pages else ()),
            ("cache", readable(self.cache_bytes)),
            ("free now", f"{readable(self.free_bytes)}, of which {USABLE:.0%} is planned with"),
            ("sequences that fit", str(self.sequences_that_fit)),
            ("the phase runs", "as many as fit" if self.phase_capacity is None else f"{self.phase_capacity} at a time"),
            ("weights and cache", total),
        ]
        return "\n".join(f"{name:<20}{value}" for name, value in lines)


def memory_plan(
    config: ModelConfig,
    *,
    device: str = "auto",
    dtype: str = "auto",
    context_length: int | None = None,
    phase_capacity: int | None = None,
    paging: EngineOptions | None = None,
    free_bytes: int | None = None,
) -> MemoryPlan:
    """Plan for a model that is only known by its configuration. The names are those that `LLM` takes.

    phase_capacity: most sequences that the phase runs at once (p00 and p01: 1); None is no limit.
    paging: the options of a phase whose cache is paged; None for the others.
    free_bytes: measured when None. Raises ConfigError for a device, dtype or context that cannot be.
    """
    where = resolve_device(device)
    precision = resolve_precision(dtype, where, config)
    length = resolve_context(context_length, config.context_length)
    return MemoryPlan(
        device=str(where),
        dtype=dtypes(precision),
        context_length=length,
        weight_bytes=weight_bytes(config, precision),
        cache_bytes_per_token=kv_bytes_per_token(config, precision.activations.itemsize),
        free_bytes=free_memory(where) if free_bytes is None else free_bytes,
        phase_capacity=phase_capacity,
        pages=PagePlan.of(config, paging, precision.activations.itemsize) if paging else None,
    )


def weight_bytes(config: ModelConfig, precision: Precision) -> int:
    """Weights and constant tables of a model that is not there."""
    model = create_model(config, dtype=precision.activations, device="meta", linear=precision.linear)
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def dtypes(precision: Precision) -> str:
    """In words: "bfloat16", or "bfloat16 weights, float32 activations"."""
    names = dict.fromkeys(str(kind).removeprefix("torch.") for kind in (precision.weights, precision.activations))
    return " weights, ".join(names) + (" activations" if len(names) > 1 else "")


class OutOfMemory(CapacityError):
    """A device has no memory for what was asked of it. An engine in whose step that happened is of no use any more."""


def ran_out(error: BaseException) -> bool:
    """Whether this is how torch, or Python, says that an allocation failed. (A CPU's allocator raises RuntimeError.)"""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    signs = ("out of memory", "allocate memory", "enough memory", "ALLOC_FAILED", "Storage size calculation")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_host_available(), _container_limit())


def _host_available() -> int:
    """Linux's own estimate of what can be had without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError as error:
        raise ConfigError(
            "free memory is not known here: /proc/meminfo, which tells it on Linux, is missing"
        ) from error
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _container_limit() -> int:
    """What a container may use in all (cgroup version 2, then 1); without a limit, more than any machine has."""
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int((Path("/sys/fs/cgroup") / limit).read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
    return 1 << 62


def readable(size: float) -> str:
    """269.1 MB: decimal units, as model sizes are commonly given."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"
