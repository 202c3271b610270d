"""A model on a device, and every contender for it: the phases, and the installed peers."""

import gc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from gradus import garbage, phases
from gradus.assembly.final import build as build_final
from gradus.bench.contenders.transformers import Transformers
from gradus.bench.declare.declaration import LLAMA_CPP, PEERS, quantized, switched
from gradus.bench.measure.drive import Contender, ContenderFailed, Run, drive
from gradus.bench.measure.memory import MemoryWatch, allocated, model_bytes, release
from gradus.bench.predict.roofline import Widths, streamed_parameters
from gradus.bench.workloads import Arrival
from gradus.config.options import FINAL, EngineConfig, KvDtype
from gradus.config.settings import Settings, heeded
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.execution.memory.device_memory import free_memory
from gradus.exercises.solution import Solution
from gradus.loading import Checkpoint, Progress, as_asked, load_model, open_checkpoint
from gradus.models import Model, create_model, kv_bytes_per_token, parameter_count
from gradus.models.precision import Precision, resolve_device
from gradus.quantization.mix import Mix
from gradus.quantization.precision import quantized_as, resolve

if TYPE_CHECKING:  # needs a package that only the peer's weights need
    from gradus.bench.contenders.gguf_files import GGUFFiles


@dataclass
class Workbench:
    """One model, loaded once. The phases share its weights, as they share its code.

    schemes: the same model with its matrices quantized, loaded when a contender first asks for one.
    solutions: a student's phases, by contender.
    """

    checkpoint: Checkpoint
    device: torch.device
    precision: Precision
    model: Model
    schemes: "dict[str, Workbench]" = field(default_factory=dict)
    solutions: dict[str, Solution] = field(default_factory=dict)

    @classmethod
    def open(
        cls, model: str, device: str, dtype: str, progress: Progress | None = None, quantize: str | None = None
    ) -> "Workbench":
        """Load a model. quantize: a scheme or a YAML file for all contenders, which then have no scheme of their own.

        Raises ConfigError or CheckpointError in one line.
        """
        checkpoint = as_asked(open_checkpoint(model, progress=progress), quantize)
        where = resolve_device(device)
        precision = resolve(dtype, quantize, where, checkpoint.config, checkpoint.quantized)
        loaded = load_model(
            checkpoint, dtype=precision.activations, device=where, linear=precision.linear, progress=progress
        )
        return cls(checkpoint, where, precision, loaded)

    def of(self, contender: str) -> "Workbench":
        """The workbench with the model in the contender's scheme. Raises ConfigError for an impossible scheme."""
        _, scheme = quantized(contender)
        if scheme is None:
            return self
        if scheme not in self.schemes:
            precision = self._quantized(scheme)
            model = load_model(
                self.checkpoint, dtype=precision.activations, device=self.device, linear=precision.linear
            )
            self.schemes[scheme] = Workbench(self.checkpoint, self.device, precision, model)
        return self.schemes[scheme]

    def bytes_to_load(self, contender: str) -> int:
        """Approximate bytes of weights still to be loaded; 0 for an impossible scheme, which `of` reports."""
        _, scheme = quantized(contender)
        if scheme is None or scheme in self.schemes:
            return 0
        with suppress(ConfigError):
            return int(self.widths(contender).weight * parameter_count(self.model.config))
        return 0

    def _quantized(self, scheme: str) -> Precision:
        if self.quantized:
            raise ConfigError(f"{scheme}: this run's matrices are quantized already ({self.precision.scheme})")
        return quantized_as(Mix.of(scheme), self.precision, self.device, self.model.config)

    @cached_property
    def gguf(self) -> "GGUFFiles":
        from gradus.bench.contenders.gguf_files import GGUFFiles

        return GGUFFiles(self.checkpoint, self.model)

    @property
    def dtype(self) -> str:
        return self.precision.name

    @property
    def weights_dtype(self) -> torch.dtype:
        return self.precision.weights

    @property
    def quantized(self) -> bool:
        return self.precision.scheme is not None

    def widths(self, contender: str) -> Widths:
        """Bytes per weight and per key or value. Quantized weights: the average over a step's reads, scales included.

        Raises ConfigError for an impossible scheme, ContenderFailed for one that a peer lacks.
        """
        name, scheme = quantized(contender)
        config, model = self.model.config, self.model
        if name == LLAMA_CPP:
            from gradus.bench.contenders.gguf_files import widths

            return widths(config, scheme)
        if scheme is not None:
            model = create_model(config, dtype=model.dtype, device="meta", linear=self._quantized(scheme).linear)
        elif not self.quantized:
            return Widths(self.weights_dtype.itemsize, model.dtype.itemsize)
        return Widths(streamed_bytes(model) / streamed_parameters(config), model.dtype.itemsize)

    @property
    def weight_bytes(self) -> int:
        return model_bytes(self.model)

    def contender(self, name: str, room: "Room") -> Contender:
        """Make a contender. name: a phase, a peer, or the final engine, with or without switches off; also a scheme."""
        if quantized(name)[0] == LLAMA_CPP:
            from gradus.bench.contenders.llama_cpp import LlamaCpp

            return LlamaCpp(name, self.gguf, room.context, room.batch)
        if name in PEERS:
            return Transformers(name, self.checkpoint, self.model, room.batch)
        return EngineContender(name, self, room)

    def engine(self, contender: str, room: "Room") -> Engine:
        """Build the contender's engine with exactly this room, and without the optimizations its name switches off."""
        engine, off = switched(contender)
        room, model = room.of(contender), self.of(contender).model
        limits = ModelLimits(model.config.vocab_size, min(room.context + 1, model.config.context_length))
        if engine == FINAL:
            switches: dict[str, Any] = dict.fromkeys(off, False)
            config = EngineConfig(
                limits, room.batch, cache_tokens=room.cache_tokens, token_budget=room.token_budget,
                kv_dtype=room.kv_dtype, **switches,
            )  # fmt: skip
            return build_final(model, config)
        given = {"cache_tokens": room.cache_tokens, "token_budget": room.token_budget}
        used = {name: value for name, value in given.items() if name in heeded(engine)}
        settings = Settings.of({"phase": engine, "max_sequences": room.batch, **used})
        phase = self.solutions.get(contender) or phases.load(engine)
        return phase.build(model, settings.options(limits, self.device.type))

    @property
    def bytes_a_position(self) -> int:
        return kv_bytes_per_token(self.model.config, self.model.dtype.itemsize)

    def free_bytes(self) -> int:
        """Bytes for all contenders together; the rest is for activations, logits and fragmentation."""
        return int(0.8 * free_memory(self.device))


