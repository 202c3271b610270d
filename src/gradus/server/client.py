"""The event loop's side of the engine: who may enter, how long they may stay, and what everyone is told.

`EngineClient.submit` returns a `Stream` at once; the engine's results arrive in it as reports come from the engine
thread. All of this runs on the event loop, and the engine only on its thread, so there is no lock here: counting a
request's samples and admitting it is atomic because nothing else runs in between.
"""

import asyncio
import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gradus.cache.usage import CacheUsage
from gradus.engine.engine import Metrics
from gradus.engine.request import SamplingParams, SchedulingParams
from gradus.errors import GradusError, RequestError
from gradus.server.config import ServerConfig
from gradus.server.engine_thread import Cancel, EngineThread, ModelInfo, Prompt, Report, SteppedEngine, Stop, Submit
from gradus.server.results import ClientGone, RequestFailed, RequestTimeout, Stream, Unavailable
from gradus.text.completion import Delta

log = logging.getLogger(__name__)

State = Literal["loading", "ready", "draining", "failed"]

# The engine ends a request, for its time or from here, between two steps. A step that takes longer than this does not
# delay the answer further: the request ends without the engine's last word.
LAST_WORD_S = 1.0


class ServiceRate:
    """How fast samples end while the engine works, the last minute counting most. Idle time is no evidence."""

    HALF_LIFE_S = 60.0

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._ended = 0.0

    def record(self, busy_s: float, ended: int) -> None:
        fade = 0.5 ** (busy_s / self.HALF_LIFE_S)
        self._busy_s = self._busy_s * fade + busy_s
        self._ended = self._ended * fade + ended

    def seconds_for(self, samples: int) -> float:
        """How long `samples` more endings will take. Before the first ending: as if it came now."""
        return samples * self._busy_s / max(self._ended, 1.0)


@dataclass(slots=True)
class Counts:
    """What the engine's own totals do not tell.

    Requests: rejected: no room in the queue. abandoned: their client left. stalled: their client did not read.
    Samples: timed_out: their time was up.
    self_checks: how often the idle engine looked through its books; failed_self_checks: how often they did not balance,
    which is a defect of ours: the log has it.
    """

    rejected: int = 0
    abandoned: int = 0
    stalled: int = 0
    timed_out: int = 0
    self_checks: int = 0
    failed_self_checks: int = 0


