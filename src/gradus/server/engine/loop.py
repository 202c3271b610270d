"""The loop that owns the engine: take commands, step, report. Nothing else calls the engine, so it needs no lock.

    front end ── commands ──▶ engine loop         a queue: the loop sleeps on it when idle, and empties it between
                                                  two steps
    front end ◀── messages ── engine loop         one report per step, whatever the number of requests

Only token ids pass through here. Text stays on the other side, so encoding and decoding never delay a step.
"""

import importlib
import logging
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from gradus.engine.core import Compiles, Core
from gradus.engine.logprobs import NO_LOGPROBS
from gradus.engine.outputs import Outputs
from gradus.engine.request import Request, packed_ids
from gradus.engine.sequence import Output
from gradus.engine.structured import Structured
from gradus.errors import GradusError
from gradus.garbage import paused
from gradus.loading.progress import Progress, Stages
from gradus.server.config import ServerConfig
from gradus.server.engine.compiling import Compiled, Compiling
from gradus.server.engine.messages import (
    Cancel,
    Command,
    EngineFailed,
    EngineMessage,
    Failure,
    Loaded,
    LoadFailed,
    Loading,
    ModelInfo,
    Ping,
    Report,
    SampleOutput,
    SelfChecked,
    Stop,
    Submit,
    Watch,
    packed,
    packed_seconds,
)
from gradus.server.engine.watching import Watching

log = logging.getLogger(__name__)

SELF_CHECK_INTERVAL_S = 1.0
METRICS_INTERVAL_S = 0.1
LARGEST_REPORT = 16 << 20  # bytes of log-probabilities: a frame holds several times as many


class Loader(Protocol):
    """The module that makes both sides from a configuration. It is passed by name, so any process can import it.

    The standard one is `gradus.server.engine.loading`.
    """

    def open_tokenizer(self, config: ServerConfig, progress: Progress) -> Any:
        """Open the front end's tokenizer, or return None. Downloads the model if necessary. Raises GradusErrors."""

    def load_engine(self, config: ServerConfig, progress: Progress) -> tuple[Core, ModelInfo]:
        """Load the engine, and describe it. Raises GradusErrors."""


def loader(name: str) -> Loader:
    module: Any = importlib.import_module(name)
    return module


class Commands(Protocol):
    """The queue on which commands arrive, and requests come back from compiling."""

    def empty(self) -> bool: ...

    def put(self, item: Compiled) -> None: ...

    def get(self, block: bool = True, timeout: float | None = None) -> Command | Compiled:
        """Take the next command. Raises queue.Empty after `timeout` seconds."""


Post = Callable[[EngineMessage], None]


def run_engine(loader_name: str, config: ServerConfig, commands: Commands, post: Post) -> Core | None:
    """Load an engine and run it until a `Stop` arrives. Errors are posted as messages; nothing is raised.

    Returns the engine, for its owner to close; None after an error.
    """
    try:
        stages = Stages(lambda stage: post(Loading(stage)))
        stages.begin("starting the engine", None)  # PyTorch is imported before anything can be loaded
        with paused():
            core, info = loader(loader_name).load_engine(config, stages)
        loaded = Loaded(info, core.metrics())
    except BaseException as error:  # a bug, a user's mistake, even exit(): report it to the front end
        if not isinstance(error, GradusError):
            log.exception("the model could not be loaded")
        post(LoadFailed(Failure.of(error)))
        return None
    post(loaded)
    try:
        EngineLoop(core, commands, post).run()
    except BaseException as error:
        log.exception("the engine failed")
        post(EngineFailed(Failure.of(error)))
        return None
    return core


@dataclass(slots=True)
class Running:
    """A request in the engine. handle: its first sample's. left: samples that have not ended. structured: held."""

    handle: int
    left: int
    structured: Structured | None


