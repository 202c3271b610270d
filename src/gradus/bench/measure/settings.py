"""The request to `gradus bench`, and the display of its progress."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from gradus.bench.declare.declaration import PEERS, is_peer
from gradus.bench.measure.fingerprint import commit
from gradus.bench.workloads import SEED
from gradus.errors import ConfigError
from gradus.models.precision import Precision
from gradus.quantization.schemes import AS_STORED


class Watcher(Protocol):
    """Shows progress: as bars, as lines, or not at all."""

    def cell(self, title: str, runs: int) -> None: ...
    def run_done(self) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Settings:
    """The options of `gradus bench`. tables, contenders: only these; () means all. quantize: as in `LLM`.
    impl: a student's folder or file; its phases run in addition to ours.

    Raises ConfigError for fewer than one repeat, and for options that exclude each other.
    """

    model: str
    device: str
    dtype: str
    repeats: int | None = None
    quick: bool = False
    peers: bool = True
    resume: bool = False
    commit: str | None = None
    tables: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()
    quantize: str | None = None
    impl: Path | None = None

    def __post_init__(self) -> None:
        if self.impl is not None and self.resume:
            raise ConfigError("--resume keeps what an earlier version of your files measured: leave it or --impl out")
        if self.repeats is not None and self.repeats < 1:
            raise ConfigError(f"repeats must be 1 or more, got {self.repeats}")
        if self.quantize and any(is_peer(name) for name in self.contenders):
            raise ConfigError(f"{', '.join(PEERS)} run no matrices that are quantized here: leave them or quantize out")

    def of_run(self) -> dict[str, Any]:
        """The settings that every run records first."""
        return {
            "commit": self.commit or commit(),
            "seed": SEED,
            "quick": self.quick,
            "threads": torch.get_num_threads(),
            "float32 products": torch.get_float32_matmul_precision(),
        }

    def of_quantized(self, precision: Precision) -> dict[str, Any]:
        """The run's settings for quantized matrices; {} without any."""
        if precision.scheme is None:
            return {}
        return {"quantize": self.quantize or AS_STORED, "scheme": precision.scheme, "dtype": self.dtype}