class EngineClient:
    """Serves requests from the one engine that `load` makes, on the engine thread. Use it from one event loop only."""

    def __init__(self, load: Callable[[], SteppedEngine], config: ServerConfig) -> None:
        self.config = config
        self.state: State = "loading"
        self.reason = "the model is loading"
        self.info: ModelInfo | None = None  # once loaded
        self.metrics = Metrics()
        self.counts = Counts()
        self.started = time.monotonic()
        self.stopped = False
        self._load = load
        self._streams: dict[str, Stream] = {}
        self._numbers = itertools.count(1)
        self._rate = ServiceRate()
        self._samples_sent = 0
        self._samples_taken = 0
        self._drain_ends = 0.0

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load. Called on the event loop that will make every other call."""
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[ModelInfo] = self._loop.create_future()
        self._nothing_runs = asyncio.Event()
        self._nothing_runs.set()
        self._hurry = asyncio.Event()
        self._thread = EngineThread(self._load, self, self._loop)
        self._thread.start()
        self._watchdog = self._loop.create_task(self._watch())

    async def loaded(self) -> ModelInfo:
        """What is served, once it is there; raises what loading raised."""
        return await asyncio.shield(self._loaded)

    async def drain(self, timeout: float) -> None:
        """Take nothing new, let what runs end within `timeout` seconds, then cancel the rest.

        Every reader gets its last delta. `hurry` ends the waiting.
        """
        if self.state in ("loading", "ready"):
            self.state, self.reason = "draining", "the server is shutting down"
            self._drain_ends = time.monotonic() + timeout
        waits = [asyncio.ensure_future(event.wait()) for event in (self._nothing_runs, self._hurry)]
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        for stream in list(self._streams.values()):
            self._end(stream, "cancelled", Unavailable(self.reason, "draining"))
        await self._nothing_runs.wait()

    def hurry(self) -> None:
        """Make `drain` cancel what runs now."""
        self._hurry.set()

    @property
    def hurried(self) -> bool:
        return self._hurry.is_set()

    async def close(self, patience: float = 1.0) -> None:
        """Stop the thread. `stopped` stays False if it is stuck in a step (or in loading) for `patience` seconds."""
        self._watchdog.cancel()
        for stream in list(self._streams.values()):
            self.forget(stream, Unavailable("the server is shutting down", "draining"))
        self._thread.send(Stop())
        await asyncio.to_thread(self._thread.join, patience)
        self.stopped = not self._thread.is_alive()

    # -- what it tells about itself -----------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Totals, the queue now, and what is served. Samples are counted, a request's n as n."""
        metrics = dataclasses.asdict(self.metrics)
        steps_spans = metrics.pop("batch_total")
        return {
            "state": self.state,
            "uptime_s": round(time.monotonic() - self.started, 3),
            **(dataclasses.asdict(self.info) if self.info else {"model": self.config.model}),
            **metrics,
            "cache": cache_stats(self.metrics.cache),
            "waiting": self.waiting,
            "average_batch": round(steps_spans / self.metrics.steps, 3) if self.metrics.steps else 0.0,
            **dataclasses.asdict(self.counts),
        }

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, params: SamplingParams, scheduling: SchedulingParams | None = None) -> Stream:
        """Queue a request. Where it names no timeout, it has the configuration's request_timeout.

        Raises Unavailable, or RequestError for what could never enter. What only the engine can check is reported by
        the stream's `accepted`.
        """
        self._check_state()
        self._check_room(params.n)
        scheduling = scheduling or SchedulingParams()
        timeout = min(scheduling.timeout or math.inf, self.config.request_timeout)
        stream = Stream(f"gen-{next(self._numbers)}", params, self.forget)
        stream.timer = self._loop.call_later(timeout + LAST_WORD_S, self._expire, stream, timeout)
        self._streams[stream.id] = stream
        self._nothing_runs.clear()
        self._samples_sent += params.n
        self._thread.send(Submit(stream.id, prompt, params, dataclasses.replace(scheduling, timeout=timeout)))
        return stream

    @property
    def waiting(self) -> int:
        """Samples that the engine has not begun: those it has queued, and those it has not taken yet."""
        return self.metrics.waiting + self._samples_sent - self._samples_taken

    def _check_state(self) -> None:
        if self.state == "loading":
            raise Unavailable(self.reason, "loading", retry_after=1)
        if self.state == "draining":  # by then this process is gone, and another may answer
            raise Unavailable(self.reason, "draining", math.ceil(max(1.0, self._drain_ends - time.monotonic())))
        if self.state == "failed":
            raise Unavailable(self.reason, "failed")

    def _check_room(self, samples: int) -> None:
        most = self.config.max_waiting
        if samples > most:
            message = f"n must be at most {most} on this server (its max_waiting), got {samples}"
            raise RequestError(message, param="n", limit=f"at most {most}", got=samples)
        if self.waiting + samples > most:
            self.counts.rejected += 1
            retry_after = self._retry_after(self.waiting + samples - most)
            message = f"the queue is full (at most {most} waiting samples); try again in {retry_after} s"
            raise Unavailable(message, "overloaded", retry_after)

    def _retry_after(self, surplus: int) -> int:
        """Whole seconds until `surplus` samples have ended, so that as many can begin.

        Never more than the request timeout: by then, whatever waits now has ended one way or the other.
        """
        return math.ceil(min(max(self._rate.seconds_for(surplus), 1.0), max(self.config.request_timeout, 1.0)))

    # -- endings ------------------------------------------------------------------------------------------------------

    def _expire(self, stream: Stream, timeout: float) -> None:
        """The engine should have ended the request by now: it is inside a long step."""
        self.counts.timed_out += stream.unfinished
        self._thread.send(Cancel(stream.id, "timeout"))
        self._close(stream, RequestTimeout(f"the request did not end within its timeout of {timeout:g} s"))

    def _end(self, stream: Stream, reason: str, otherwise: Exception) -> None:
        """Have the engine end a request whose reader still waits: the last deltas bring `reason`, its usage and times.

        Where the engine is busy for longer than LAST_WORD_S, the reader gets `otherwise`.
        """
        self._thread.send(Cancel(stream.id, reason))
        if stream.timer is not None:
            stream.timer.cancel()
        stream.timer = self._loop.call_later(LAST_WORD_S, self._close, stream, otherwise)

    def forget(self, stream: Stream, error: Exception) -> None:
        """Have the engine end a request whose reader has gone. Nothing happens if it has ended already."""
        if stream.id not in self._streams:
            return
        self.counts.abandoned += isinstance(error, ClientGone)
        self._thread.send(Cancel(stream.id, "cancelled"))
        self._close(stream, error)

    def _close(self, stream: Stream, error: Exception | None) -> None:
        """Drop the books on a stream; with an error, its reader gets that."""
        self._streams.pop(stream.id, None)
        if not self._streams:
            self._nothing_runs.set()
        if stream.timer is not None:
            stream.timer.cancel()
        if error is not None:
            stream.fail(error)

    def _fail(self, reason: str) -> None:
        self.state, self.reason = "failed", reason
        for stream in list(self._streams.values()):
            self._close(stream, Unavailable(reason, "failed"))

    # -- the engine thread's messages, delivered on the event loop ----------------------------------------------------

    def on_loaded(self, info: ModelInfo) -> None:
        self.info = info
        if self.state == "loading":
            self.state, self.reason = "ready", "ready"
        self._loaded.set_result(info)

    def on_load_failed(self, error: BaseException) -> None:
        self._fail(f"the model could not be loaded ({type(error).__name__})")
        self._loaded.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        self._loaded.exception()  # whether or not somebody awaits it

    def on_report(self, report: Report) -> None:
        self.metrics = report.metrics
        self._samples_taken = report.samples_taken
        self._rate.record(report.step_s, sum(delta.completion is not None for delta in report.deltas))
        for request_id in report.accepted:
            if stream := self._streams.get(request_id):
                stream.accept()
        for request_id, error in report.refused:
            if stream := self._streams.get(request_id):
                self._close(stream, error if isinstance(error, GradusError) else RequestFailed())
        for delta in report.deltas:
            if stream := self._streams.get(delta.request_id):
                self._deliver(stream, delta)

    def on_self_check(self, passed: bool) -> None:
        self.counts.self_checks += 1
        self.counts.failed_self_checks += not passed

    def _deliver(self, stream: Stream, delta: Delta) -> None:
        stream.push(delta)
        self.counts.timed_out += delta.completion is not None and delta.completion.finish_reason == "timeout"
        if stream.ended:
            self._close(stream, None)
        elif stream.buffered > self.config.max_buffered:
            self.counts.stalled += 1
            self.forget(stream, Unavailable("the client does not read its stream", "stalled"))

    def on_engine_failed(self, error: BaseException) -> None:
        """What the operator can mend (too little memory) is said; a defect of ours is for the log alone."""
        if isinstance(error, GradusError):
            self._fail(f"the engine stopped: {error}")
        else:
            self._fail(f"the engine stopped after an internal error ({type(error).__name__}); the log has the details")

    async def _watch(self) -> None:
        """A step that hangs cannot say so itself."""
        limit = self.config.step_timeout
        while self.state != "failed":
            await asyncio.sleep(min(1.0, limit / 4))
            started = self._thread.step_started
            if started is not None and time.monotonic() - started > limit:
                log.error("an engine step has taken more than %g s: the server is no longer healthy", limit)
                self._thread.send(Stop())  # if the step comes back after all, nothing may follow it
                self._fail(f"an engine step hangs (more than {limit:g} s)")


def cache_stats(usage: CacheUsage | None) -> dict[str, int | float] | None:
    """How full the pages are, as counts and as parts of 1; None in phases without pages."""
    if usage is None:
        return None
    parts = ("utilization", "internal_fragmentation", "external_fragmentation", "hit_rate")
    return dataclasses.asdict(usage) | {name: round(getattr(usage, name), 4) for name in parts}
