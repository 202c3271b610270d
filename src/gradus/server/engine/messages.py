"""The messages between the event loop and the engine: commands one way, reports the other.

All of them are plain data (dataclasses of numbers, texts and the engine's own types): no functions, no exceptions.
The outputs of a step of hundreds of decodes come in columns (`gradus.engine.outputs`), so that the engine's side makes
no object per token; an engine in another process could send the columns unchanged. No torch here.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gradus import errors
from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request
from gradus.engine.sequence import Output
from gradus.errors import GradusError, RequestError

# -- to the engine -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """Run a request. sent: the time of sending, so that waiting for the engine counts towards its limits. In seconds of
    `time.monotonic`, which all processes of a machine share."""

    request: Request
    sent: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request, or one sample of it, which may have ended already. `reason` becomes its finish_reason."""

    request_id: str
    reason: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the loop after the commands before this one. Running requests are abandoned."""


Command = Submit | Cancel | Stop

# -- from the engine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A description of the engine, in words and numbers: all that the event loop ever sees of it.

    engine: the phase's name, or "final"; phase: None for the final engine.
    settings: max_sequences, and the settings of cache and scheduler that the engine uses.
    default_sampling: the values that the model's files recommend for sampling fields that a request leaves out.
    """

    model: str
    engine: str
    phase: str | None
    device: str
    dtype: str
    limits: ModelLimits
    settings: dict[str, Any]
    default_sampling: dict[str, float] = field(default_factory=dict)

    def stats(self) -> dict[str, Any]:
        """For /stats, with the limits merged into the other fields."""
        found = asdict(self)
        limits = found.pop("limits")
        return found | {name: limits[name] for name in ("context_length", "vocab_size")}


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception, as data.

    kind: its class in `gradus.errors`; for a bug of ours its type's name.
    message: complete, for the user; None for a bug, whose details are only in the log.
    param, limit, got: the fields of a RequestError.
    """

    kind: str
    message: str | None = None
    param: str = ""
    limit: str = ""
    got: Any = None

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        if not isinstance(error, GradusError):
            return cls(type(error).__name__)
        kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ == errors.__name__)
        if isinstance(error, RequestError):
            return cls(kind, str(error), error.param, error.limit, error.got)
        return cls(kind, str(error))

    def error(self) -> GradusError | None:
        """Make the exception again; None for a bug."""
        if self.message is None:
            return None
        if self.kind == RequestError.__name__:
            return RequestError(self.message, param=self.param, limit=self.limit, got=self.got)
        found: GradusError = getattr(errors, self.kind)(self.message)
        return found


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine is loaded and takes commands. metrics: its initial ones."""

    info: ModelInfo
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The engine could not be loaded. This is its last message."""

    failure: Failure


@dataclass(slots=True)
class Report:
    """The result of one turn of the loop, which obeys commands and then takes one step. Every turn ends with a report.

    metrics: the engine's, after that step; None if the last ones are recent enough. waiting: samples that wait to
    start. outputs: of the step, and of cancellations.
    commands_taken, samples_taken: commands taken since the start, and samples in them (a request counts n times).
    busy: whether another step follows at once, so that silence from now on means a long step.
    step_s: the step's duration in seconds; 0 if there was nothing to do.
    """

    metrics: Metrics | None = None
    waiting: int = 0
    commands_taken: int = 0
    samples_taken: int = 0
    busy: bool = False
    step_s: float = 0.0
    accepted: list[str] = field(default_factory=list)
    refused: list[tuple[str, Failure]] = field(default_factory=list)
    outputs: Sequence[Output] = ()


@dataclass(frozen=True, slots=True)
class SelfChecked:
    """The idle engine has checked its invariants. If not `passed`, there is a bug of ours, described in the log."""

    passed: bool


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """A step raised an exception. The engine's state is unknown, so the loop has ended; this is its last message."""

    failure: Failure


Message = Loaded | LoadFailed | Report | SelfChecked | EngineFailed
