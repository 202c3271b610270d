"""Measure a contender's memory, and release it afterwards.

A GPU's allocator counts bytes; a CPU's does not, so there the tensors are added up.
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
    """The largest memory use over all observations.

    tensor_bytes: tensors that live from step to step. (On a CPU, nothing counts temporary ones.)
    cache_bytes: the cache that sequences held. cache_waste: percent of it that stored nothing, over all observations.
    """

    def __init__(self, engine: Engine, bytes_a_position: int, *, tensors: bool) -> None:
        self.cache, self.bytes_a_position = engine.scheduler.cache, bytes_a_position
        self.attention = getattr(engine.runner, "attention", None) if tensors else None
        self.tensor_bytes = 0
        self._most_held = self._held = self._stored = 0  # positions; the last two summed over all observations

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
    """Cache positions that sequences hold, and the used ones among them; (0, 0) without a cache.

    A sequence holds a whole slot, or just the pages that it needed.
    """
    if hasattr(cache, "usage"):
        usage = cache.usage()
        groups = len(getattr(cache, "windows", (None,)))  # a position takes a page of each layer group
        return usage.held * usage.page_size // groups, usage.stored_positions
    lengths = getattr(cache, "lengths", {})
    return len(lengths) * getattr(cache, "capacity", 0), sum(lengths.values())


def allocated(device: torch.device) -> int:
    """Bytes allocated on a GPU; 0 on a CPU, where nothing counts them."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def release(device: torch.device) -> None:
    """Free unused memory, so that the next contender starts with as much as this one did."""
    gc.collect()
    if device.type == "cuda":
        synchronize(device)
        torch.cuda.empty_cache()


def model_bytes(model: Model) -> int:
    """Its weights and constant tables."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def tensor_bytes(owner: Any) -> int:
    """Bytes of all tensors in an object's attributes, lists, tuples and dicts, each storage counted once."""
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