class EngineLoop:
    """Runs `core` until a `Stop` arrives. It lets a step's exceptions pass."""

    def __init__(self, core: Core, commands: Commands, post: Post) -> None:
        self._core = core
        self._commands = commands
        self._post = post
        self._compiling = Compiling(core.compiler if isinstance(core, Compiles) else None, commands.put)
        self._running: dict[str, Running] = {}
        self._names: dict[int, str] = {}  # handle of the first sample → request id
        self._turns = 0
        self._commands_taken = 0
        self._samples_taken = 0
        self._owners: NDArray[np.object_] | None = None  # of the newest plain tokens
        self._handles = b""
        self._busy = False  # whether the core had work after the last turn
        self._unchecked = False  # True if anything has happened since the last self-check
        self._next_check = 0.0
        self._next_metrics = 0.0
        self._watching: Watching | None = None  # while somebody watches
        self._next_look = 0.0  # of the next watcher
        self._unseen = False  # whether anything has happened since the last look

    def run(self) -> None:
        self._report(Report())
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Obey the waiting commands, then take one step. Returns False after a `Stop`."""
        report, commands = Report(), self._take()
        for command in commands:
            if isinstance(command, Stop):
                return False
            self._obey(command, report)
        if self._core.has_work if commands else self._busy:
            started = time.monotonic()
            outputs = self._core.step()
            report.step_s = time.monotonic() - started
            self._add(outputs, report)
        self._busy = self._core.has_work
        self._report(report)
        if self._watching is not None:
            self._show(self._watching)
        return True

    def _report(self, report: Report) -> None:
        """Post the report. Metrics cost more than all the rest, so they are added only at intervals, and when idle."""
        self._turns += 1
        report.turn, report.requests = self._turns, len(self._running)
        report.busy, report.waiting = self._busy, self._core.waiting_count
        now = time.monotonic()
        if now >= self._next_metrics or not report.busy:
            report.metrics, self._next_metrics = self._core.metrics(), now + METRICS_INTERVAL_S
            self._add_shares(report)
        report.commands_taken, report.samples_taken = self._commands_taken, self._samples_taken
        for part in parts(report):
            self._post(part)

    def _add_shares(self, report: Report) -> None:
        """Add what each running sample has used of the device: all that is known of one whose client then leaves."""
        shares = self._core.device_seconds()
        report.charged = packed([self._running[name].handle + index for name, index, _ in shares])
        report.seconds = packed_seconds([seconds for *_, seconds in shares])

    # -- outputs ------------------------------------------------------------------------------------------------------

    def _add(self, outputs: Sequence[Output], report: Report) -> None:
        """Add a step's outputs. Plain tokens go into columns unchanged: the front end makes objects of them."""
        if isinstance(outputs, Outputs):
            self._add_columns(outputs, report)
            if outputs.others:
                self._add_others(outputs.others, report)
            return
        plain = [output for output in outputs if is_plain(output)]
        if plain:
            report.handles = packed([self._handle(output) for output in plain])
            report.tokens = packed_ids([output.tokens[0] for output in plain])
        self._add_others([output for output in outputs if not is_plain(output)], report)

    def _add_columns(self, outputs: Outputs, report: Report) -> None:
        owners, tokens = outputs.columns()
        if not len(owners):
            return
        if owners is not self._owners:  # the same sequences mostly decode step after step
            self._owners, self._handles = owners, packed([self._handle(owner) for owner in owners.tolist()])
        report.handles = self._handles
        report.tokens = tokens.astype("<i4").tobytes()
        report.width = width = tokens.shape[1]
        if outputs.logprobs:
            rows = outputs.plain_rows().tolist()
            report.logprobs = [each for row in rows for each in outputs.logprobs[row * width : (row + 1) * width]]

    def _add_others(self, outputs: Iterable[Output], report: Report) -> None:
        for output in outputs:
            running = self._running[output.request_id]
            report.others.append(SampleOutput.of(running.handle + output.index, output))
            if output.finish_reason is not None:
                report.ended += 1
                running.left -= 1
                if not running.left:
                    del self._running[output.request_id], self._names[running.handle]
                    self._compiling.release(running.structured)

    def _handle(self, sample: Any) -> int:
        """Return a sample's handle, from its request's id and its index."""
        return self._running[sample.request_id].handle + int(sample.index)

    # -- commands -----------------------------------------------------------------------------------------------------

    def _take(self) -> list[Command | Compiled]:
        """Take all commands from the queue; wait for one if the engine has nothing to do.

        Their number is bounded by the number of waiting samples.
        """
        commands = [] if self._busy else [self._rest()]
        while not self._commands.empty():
            commands.append(self._commands.get())
        if commands:
            self._commands_taken += sum(not isinstance(command, Compiled) for command in commands)
            self._unchecked |= any(not isinstance(command, Ping) for command in commands)
        return commands

    def _rest(self) -> Command | Compiled:
        """Wait for the next command. A watched engine first shows the state in which it rests."""
        if self._watching is not None and self._unseen:
            try:
                return self._commands.get(timeout=self._watching.wait(time.monotonic()))
            except queue.Empty:
                self._show(self._watching)
        return self._sleep()

    def _sleep(self) -> Command | Compiled:
        """Check the invariants, at most once per second, then wait for the next command."""
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
            if self._running or self._names:
                raise AssertionError(f"the engine has nothing to do, and {len(self._running)} requests have not ended")
        except Exception:
            log.exception("self-check failed: the books of queue and cache do not balance")
            self._post(SelfChecked(passed=False))
        else:
            self._post(SelfChecked(passed=True))
        self._unchecked = False
        self._next_check = time.monotonic() + SELF_CHECK_INTERVAL_S

    def _obey(self, command: Submit | Cancel | Ping | Watch | Compiled, report: Report) -> None:
        if isinstance(command, Ping):
            return  # the turn's report is the answer
        if isinstance(command, Watch):
            self._watch(command.on)
            return
        if isinstance(command, Compiled):
            self._submit(command.submit, report, command.error)
            for cancel in self._compiling.end(command):
                self._obey(cancel, report)
        elif self._compiling.takes(command):
            pass
        elif isinstance(command, Submit):
            self._submit(command, report)
        elif name := self._names.get(command.handle):
            self._add_others(self._core.cancel(name, command.index, command.reason), report)

    # -- watchers -----------------------------------------------------------------------------------------------------

    def _watch(self, on: bool) -> None:
        """Begin to show the engine, from a whole look on, or end it."""
        if self._watching is not None:
            self._watching.stop()
            self._next_look = self._watching.next_look
            self._watching = None
        if on:
            try:
                self._watching = Watching(self._core, self._handle_of, self._next_look)
            except Exception:  # the engine works all the same
                log.exception("this engine cannot be watched")

    def _handle_of(self, request_id: str, index: int) -> int | None:
        """Return a sample's handle; None for a request that is in no state of the loop's."""
        running = self._running.get(request_id)
        return None if running is None else running.handle + index

    def _show(self, watching: Watching) -> None:
        """Post what there is to see, if that is due."""
        now = time.monotonic()
        self._unseen = watching.wait(now) > 0
        if self._unseen:
            return
        try:
            self._post(watching.look(now))
            watching.shown(now, time.monotonic() - now)
        except Exception:
            log.exception("the engine could not be looked at, and is watched no longer")
            self._watch(on=False)

    def _submit(self, command: Submit, report: Report, fault: BaseException | None = None) -> None:
        """Submit a request, whose constraint is held, or refuse it. fault: why its constraint can't be held."""
        samples, structured = command.params.n, command.params.structured
        self._samples_taken += samples
        try:
            if fault is not None:
                raise fault
            self._core.submit(shortened(command.request(), time.monotonic() - command.sent))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            if fault is None:
                self._compiling.release(structured)
            # A GradusError is the caller's mistake. Anything else is our bug, but still fails only this request.
            if not isinstance(error, GradusError):
                log.exception("request %s could not be submitted", command.id)
                self._core.cancel(command.id)  # it may have been queued in part
            report.refused.append((command.handle, Failure.of(error)))
        else:
            self._running[command.id] = Running(command.handle, samples, structured)
            self._names[command.handle] = command.id
            report.accepted.append(command.handle)


