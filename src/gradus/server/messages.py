"""What crosses between the event loop and the engine: commands one way, reports the other.

All of it reads as plain data (dataclasses of numbers, texts and the engine's own words): no functions, no exceptions.
What a step of hundreds of decodes brings comes in columns (`gradus.engine.outputs`), so that the engine's side makes no
object per token; an engine in another process would send them as they are. No torch here.
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
    """sent: when, so that the time it waits before the engine looks counts. In seconds of `time.monotonic`, which all
    processes of a machine share."""

    request: Request
    sent: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request, or one sample of it, that may have ended already. `reason` becomes its finish_reason."""

    request_id: str
    reason: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the loop after the commands before this one. What still runs is abandoned."""


Command = Submit | Cancel | Stop

# -- from the engine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served, in words and numbers: all that the event loop ever sees of the engine itself.

    engine: the phase's name, or "final"; phase: None for the final engine.
    settings: max_sequences, and how cache and scheduler were built, as far as the engine heeds that.
    """

    model: str
    engine: str
    phase: str | None
    device: str
    dtype: str
    limits: ModelLimits
    settings: dict[str, Any]

    def stats(self) -> dict[str, Any]:
        """For /stats, the limits beside the rest."""
        found = asdict(self)
        limits = found.pop("limits")
        return found | {name: limits[name] for name in ("context_length", "vocab_size")}


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception, as data.

    kind: the class in `gradus.errors` that it belongs to; for a defect of ours its type's name.
    message: for the user, complete; None for a defect, whose details are in the log alone.
    param, limit, got: those of a RequestError.
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
        """The exception that it stands for; None for a defect."""
        if self.message is None:
            return None
        if self.kind == RequestError.__name__:
            return RequestError(self.message, param=self.param, limit=self.limit, got=self.got)
        found: GradusError = getattr(errors, self.kind)(self.message)
        return found


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine is there, and takes commands. metrics: its own, as it begins."""

    info: ModelInfo
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The engine's last message: it could not be loaded."""

    failure: Failure


@dataclass(slots=True)
class Report:
    """What one turn of the loop did: commands obeyed, then one step. Every turn ends with one, the first one too.

    metrics: the engine's, after that step; None where the last ones are new enough. waiting: samples that wait to
    start. outputs: of the step, and of cancellations.
    commands_taken, samples_taken: commands, and samples in them (a request counts its n), taken since the start.
    busy: whether another step follows at once, so that silence from here on is a step that takes long.
    step_s: the step's duration in seconds; 0 where there was nothing to do.
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
    """The idle engine has checked its invariants. Not `passed` is a defect of ours: the log has it."""

    passed: bool


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine's last message: a step raised. Its state is unknown, so the loop has ended."""

    failure: Failure


Message = Loaded | LoadFailed | Report | SelfChecked | EngineFailed