@dataclass(frozen=True, slots=True)
class Room:
    """The size that a contender is built for: up to `batch` sequences of `context` tokens.

    cache_tokens: cache positions; None means `batch` times `context`. token_budget: most tokens per step, if prompts
    are cut; None leaves it to the phase. kv_dtype: the type of the final engine's keys and values.
    """

    context: int
    batch: int
    cache_tokens: int | None = None
    token_budget: int | None = None
    kv_dtype: KvDtype = "auto"

    @property
    def positions(self) -> int:
        return self.cache_tokens or self.batch * self.context

    def of(self, contender: str) -> "Room":
        """The room for this contender: without pages it reserves a whole context per sequence, and runs as many as fit.

        Raises ContenderFailed if not even one fits.
        """
        engine, _ = switched(contender)
        if self.cache_tokens is None or engine == FINAL or "cache_tokens" in heeded(engine):
            return self
        if self.cache_tokens < self.context:
            raise ContenderFailed(f"{self.cache_tokens} positions hold no sequence of {self.context}")
        return replace(self, batch=min(self.batch, self.cache_tokens // self.context))


class EngineContender:
    """One of our engines, driven directly: token ids in and out, without text or a server."""

    def __init__(self, name: str, bench: Workbench, room: Room) -> None:
        self.name = name
        self.bench, self.room = bench, room
        self.needed_bytes = room.positions * bench.bytes_a_position + bench.bytes_to_load(name)
        self.about = ""
        self.engine: Engine | None = None

    def build(self) -> None:
        weights = self.bench.of(self.name)
        before = allocated(self.bench.device)
        self.engine = self.bench.engine(self.name, self.room)
        self.weight_bytes = weights.weight_bytes
        if weights is not self.bench:
            self.about = f"{weights.precision.title} of {self.weight_bytes / 1e6:.0f} MB"
        self.own_bytes = allocated(self.bench.device) - before
        garbage.spare_what_stays(self.engine)  # as `LLM` does

    def run(self, arrivals: Sequence[Arrival], *, watch_memory: bool = False) -> Run:
        assert self.engine is not None, "built before it runs"
        device = self.bench.device
        forget_prefixes(self.engine)  # every run finds the cache empty, as the first one does
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
            before = allocated(device)
        watch = MemoryWatch(self.engine, self.bench.bytes_a_position, tensors=not cuda)
        run = drive(self.engine, arrivals, device, **({"after_step": watch.look} if watch_memory else {}))
        run.cache_bytes, run.cache_waste = watch.cache_bytes, watch.cache_waste
        if cuda:
            run.peak_bytes = self.weight_bytes + self.own_bytes + torch.cuda.max_memory_allocated(device) - before
        elif watch_memory:
            run.peak_bytes = self.weight_bytes + watch.tensor_bytes
        return run

    def close(self) -> None:
        self.engine = None
        gc.unfreeze()  # otherwise this engine's memory would never be freed
        release(self.bench.device)


def streamed_bytes(model: Model) -> int:
    """Bytes of weights that a step reads: all but the tables that are looked up by row."""
    return sum(tensor.nbytes for part in (model.layers, model.norm, model.head) for tensor in part.parameters())


def forget_prefixes(engine: Engine) -> None:
    """Drop all that a prefix cache keeps of finished requests."""
    forget = getattr(engine.scheduler.cache, "forget", None)
    if forget is not None:
        forget()
