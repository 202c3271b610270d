"""What a user asks `gradus bench` for, and where its progress is shown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gradus.bench.declare.declaration import PEERS, is_peer
from gradus.errors import ConfigError
from gradus.models.precision import Precision
from gradus.quantization.schemes import AS_STORED


class Watcher(Protocol):
    """Where progress is shown: as bars, or not at all."""

    def cell(self, title: str, runs: int) -> None: ...
    def run_done(self) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Settings:
    """What `gradus bench` was asked for. tables: only these; contenders: only these (None: all). quantize: as in `LLM`.
    impl: a student's folder or file, whose phases run beside ours.

    Raises ConfigError for fewer repeats than one.
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

    def of_quantized(self, precision: Precision) -> dict[str, Any]:
        """What a run's settings say of quantized matrices; nothing where none is."""
        if precision.scheme is None:
            return {}
        return {"quantize": self.quantize or AS_STORED, "scheme": precision.scheme, "dtype": self.dtype}
