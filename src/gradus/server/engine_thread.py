"""The one thread that owns the engine. Nothing else ever calls it, so the engine needs no lock.

    event loop ── commands ──▶ engine thread      a queue: the thread sleeps on it when idle, and between two steps
                                                  takes whatever has come meanwhile
    event loop ◀── reports ─── engine thread      one call_soon_threadsafe a step, however many requests it advanced

A thread, not a process, because a step spends its time in kernels that release Python's lock. What separates the two
sides is only messages, so a process can take the thread's place later.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from gradus.config.options import FINAL
from gradus.engine.engine import Metrics
from gradus.engine.request import SamplingParams, SchedulingParams
from gradus.errors import GradusError
from gradus.text.completion import Delta

log = logging.getLogger(__name__)

SELF_CHECK_INTERVAL_S = 1.0

Prompt = str | Sequence[int]


class SteppedEngine(Protocol):
    """What the thread needs of an `LLM`."""

    def submit(
        self, prompt: Prompt, params: SamplingParams, *, scheduling: SchedulingParams, request_id: str
    ) -> str: ...

    def step(self) -> list[Delta]: ...

    def cancel(self, request_id: str, reason: str = "cancelled") -> list[Delta]: ...

    @property
    def has_work(self) -> bool: ...

    def metrics(self) -> Metrics: ...

    def check(self) -> None: ...


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
    context_length: int
    vocab_size: int
    settings: dict[str, Any]

    @classmethod
    def of(cls, engine: Any) -> "ModelInfo":
        weights, activations = (
            str(dtype).removeprefix("torch.") for dtype in (engine.precision.weights, engine.precision.activations)
        )
        return cls(
            model=engine.checkpoint.name,
            engine=engine.phase or FINAL,
            phase=engine.phase,
            device=str(engine.device),
            dtype=weights if weights == activations else f"{weights} weights, {activations} activations",
            context_length=engine.limits.context_length,
            vocab_size=engine.limits.vocab_size,
            settings=engine.settings,
        )


@dataclass(frozen=True, slots=True)
class Submit:
    """sent: when, so that the time it waits here counts (time.monotonic)."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    scheduling: SchedulingParams
    sent: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request that may have ended already. `reason` becomes its finish_reason."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the loop after the commands before this one. What still runs is abandoned."""


@dataclass(slots=True)
class Report:
    """What one turn of the loop did: commands obeyed, then one step.

    metrics: the engine's, after that step.
    samples_taken: how many samples (a request counts its n) have come out of the thread's own queue since the start.
    step_s: the step's duration in seconds; 0 where there was nothing to do.
    """

    metrics: Metrics = field(default_factory=Metrics)
    samples_taken: int = 0
    step_s: float = 0.0
    accepted: list[str] = field(default_factory=list)
    refused: list[tuple[str, Exception]] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)


class Listener(Protocol):
    """The event loop's side. Each method is called there."""

    def on_loaded(self, info: ModelInfo) -> None: ...

    def on_load_failed(self, error: BaseException) -> None: ...

    def on_report(self, report: Report) -> None: ...

    def on_self_check(self, passed: bool) -> None: ...

    def on_engine_failed(self, error: BaseException) -> None:
        """A step raised. The engine's state is unknown, so the thread has ended."""


class EngineThread(threading.Thread):
    """Loads an engine and runs it until told to stop. `step_started`: when the current step began; None between."""

    def __init__(self, load: Callable[[], SteppedEngine], listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="engine", daemon=True)
        self.step_started: float | None = None
        self._load = load
        self._listener = listener
        self._loop = loop
        self._commands: queue.SimpleQueue[Submit | Cancel | Stop] = queue.SimpleQueue()
        self._samples_taken = 0
        self._unchecked = False  # something has happened since the last self-check
        self._next_check = 0.0

    def send(self, command: Submit | Cancel | Stop) -> None:
        """Called from the event loop. Wakes the thread at once if it sleeps."""
        self._commands.put(command)

    def run(self) -> None:
        try:
            engine = self._load()
            info = ModelInfo.of(engine)
        except BaseException as error:  # a defect, a mistake of the user's, even exit(): it is the loader's last word
            self._tell(self._listener.on_load_failed, error)
            return
        self._tell(self._listener.on_loaded, info)
        try:
            self._report(engine, Report())
            while self._turn(engine):
                pass
        except BaseException as error:
            log.exception("the engine failed")
            self._tell(self._listener.on_engine_failed, error)

    def _turn(self, engine: SteppedEngine) -> bool:
        """Obey what has come, then take one step. False when told to stop."""
        report = Report()
        for command in self._take(engine):
            if isinstance(command, Stop):
                return False
            self._obey(command, engine, report)
        if engine.has_work:
            self.step_started = started = time.monotonic()
            report.deltas += engine.step()
            self.step_started = None
            report.step_s = time.monotonic() - started
        self._report(engine, report)
        return True

    def _report(self, engine: SteppedEngine, report: Report) -> None:
        report.metrics = engine.metrics()
        report.samples_taken = self._samples_taken
        self._tell(self._listener.on_report, report)

    def _take(self, engine: SteppedEngine) -> list[Submit | Cancel | Stop]:
        """All commands there are; at least one where the engine has nothing to do.

        Their number is bounded, because waiting samples are.
        """
        commands = [] if engine.has_work else [self._sleep(engine)]
        while not self._commands.empty():
            commands.append(self._commands.get())
        self._unchecked = True
        return commands

    def _sleep(self, engine: SteppedEngine) -> Submit | Cancel | Stop:
        """Wait for the next command. On the way there the books are checked once, at most every second."""
        if self._unchecked:
            try:
                return self._commands.get(timeout=max(0.0, self._next_check - time.monotonic()))
            except queue.Empty:
                self._check(engine)
        return self._commands.get()

    def _check(self, engine: SteppedEngine) -> None:
        """A failure is reported and counted. What it broke may be harmless, so it is no reason to stop serving."""
        try:
            engine.check()
        except Exception:
            log.exception("self-check failed: the books of queue and cache do not balance")
            self._tell(self._listener.on_self_check, False)
        else:
            self._tell(self._listener.on_self_check, True)
        self._unchecked = False
        self._next_check = time.monotonic() + SELF_CHECK_INTERVAL_S

    def _obey(self, command: Submit | Cancel, engine: SteppedEngine, report: Report) -> None:
        if isinstance(command, Cancel):
            report.deltas += engine.cancel(command.request_id, command.reason)
            return
        self._samples_taken += command.params.n
        scheduling = shortened(command.scheduling, time.monotonic() - command.sent)
        try:
            engine.submit(command.prompt, command.params, scheduling=scheduling, request_id=command.request_id)
        except Exception as error:
            # GradusErrors are the caller's affair. Anything else is our defect, and still only this request's problem.
            if not isinstance(error, GradusError):
                log.exception("request %s could not be submitted", command.request_id)
            report.refused.append((command.request_id, error))
        else:
            report.accepted.append(command.request_id)

    def _tell(self, method: Callable[[Any], None], what: object) -> None:
        try:
            self._loop.call_soon_threadsafe(method, what)
        except RuntimeError:  # the event loop is closed: nobody is left to hear it
            self.send(Stop())


def shortened(scheduling: SchedulingParams, waited: float) -> SchedulingParams:
    """What is left of a request's times after it has waited for the thread, which may have been inside a long step."""

    def left(seconds: float | None) -> float | None:
        return None if seconds is None else max(seconds - waited, 1e-6)

    return replace(scheduling, timeout=left(scheduling.timeout), deadline=left(scheduling.deadline))
