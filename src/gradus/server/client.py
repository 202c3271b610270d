"""The event loop's side of the engine: admission, text, cancellation, statistics.

`EngineClient.submit` returns a `Stream` at once, and its results arrive with the engine loop's reports. A `FrontEnd`
encodes prompts and decodes answers here: the engine's side knows only token ids. Everything runs on the event
loop, so there is no lock: counting a request's samples and admitting it is atomic because nothing else runs in between.
Only slow work (opening the tokenizer, encoding a long prompt) is done by one worker thread.

Time limits have one home, the engine loop: between two steps it ends requests whose time is up, and a request's last
output says so. An engine inside a long step cannot do that. So LAST_WORD_S after a request's time is up, or after its
cancellation, the client ends its stream without waiting for the engine's last output.
"""

import asyncio
import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from gradus.engine.metrics import Metrics
from gradus.engine.outputs import endings
from gradus.engine.request import Request, SchedulingParams
from gradus.engine.sequence import Output
from gradus.errors import GradusError, RequestError
from gradus.server.api.ask import Ask
from gradus.server.config import ServerConfig
from gradus.server.engine.loop import loader
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
from gradus.server.engine.thread import EngineThread
from gradus.server.measures import Counts, ServiceRate, Watch, cache_stats, speculation_stats
from gradus.server.results import ClientGone, RequestFailed, RequestTimeout, Stream, Unavailable
from gradus.text.completion import Delta
from gradus.text.front_end import FrontEnd

if TYPE_CHECKING:
    from gradus.loading import Tokenizer

log = logging.getLogger(__name__)

State = Literal["loading", "ready", "draining", "failed"]

# Seconds that a stream waits for the engine's last output of a request that should end: most steps are far shorter.
LAST_WORD_S = 1.0

# Most prompts of one body that are encoded on the event loop.
MOST_AT_ONCE = 16