def parts(report: Report) -> Iterator[Report]:
    """Split a report that would not fit into a frame: outputs with log-probabilities of long prompts go into further
    ones, which repeat the engine's state."""
    others, report.others, size, part = report.others, [], 0, report
    for output in others:
        more = sum(map(len, output.prompt_logprobs))
        if part.others and size + more > LARGEST_REPORT:
            yield part
            part, size = msgspec.structs.replace(report, **ONLY_ONCE, others=[]), 0
        part.others.append(output)
        size += more
    yield part


ONLY_ONCE: dict[str, Any] = {
    "metrics": None, "step_s": 0.0, "ended": 0, "accepted": [], "refused": [],
    "handles": b"", "tokens": b"", "width": 1, "logprobs": [], "charged": b"", "seconds": b"",
}  # fmt: skip
"""The fields of a report that its further parts leave out."""


def is_plain(output: Output) -> bool:
    """Whether an output is one token and nothing else."""
    alone = output.logprobs is NO_LOGPROBS and not output.prompt_logprobs
    return output.finish_reason is None and len(output.tokens) == 1 and alone


def shortened(request: Request, waited: float) -> Request:
    """Reduce a request's time limits by its wait for the engine, which may have been inside a long step."""

    def left(seconds: float | None) -> float | None:
        return None if seconds is None else max(seconds - waited, 1e-6)

    asked = request.scheduling
    scheduling = replace(asked, timeout=left(asked.timeout), deadline=left(asked.deadline))
    return replace(request, scheduling=scheduling)
