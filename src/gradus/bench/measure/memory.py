"""How much memory a contender takes, and that it is let go of afterwards.

A GPU's allocator counts; a CPU's does not, so there the tensors are gone through.
"""

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradus.bench.measure.drive import synchronize
from gradus.cache import CacheManager
from gradus.engine.engine import Engine
from gradus.models import Model


class MemoryWatch:
    """The most memory that was in use, of all the times when it was looked at.

    tensor_bytes: of the tensors that live from step to step. (A CPU keeps no account of what is allocated.)
    cache_bytes: what sequences held of the cache. cache_waste: percent of it that stored nothing, over all looks.
    """

    def __init__(self, engine: Engine, bytes_a_position: int, *, tensors: bool) -> None:
        self.cache, self.bytes_a_position = engine.scheduler.cache, bytes_a_position
        self.attention = getattr(engine.runner, "attention", None) if tensors else None
        self.tensor_bytes = 0
        self._most_held = self._held = self._stored = 0  # positions; the last two summed over all looks

    def look(self) -> None:
        self.tensor_bytes = max(self.tensor_bytes, tensor_bytes(self.attention))
        held, stored = positions_held(self.cache)
        self._most_held = max(self._most_held, held)
        self._held += held
        self._stored += stored

    @property
    def cache_bytes(self) -> int | None:
        return self._most_held * self.bytes_a_position or None

    @property
    def cache_waste(self) -> float | None:
        return 100 * (1 - self._stored / self._held) if self._held else None


def positions_held(cache: CacheManager) -> tuple[int, int]:
    """How many positions sequences hold of a cache, and how many of those store something; (0, 0) without a cache.

    A slot is held whole by the sequence in it; of pages only those that a sequence needed.
    """
    if hasattr(cache, "usage"):
        usage = cache.usage()
        groups = len(getattr(cache, "windows", (None,)))  # a position takes a page of each layer group
        return usage.held * usage.page_size // groups, usage.stored_positions
    lengths = getattr(cache, "lengths", {})
    return len(lengths) * getattr(cache, "capacity", 0), sum(lengths.values())


def allocated(device: torch.device) -> int:
    """Bytes that tensors hold on a GPU now; 0 on a CPU, where they are not counted."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def release(device: torch.device) -> None:
    """Let go of what is no longer used, so that the next contender finds the memory as this one did."""
    gc.collect()
    if device.type == "cuda":
        synchronize(device)
        torch.cuda.empty_cache()


def model_bytes(model: Model) -> int:
    """Its weights and constant tables."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def tensor_bytes(owner: Any) -> int:
    """Memory of all tensors that an object holds, in its attributes, lists, tuples and dicts; each storage once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors(owner, 4)}
    return sum(storages.values())


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        own = vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, type) else ()
        for item in (*inner, *own):
            yield from _tensors(item, depth - 1)
