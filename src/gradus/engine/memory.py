"""What a model will need, before a byte of it is loaded: weights, cache, and how many sequences fit beside them.

The weights are counted on a model that is built without memory (torch's "meta" device), so the count follows whatever
the model and the precision really allocate. The cache is arithmetic:

    bytes a token = 2 (key, value) x layers x key-value heads x head dimension x bytes a number
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gradus.engine.options import resolve_context
from gradus.errors import ConfigError
from gradus.models.config import ModelConfig, kv_bytes_per_token
from gradus.models.create import create_model
from gradus.models.precision import resolve_device, resolve_precision

# Of the free memory, what weights and cache may take. The rest is for activations, logits and the allocator's gaps.
USABLE = 0.9


@dataclass(frozen=True)
class MemoryPlan:
    """All sizes in bytes.

    dtype: of weights, then of activations and cache where that differs.
    weight_bytes: weights and constant tables. cache_bytes_per_token: all layers, a window counted as full attention.
    free_bytes: what the device has free now (on a CPU: what the machine has available, or the container's limit).
    sequences_that_fit: of context_length tokens, beside the weights; 0 means that the model does not fit.
    phase_capacity: how many sequences the phase runs at once; None is as many as fit.
    """

    device: str
    dtype: str
    context_length: int
    weight_bytes: int
    cache_bytes_per_token: int
    free_bytes: int
    phase_capacity: int | None

    @property
    def cache_bytes_per_sequence(self) -> int:
        return self.cache_bytes_per_token * self.context_length

    @property
    def sequences_that_fit(self) -> int:
        room = int(self.free_bytes * USABLE) - self.weight_bytes
        return max(0, room // self.cache_bytes_per_sequence)

    @property
    def sequences(self) -> int:
        """How many full-length sequences run at once: memory's limit or the phase's, whichever is lower."""
        return min(self.sequences_that_fit, self.phase_capacity or self.sequences_that_fit)

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self) | {
            "cache_bytes_per_sequence": self.cache_bytes_per_sequence,
            "sequences_that_fit": self.sequences_that_fit,
            "sequences": self.sequences,
        }

    def render(self) -> str:
        """For people: a line a fact, the conclusion last."""
        lines = [
            ("device", f"{self.device}, {self.dtype}"),
            ("weights", readable(self.weight_bytes)),
            ("cache per token", readable(self.cache_bytes_per_token)),
            ("cache per sequence", f"{readable(self.cache_bytes_per_sequence)} (context {self.context_length} tokens)"),
            ("free now", f"{readable(self.free_bytes)}, of which {USABLE:.0%} is planned with"),
            ("sequences that fit", str(self.sequences_that_fit)),
            ("the phase runs", "as many as fit" if self.phase_capacity is None else f"{self.phase_capacity} at a time"),
        ]
        return "\n".join(f"{name:<20}{value}" for name, value in lines)


def memory_plan(
    config: ModelConfig,
    *,
    device: str = "auto",
    dtype: str = "auto",
    context_length: int | None = None,
    phase_capacity: int | None = None,
    free_bytes: int | None = None,
) -> MemoryPlan:
    """Plan for a model that is only known by its configuration. The names are those that `LLM` takes.

    phase_capacity: most sequences that the phase runs at once (p00 and p01: 1); None is no limit.
    free_bytes: measured when None. Raises ConfigError for a device, dtype or context that cannot be.
    """
    where = resolve_device(device)
    precision = resolve_precision(dtype, where, config)
    length = resolve_context(context_length, config.context_length)
    model = create_model(config, dtype=precision.activations, device="meta", linear=precision.linear)
    names = dict.fromkeys(str(kind).removeprefix("torch.") for kind in (precision.weights, precision.activations))
    return MemoryPlan(
        device=str(where),
        dtype=" weights, ".join(names) + (" activations" if len(names) > 1 else ""),
        context_length=length,
        weight_bytes=sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
        cache_bytes_per_token=kv_bytes_per_token(config, precision.activations.itemsize),
        free_bytes=free_memory(where) if free_bytes is None else free_bytes,
        phase_capacity=phase_capacity,
    )


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
