"""A model on a device, and every contender that can be had for it: the phases, and the peers that are installed."""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradus import phases
from gradus.bench.declaration import PEERS
from gradus.bench.measure import Contender, Run, drive, synchronize
from gradus.bench.roofline import Widths
from gradus.bench.workloads import Arrival
from gradus.engine.engine import Engine
from gradus.engine.memory import free_memory
from gradus.engine.options import EngineOptions
from gradus.engine.request import ModelLimits
from gradus.loading import Checkpoint, Progress, load_model, open_checkpoint
from gradus.models import Model, kv_bytes_per_token
from gradus.models.precision import Precision, resolve_device, resolve_precision


@dataclass
class Workbench:
    """One model, loaded once; the phases share its weights, as they share its code."""

    checkpoint: Checkpoint
    device: torch.device
    precision: Precision
    model: Model

    @classmethod
    def open(cls, model: str, device: str, dtype: str, progress: Progress | None = None) -> "Workbench":
        """Raises ConfigError or CheckpointError in one line."""
        checkpoint = open_checkpoint(model, progress=progress)
        where = resolve_device(device)
        precision = resolve_precision(dtype, where, checkpoint.config)
        loaded = load_model(
            checkpoint, dtype=precision.activations, device=where, linear=precision.linear, progress=progress
        )
        return cls(checkpoint, where, precision, loaded)

    @property
    def dtype(self) -> str:
        """For people and files: "bfloat16", or "bfloat16 weights, float32" where activations are wider."""
        weights, activations = (str(kind).removeprefix("torch.") for kind in (self.weights_dtype, self.model.dtype))
        return weights if weights == activations else f"{weights} weights, {activations}"

    @property
    def weights_dtype(self) -> torch.dtype:
        return self.precision.weights

    @property
    def widths(self) -> Widths:
        return Widths(self.weights_dtype.itemsize, self.model.dtype.itemsize)

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.model.parameters(), *self.model.buffers()))

    def contender(self, name: str, context_length: int, batch: int) -> Contender:
        """name: a phase or a peer. context_length, batch: the longest sequence, and the most at once, of the cell."""
        if name in PEERS:
            from gradus.bench.peers import Transformers

            return Transformers(name, self, batch)
        return PhaseContender(name, self, context_length, batch)

    def engine(self, phase: str, context_length: int, batch: int) -> Engine:
        """The phase's engine with room for exactly what is asked of it."""
        limits = ModelLimits(self.model.config.vocab_size, min(context_length + 1, self.model.config.context_length))
        return phases.load(phase).build(self.model, EngineOptions(limits, max_sequences=batch))

    def cache_bytes(self, context_length: int, batch: int) -> int:
        return kv_bytes_per_token(self.model.config, self.model.dtype.itemsize) * context_length * batch

    def free_bytes(self) -> int:
        """What contenders may take together: the rest is for activations, logits and fragments."""
        return int(0.8 * free_memory(self.device))


class PhaseContender:
    """A phase's engine, driven directly: token ids in, token ids out, no text and no server between."""

    def __init__(self, name: str, bench: Workbench, context_length: int, batch: int) -> None:
        self.name = name
        self.bench, self.context_length, self.batch = bench, context_length, batch
        self.needed_bytes = bench.cache_bytes(context_length, batch)
        self.engine: Engine | None = None

    def build(self) -> None:
        before = allocated(self.bench.device)
        self.engine = self.bench.engine(self.name, self.context_length, self.batch)
        self.own_bytes = allocated(self.bench.device) - before

    def run(self, arrivals: Sequence[Arrival], *, watch_memory: bool = False) -> Run:
        assert self.engine is not None, "built before it runs"
        device = self.bench.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = allocated(device)
            run = drive(self.engine, arrivals, device)
            run.peak_bytes = self.bench.weight_bytes + self.own_bytes + torch.cuda.max_memory_allocated(device) - before
            return run
        # A CPU keeps no account of what is allocated: count the tensors that live from step to step.
        kept = _Most(getattr(self.engine.runner, "attention", None))
        run = drive(self.engine, arrivals, device, **({"after_step": kept.look} if watch_memory else {}))
        run.peak_bytes = self.bench.weight_bytes + kept.bytes if watch_memory else None
        return run

    def close(self) -> None:
        self.engine = None
        release(self.bench.device)


class _Most:
    """The most memory that an object's tensors held, of all the times when it was looked at."""

    def __init__(self, owner: object) -> None:
        self.owner, self.bytes = owner, 0

    def look(self) -> None:
        self.bytes = max(self.bytes, tensor_bytes(self.owner))


def allocated(device: torch.device) -> int:
    """Bytes that tensors hold on a GPU now; 0 on a CPU, where nobody counts."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def release(device: torch.device) -> None:
    """Let go of what nobody holds any more, so that the next contender finds the memory as this one did."""
    gc.collect()
    if device.type == "cuda":
        synchronize(device)
        torch.cuda.empty_cache()


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
