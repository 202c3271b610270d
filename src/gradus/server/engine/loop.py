"""The loop that owns the engine: take commands, step, report. Nothing else calls the engine, so it has no lock.

    front end ── commands ──▶ engine loop         a queue: the loop sleeps on it when idle, and empties it between
                                                  two steps
    front end ◀── messages ── engine loop         one report per step, whatever the number of requests

Only token ids pass through here. Text belongs to the other side: encoding and decoding never delay a step.
"""

import importlib
import logging
import queue
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from gradus.engine.core import Core
from gradus.engine.request import Request
from gradus.errors import GradusError
from gradus.server.config import ServerConfig
from gradus.server.engine.messages import (
    Cancel,
    Command,
    EngineFailed,
    Failure,
    Loaded,
    LoadFailed,
    Message,
    ModelInfo,
    Report,
    SelfChecked,
    Stop,
    Submit,
)

log = logging.getLogger(__name__)

SELF_CHECK_INTERVAL_S = 1.0
METRICS_INTERVAL_S = 0.1


class Loader(Protocol):
    """The module that makes both sides from a configuration. It is passed by name, so that any process can import it.

    The standard one is `gradus.server.engine.loading`.
    """

    def open_tokenizer(self, config: ServerConfig) -> Any:
        """Open the front end's tokenizer, or return None. Downloads the model if necessary. Raises GradusErrors."""

    def load_engine(self, config: ServerConfig) -> tuple[Core, ModelInfo]:
        """Load the engine, and describe it. Raises GradusErrors."""


def loader(name: str) -> Loader:
    module: Any = importlib.import_module(name)
    return module


class Commands(Protocol):
    """The queue on which commands arrive."""

    def empty(self) -> bool: ...

    def get(self, block: bool = True, timeout: float | None = None) -> Command:
        """Take the next command. Raises queue.Empty after `timeout` seconds."""


def run_engine(loader_name: str, config: ServerConfig, commands: Commands, post: Callable[[Message], None]) -> None:
    """Load an engine and run it until a `Stop` arrives. Errors are posted as messages; nothing is raised."""
    try:
        core, info = loader(loader_name).load_engine(config)
        loaded = Loaded(info, core.metrics())
    except BaseException as error:  # a defect, a user's mistake, even exit(): the front end must hear of it
        if not isinstance(error, GradusError):
            log.exception("the model could not be loaded")
        post(LoadFailed(Failure.of(error)))
        return
    post(loaded)
    try:
        EngineLoop(core, commands, post).run()
    except BaseException as error:
        log.exception("the engine failed")
        post(EngineFailed(Failure.of(error)))


class EngineLoop:
    """Runs `core` until a `Stop` arrives. Exceptions of a step are not caught."""

    def __init__(self, core: Core, commands: Commands, post: Callable[[Message], None]) -> None:
        self._core = core
        self._commands = commands
        self._post = post
        self._commands_taken = 0
        self._samples_taken = 0
        self._unchecked = False  # True if anything has happened since the last self-check
        self._next_check = 0.0
        self._next_metrics = 0.0

    def run(self) -> None:
        self._report(Report())
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Obey the commands that have arrived, then take one step. Returns False after a `Stop`."""
        report = Report()
        for command in self._take():
            if isinstance(command, Stop):
                return False
            self._obey(command, report)
        if self._core.has_work:
            started = time.monotonic()
            outputs = self._core.step()  # sent on in columns: the front end makes objects of them
            report.outputs = [*report.outputs, *outputs] if report.outputs else outputs
            report.step_s = time.monotonic() - started
        self._report(report)
        return True

    def _report(self, report: Report) -> None:
        """Post the report. Metrics cost more than the rest of it, so they are added now and then, and at rest."""
        report.busy, report.waiting = self._core.has_work, self._core.waiting_count
        now = time.monotonic()
        if now >= self._next_metrics or not report.busy:
            report.metrics, self._next_metrics = self._core.metrics(), now + METRICS_INTERVAL_S
        report.commands_taken, report.samples_taken = self._commands_taken, self._samples_taken
        self._post(report)

    def _take(self) -> list[Command]:
        """Take all commands from the queue; wait for one if the engine has nothing to do.

        Their number is bounded, because the number of waiting samples is.
        """
        commands = [] if self._core.has_work else [self._sleep()]
        while not self._commands.empty():
            commands.append(self._commands.get())
        self._commands_taken += len(commands)
        self._unchecked = True
        return commands

    def _sleep(self) -> Command:
        """Wait for the next command. Check the invariants once before, at most once per second."""
        if self._unchecked:
            try:
                return self._commands.get(timeout=max(0.0, self._next_check - time.monotonic()))
            except queue.Empty:
                self._check()
        return self._commands.get()

    def _check(self) -> None:
        """Check the core's invariants; report and count a failure. It may be harmless, so the server keeps running."""
        try:
            self._core.check()
        except Exception:
            log.exception("self-check failed: the books of queue and cache do not balance")
            self._post(SelfChecked(passed=False))
        else:
            self._post(SelfChecked(passed=True))
        self._unchecked = False
        self._next_check = time.monotonic() + SELF_CHECK_INTERVAL_S

    def _obey(self, command: Submit | Cancel, report: Report) -> None:
        if isinstance(command, Cancel):
            ended = self._core.cancel(command.request_id, command.index, command.reason)
            report.outputs = [*report.outputs, *ended]
            return
        request = command.request
        self._samples_taken += request.params.n
        try:
            self._core.submit(shortened(request, time.monotonic() - command.sent))
        except Exception as error:
            # A GradusError is the caller's mistake. Anything else is a bug of ours, but still fails only this request.
            if not isinstance(error, GradusError):
                log.exception("request %s could not be submitted", request.id)
            report.refused.append((request.id, Failure.of(error)))
        else:
            report.accepted.append(request.id)


def shortened(request: Request, waited: float) -> Request:
    """Reduce a request's time limits by the time it has waited for the engine, which may be inside a long step."""

    def left(seconds: float | None) -> float | None:
        return None if seconds is None else max(seconds - waited, 1e-6)

    asked = request.scheduling
    scheduling = replace(asked, timeout=left(asked.timeout), deadline=left(asked.deadline))
    return replace(request, scheduling=scheduling)