class EngineClient:
    """Serves requests from the one engine that `config` describes, on a thread of its own. For one event loop only.

    loader: the name of the module that loads tokenizer and engine (see `gradus.server.engine.loading`).
    """

    def __init__(self, config: ServerConfig, loader: str = "gradus.server.engine.loading") -> None:
        self.config = config
        self.state: State = "loading"
        self.reason = "the model is loading"
        self.info: ModelInfo | None = None  # once loaded
        self.metrics = Metrics()
        self.counts = Counts()
        self.started = time.monotonic()
        self.stopped = False
        self._loader = loader
        self._tokenizer: Tokenizer | None = None
        self._front_end: FrontEnd | None = None  # once loaded
        self._streams: dict[str, Stream] = {}
        self._beginnings: set[asyncio.Task[None]] = set()  # one for each request whose long prompt is being encoded
        self._numbers = itertools.count(1)
        self._rate = ServiceRate()
        self._watch = Watch()
        self._samples_sent = self._samples_taken = 0
        self._queued = 0  # in the engine
        self._drain_ends = 0.0

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load. Call it on the event loop that will make every other call."""
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[ModelInfo] = self._loop.create_future()
        self._nothing_runs = asyncio.Event()
        self._nothing_runs.set()
        self._hurry = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, "front-end")
        self._thread = EngineThread(self._loader, self.config, self.receive, self._loop)
        self._opening = self._worker.submit(lambda: loader(self._loader).open_tokenizer(self.config))
        self._tasks = [self._loop.create_task(self._load()), self._loop.create_task(self._watch_engine())]

    async def _load(self) -> None:
        """Open the tokenizer first, which finds or downloads the model; then start the engine."""
        try:
            self._tokenizer = await asyncio.wrap_future(self._opening)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # as on the engine's side: a defect, a user's mistake, even exit()
            if not isinstance(error, GradusError):
                log.exception("the tokenizer could not be opened")
            self.receive(LoadFailed(Failure.of(error)))
        else:
            self._thread.start()

    async def loaded(self) -> ModelInfo:
        """Wait for the model, and describe it. Raises the GradusError that loading ended with, or RuntimeError."""
        return await asyncio.shield(self._loaded)

    async def drain(self, timeout: float) -> None:
        """Accept nothing new, let running requests end within `timeout` seconds, then cancel the rest.

        Every stream gets its last delta. `hurry` ends the waiting.
        """
        if self.state in ("loading", "ready"):
            self.state, self.reason = "draining", "the server is shutting down"
            self._drain_ends = time.monotonic() + timeout
        waits = [asyncio.ensure_future(event.wait()) for event in (self._nothing_runs, self._hurry)]
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        for stream in set(self._streams.values()):
            self._end(stream, "cancelled", Unavailable(self.reason, "draining"))
        await self._nothing_runs.wait()

    def hurry(self) -> None:
        """Make `drain` cancel running requests now."""
        self._hurry.set()

    @property
    def hurried(self) -> bool:
        return self._hurry.is_set()

    async def close(self, patience: float = 1.0) -> None:
        """Stop both threads. `stopped` stays False if one is stuck in a step, or in loading, for `patience` seconds."""
        for task in self._tasks:
            task.cancel()
        for stream in set(self._streams.values()):
            self.forget(stream, Unavailable("the server is shutting down", "draining"))
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._thread.send(Stop())
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, patience)
        self.stopped = self._opening.done() and not self._thread.is_alive()

    # -- statistics ---------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Totals, the queue now, and the model served. Samples are counted: a request counts n times."""
        metrics = dataclasses.asdict(self.metrics)
        steps_spans = metrics.pop("batch_total")
        return {
            "state": self.state,
            "uptime_s": round(time.monotonic() - self.started, 3),
            **(self.info.stats() if self.info else {"model": self.config.model}),
            **metrics,
            "cache": cache_stats(self.metrics.cache),
            "speculation": speculation_stats(self.metrics.speculation),
            "waiting": self.waiting,
            "average_batch": round(steps_spans / self.metrics.steps, 3) if self.metrics.steps else 0.0,
            **dataclasses.asdict(self.counts),
        }

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, *asks: Ask) -> Stream:
        """Queue the requests of one body, all or none. Without a timeout of its own, each has the configuration's.

        Raises Unavailable, RequestFailed, or RequestError for a request that could never enter. Faults found later (in
        a long prompt, or in the engine) are raised by the stream's `accepted`.
        """
        self._check_state()
        samples = sum(ask.params.n for ask in asks)
        self._check_room(samples)
        number = next(self._numbers)
        ids = [f"gen-{number}"] if len(asks) == 1 else [f"gen-{number}-{index}" for index in range(len(asks))]
        stream = Stream(ids, samples, self.forget)
        limits = [self._limited(ask.scheduling) for ask in asks]
        makes = [
            partial(ask.request, self.front_end, name, limited)
            for ask, name, limited in zip(asks, ids, limits, strict=True)
        ]
        timeout = max(limited.timeout or 0.0 for limited in limits)
        if all(ask.short for ask in asks) and len(asks) <= MOST_AT_ONCE:
            submits = [Submit(made(make)) for make in makes]
            self._enter(stream, timeout)
            self._begin(stream, submits)
        else:
            self._enter(stream, timeout)
            beginning = self._loop.create_task(self._begin_later(stream, makes))
            self._beginnings.add(beginning)  # the loop itself would let it be collected
            beginning.add_done_callback(self._beginnings.discard)
        return stream

    def _limited(self, scheduling: SchedulingParams) -> SchedulingParams:
        timeout = min(scheduling.timeout or math.inf, self.config.request_timeout)
        return dataclasses.replace(scheduling, timeout=timeout)

    def _enter(self, stream: Stream, timeout: float) -> None:
        """Register the stream, and start its timeout."""
        late = RequestTimeout(f"the request did not end within its timeout of {timeout:g} s")
        stream.timer = self._loop.call_later(timeout + LAST_WORD_S, self._expire, stream, late)
        self._streams.update(dict.fromkeys(stream.ids, stream))
        self._nothing_runs.clear()
        self._samples_sent += stream.samples

    def _begin(self, stream: Stream, submits: Sequence[Submit]) -> None:
        for index, submit in enumerate(submits):
            stream.requests[submit.request.id] = submit.request
            self.front_end.open(submit.request, index)
            self._send(submit)

    async def _begin_later(self, stream: Stream, makes: "Sequence[partial[Request]]") -> None:
        """Let the worker encode long prompts. Meanwhile the requests' time runs, and their client may leave."""
        arrived = time.monotonic()
        submits = []
        try:
            for make in makes:
                submits.append(Submit(await self._loop.run_in_executor(self._worker, made, make), arrived))
        except GradusError as error:
            self._samples_sent -= stream.samples
            if stream.ids[0] in self._streams:
                self._close(stream, error)
            return
        if stream.ids[0] in self._streams:
            self._begin(stream, submits)
        else:
            self._samples_sent -= stream.samples

    @property
    def model(self) -> str:
        """The model's name."""
        return self.info.model if self.info else self.config.model

    @property
    def front_end(self) -> FrontEnd:
        """The text's side of the model. Raises Unavailable while the model loads."""
        if self._front_end is None:
            raise Unavailable(self.reason, self.state, retry_after=1 if self.state == "loading" else None)
        return self._front_end

    def _send(self, command: Command) -> None:
        self._watch.sent(time.monotonic())
        self._thread.send(command)

    @property
    def waiting(self) -> int:
        """Samples that the engine has not begun: those in its queue, and those it has not taken yet."""
        return self._queued + self._samples_sent - self._samples_taken

    def _check_state(self) -> None:
        if self.state == "loading":
            raise Unavailable(self.reason, "loading", retry_after=1)
        if self.state == "draining":  # at that time this process is gone, and another may answer
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
        """Estimate the whole seconds until `surplus` samples have ended, so that as many can begin.

        It is never more than the request timeout: by then, every request waiting now has ended in some way.
        """
        return math.ceil(min(max(self._rate.seconds_for(surplus), 1.0), max(self.config.request_timeout, 1.0)))

    # -- endings ------------------------------------------------------------------------------------------------------

    def _expire(self, stream: Stream, late: RequestTimeout) -> None:
        """End a request that the engine should have ended by now, but couldn't inside a long step."""
        self.counts.timed_out += stream.unfinished
        self._cancel(stream, "timeout")
        self._close(stream, late)

    def _end(self, stream: Stream, reason: str, otherwise: Exception) -> None:
        """Let the engine end a request whose client still waits: its last deltas carry `reason`, usage and times.

        If the engine is busy for longer than LAST_WORD_S, the stream fails with `otherwise`.
        """
        self._cancel(stream, reason)
        if stream.timer is not None:
            stream.timer.cancel()
        stream.timer = self._loop.call_later(LAST_WORD_S, self._close, stream, otherwise)

    def forget(self, stream: Stream, error: Exception) -> None:
        """Let the engine end a request whose client has gone. Does nothing if it has ended already."""
        if stream.ids[0] not in self._streams:
            return
        self.counts.abandoned += isinstance(error, ClientGone)
        self._cancel(stream, "cancelled")
        self._close(stream, error)

    def _cancel(self, stream: Stream, reason: str) -> None:
        for name in stream.ids:
            self._send(Cancel(name, reason))

    def _close(self, stream: Stream, error: Exception | None) -> None:
        """Forget a stream; with an error, fail it."""
        for name in stream.ids:
            self._streams.pop(name, None)
            self.front_end.close(name)
        if not self._streams:
            self._nothing_runs.set()
        if stream.timer is not None:
            stream.timer.cancel()
        if error is not None:
            stream.fail(error)

    def _fail(self, reason: str) -> None:
        self.state, self.reason = "failed", reason
        for stream in set(self._streams.values()):
            self._close(stream, Unavailable(reason, "failed"))

    def _end_sample(self, request_id: str, index: int, reason: str) -> Iterable[Output]:
        """End a sample in which the front end found a stop string. Its last output comes with a later report."""
        self._send(Cancel(request_id, reason, index))
        return ()

    # -- the engine's messages, delivered on the event loop -----------------------------------------------------------

    def receive(self, message: Message) -> None:
        match message:
            case Report():
                self._on_report(message)
            case Loaded(info, metrics):
                self._on_loaded(info, metrics)
            case LoadFailed(failure):
                self._on_load_failed(failure)
            case SelfChecked(passed):
                self.counts.self_checks += 1
                self.counts.failed_self_checks += not passed
            case EngineFailed(failure):
                self._on_engine_failed(failure)

    def _on_loaded(self, info: ModelInfo, metrics: Metrics) -> None:
        self.info, self.metrics = info, metrics
        self._front_end = FrontEnd(self._tokenizer, info.limits, info.model, self._end_sample)
        if self.state == "loading":
            self.state, self.reason = "ready", "ready"
        self._loaded.set_result(info)

    def _on_load_failed(self, failure: Failure) -> None:
        reason = f"the model could not be loaded ({failure.kind})"
        self._fail(reason)
        self._loaded.set_exception(failure.error() or RuntimeError(f"{reason}; the log has the details"))
        self._loaded.exception()  # read here, in case it is not awaited

    def _on_report(self, report: Report) -> None:
        self._watch.reported(report, time.monotonic())
        self.metrics = report.metrics or self.metrics
        self._samples_taken, self._queued = report.samples_taken, report.waiting
        self._rate.record(report.step_s, len(endings(report.outputs)))
        for request_id in report.accepted:
            if stream := self._streams.get(request_id):
                stream.accept(request_id)
        for request_id, failure in report.refused:
            if stream := self._streams.get(request_id):
                self._cancel(stream, "cancelled")  # what else its body asked for
                self._close(stream, failure.error() or RequestFailed())
        for delta in self.front_end.read(report.outputs):
            if stream := self._streams.get(delta.request_id):
                self._deliver(stream, delta)

    def _deliver(self, stream: Stream, delta: Delta) -> None:
        stream.push(delta)
        self.counts.timed_out += delta.completion is not None and delta.completion.finish_reason == "timeout"
        if stream.ended:
            self._close(stream, None)
        elif stream.buffered > self.config.max_buffered:
            self.counts.stalled += 1
            self.forget(stream, Unavailable("the client does not read its stream", "stalled"))

    def _on_engine_failed(self, failure: Failure) -> None:
        """Fail all streams. They report a fault that the operator can fix (too little memory); a bug goes to the
        log."""
        if failure.message is not None:
            self._fail(f"the engine stopped: {failure.message}")
        else:
            self._fail(f"the engine stopped after an internal error ({failure.kind}); the log has the details")

    async def _watch_engine(self) -> None:
        """Fail the server if an engine step hangs, since the step itself cannot report it."""
        limit = self.config.step_timeout
        while self.state != "failed":
            await asyncio.sleep(min(1.0, limit / 4))
            silent_since = self._watch.silent_since
            if silent_since is not None and time.monotonic() - silent_since > limit:
                log.error("an engine step has taken more than %g s: the server is no longer healthy", limit)
                self._send(Stop())  # if the step comes back after all, nothing may follow it
                self._fail(f"an engine step hangs (more than {limit:g} s)")


def made(make: "partial[Request]") -> Request:
    """Call `make`, and turn a bug into a RequestFailed, with details only in the log."""
    try:
        return make()
    except GradusError:
        raise
    except Exception as error:
        log.exception("a prompt could not be encoded")
        raise RequestFailed() from error
