"""The event loop's side of the engine: admission, text, cancellation, statistics.

`EngineClient.submit` returns a `Stream` at once, and its results arrive with the engine loop's reports. A `FrontEnd`
encodes prompts here, and `Samples` decodes answers with it: the engine's side knows only token ids. Everything runs on
the event loop, so there is no lock: counting a request's samples and admitting it is atomic because nothing else runs
in between. Only slow work (opening the tokenizer, encoding a long prompt) goes to a thread (`EncodingQueue`).

Whatever goes wrong while a request is admitted ends this request alone, and leaves nothing of it. What happens when the
engine itself fails is decided by a `Supervisor`.

The engine loop alone keeps time limits: between two steps it ends requests whose time is up, and a request's last
output says so. An engine inside a long step cannot do that. So LAST_WORD_S after a request's time is up, or after its
cancellation, the client ends its stream without waiting for the engine's last output.
"""

import asyncio
import dataclasses
import itertools
import logging
import math
import secrets
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from gradus.device.allocator import give_back_host_memory
from gradus.engine.metrics import Metrics
from gradus.engine.request import Request, SchedulingParams
from gradus.engine.sequence import Output
from gradus.errors import GradusError, RequestError
from gradus.garbage import spare_what_stays
from gradus.loading import model_name
from gradus.loading.progress import Stage, Stages
from gradus.server.config import ServerConfig
from gradus.server.encoding import EncodingQueue, Job, guarded, weight
from gradus.server.engine.child import GOODBYE_S
from gradus.server.engine.link import MakeLink, link_for
from gradus.server.engine.loop import loader
from gradus.server.engine.messages import (
    Cancel,
    EngineFailed,
    EngineMessage,
    Failure,
    Loaded,
    LoadFailed,
    Loading,
    ModelInfo,
    Report,
    SelfChecked,
    Submit,
    Watch,
    Watched,
)
from gradus.server.engine.pool import Pool
from gradus.server.exchange import Ask
from gradus.server.failures import ClientGone, RequestFailed, RequestTimeout, Unavailable
from gradus.server.limits import check_prompt_logprobs
from gradus.server.measures import Counts, ServiceRate, cache_stats, speculation_stats
from gradus.server.metrics.families import Source
from gradus.server.metrics.meter import Meter
from gradus.server.results import Stream
from gradus.server.samples import Samples
from gradus.server.supervisor import State, Supervisor
from gradus.server.writing.outbox import Outbox
from gradus.server.xray.watchers import Owner, Watchers
from gradus.structured import begin_index
from gradus.text.front_end import FrontEnd
from gradus.text.tools.dialect import Turn

if TYPE_CHECKING:
    from gradus.loading import Tokenizer

log = logging.getLogger(__name__)

# Seconds that a stream waits for the last output of a request that should end: most steps are far shorter.
LAST_WORD_S = 1.0

# Seconds for a body to be read and submitted, once its model has been loaded for the first time.
READ_S = 0.1

# Most prompts of one body to encode on the event loop.
MOST_AT_ONCE = 16


def new_name() -> str:
    """Make up the id of one body's requests. It is random: numbers would show each client the traffic of all."""
    return f"gen-{secrets.token_hex(8)}"


class EngineClient:
    """Serves requests from the one engine that `config` describes. For one event loop only.

    loader: the name of the module that loads tokenizer and engine (see `gradus.server.engine.loading`).
    link: makes the connection to the engine; None: the configuration chooses between a process and a thread.
    pool: the models that share this server's memory; None: this one alone. asleep: load it when a request needs it.
    outbox: writes to the connections of all models; None: to this one's alone.
    """

    def __init__(
        self,
        config: ServerConfig,
        loader: str = "gradus.server.engine.loading",
        link: MakeLink | None = None,
        pool: Pool | None = None,
        asleep: bool = False,
        outbox: Outbox | None = None,
    ) -> None:
        self.config = config
        self.info: ModelInfo | None = None  # once loaded
        self.metrics = Metrics()
        self.counts = Counts()
        self.meter = Meter(config.price_per_hour)
        self.supervisor = Supervisor(config, self.counts, self._lose_all, self._rest, self._claim)
        self.watchers = Watchers(self)
        self.pool = pool or Pool()
        self.on_demand = asleep
        self.outbox = outbox or Outbox()
        self.started = time.monotonic()
        self.stopped = False
        self._loader = loader
        self._make_link = link or link_for(config)
        self._tokenizer: Tokenizer | None = None
        self._front_end: FrontEnd | None = None  # once loaded
        self._streams: dict[int, Stream] = {}  # by the handle of each request's first sample
        self._samples = Samples(self.counts, self.meter.sample, partial(self._cancel, reason="cancelled"), self.forget)
        self._handles: dict[str, int] = {}  # request id → handle of its first sample
        self._fresh: dict[Stream, None] = {}  # with deltas that are to be delivered, in order of arrival
        self._next_handle = 1
        self._beginnings: dict[Stream, Sequence[Job[Request]]] = {}  # prompts that are being encoded
        self._rate = ServiceRate()
        self._samples_sent = self._samples_taken = 0
        self._queued = 0  # in the engine
        self._requests = 0  # that the engine knows
        self._readers = 0  # bodies that wait for the model's first load
        self._turns = 0  # of the engine's loop

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load. Call it, like every other method, on the event loop."""
        self._loop = asyncio.get_running_loop()
        self.pool.start(self._loop.call_later)
        self._loaded: asyncio.Future[ModelInfo] = self._loop.create_future()
        self._nothing_runs = asyncio.Event()
        self._nothing_runs.set()
        self._hurry = asyncio.Event()
        self.texts = EncodingQueue("texts", self.config.max_waiting, self.counts)  # for routes that generate nothing
        self._prompts = EncodingQueue("front-end", self.config.max_waiting, self.counts)
        self._opener = ThreadPoolExecutor(1, "tokenizer")
        self._link = self._make_link(self._loader, self.config, self.receive, self._loop)
        stages = Stages(self._tell_stage)
        self._opening = self._opener.submit(lambda: loader(self._loader).open_tokenizer(self.config, stages))
        self._load_task = self._loop.create_task(self._load())

    async def _load(self) -> None:
        """Open the tokenizer first, which finds or downloads the model; then start the engine."""
        try:
            self._tokenizer = await asyncio.wrap_future(self._opening)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # as on the engine's side: a bug, a user's mistake, even exit()
            if not isinstance(error, GradusError):
                log.exception("the tokenizer could not be opened")
            self.receive(LoadFailed(Failure.of(error)))
        else:
            self.supervisor.start(self._link, self.on_demand)
            if self.on_demand:
                return
            if self.config.phase is None and self._tokenizer is not None:
                begin_index(self._tokenizer)  # while the engine loads: later, all streams would wait for Python's lock
            self.pool.claim(self)

    def _tell_stage(self, stage: Stage) -> None:
        """Pass on what opening the tokenizer, on its thread, is at. A loop that is closed no longer listens."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.supervisor.loading, stage)

    @property
    def state(self) -> State:
        return self.supervisor.state

    @property
    def reason(self) -> str:
        """Why the server takes no requests, in one line."""
        return self.supervisor.reason

    async def loaded(self) -> ModelInfo:
        """Wait for the model, and describe it. Raises the GradusError that ended loading, or RuntimeError."""
        return await asyncio.shield(self._loaded)

    async def opened(self) -> None:
        """Wait for the tokenizer, of a model that is loaded by its first request. Raises as `loaded` does."""
        await asyncio.shield(self._load_task)
        if self.state == "failed":
            await self.loaded()

    async def drain(self, timeout: float) -> None:
        """Stop admitting, give running requests `timeout` seconds to end, and cancel the rest.

        Every stream gets its last delta. `hurry` cuts the wait short.
        """
        self.supervisor.drain(timeout, self._work_left)
        waits = [asyncio.ensure_future(event.wait()) for event in (self._nothing_runs, self._hurry)]
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        for stream in set(self._streams.values()):
            self._end(stream, "cancelled", Unavailable(self.reason, "draining"))
        await self._nothing_runs.wait()
        self.watchers.close()

    def _work_left(self) -> float:
        """Estimate the seconds until the running requests have ended, if each takes all the tokens that it may have."""
        left = [
            request.max_tokens - stream.tally.generated / stream.samples
            for stream in set(self._streams.values())
            for request in stream.requests.values()
        ]
        gaps = self.meter.inter_token
        return max(left, default=0.0) * gaps.sum / gaps.count if gaps.count else math.inf if left else 0.0

    def hurry(self) -> None:
        """Make `drain` cancel running requests now."""
        self._hurry.set()

    @property
    def hurried(self) -> bool:
        return self._hurry.is_set()

    def abandon(self) -> None:
        """End running requests without waiting for the engine's last outputs."""
        for stream in set(self._streams.values()):
            self.forget(stream, Unavailable("the server is shutting down", "draining"))

    async def close(self, patience: float = 1.0) -> None:
        """Stop the engine, and wait at most `patience` seconds for a step or for loading. If a thread does not end,
        `stopped` stays False."""
        self._load_task.cancel()
        self.supervisor.close()
        self.watchers.close()
        self.abandon()
        self._opener.shutdown(wait=False, cancel_futures=True)
        self._prompts.close()
        self.texts.close()
        self.outbox.close()
        rests = self.info is not None and self.supervisor.rests
        closed = await self._link.close(GOODBYE_S if rests else patience)
        self.stopped = self._opening.done() and closed

    # -- statistics ---------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Collect totals, the present queue, and the served model. Samples are counted: a request counts n times."""
        metrics = dataclasses.asdict(self.metrics)
        steps_spans = metrics.pop("batch_total")
        return {
            "state": self.state,
            "uptime_s": round(time.monotonic() - self.started, 3),
            **(self.info.stats() if self.info else {"model": self.model}),
            **metrics,
            "cache": cache_stats(self.metrics.cache),
            "speculation": speculation_stats(self.metrics.speculation),
            "waiting": self.waiting,
            "turns": self._turns,
            "average_batch": round(steps_spans / self.metrics.steps, 3) if self.metrics.steps else 0.0,
            **dataclasses.asdict(self.counts),
        }

    def measured(self) -> Source:
        """Collect the values behind /metrics."""
        context, settings = (self.info.limits.context_length, self.info.settings) if self.info else (0, {})
        states = {state: state == self.state for state in get_args(State)}
        return Source(
            self.model,
            self.metrics,
            self.meter,
            self.counts,
            self.waiting,
            self.supervisor.ready,
            context,
            self.encoding,
            settings,
            states,
        )

    # -- watchers: see `gradus.server.xray.watchers.Engine` -----------------------------------------------------------

    @property
    def watchable(self) -> bool:
        return self.state in ("ready", "stalled", "draining")

    def send(self, command: Watch) -> None:
        self.supervisor.send(command)

    def owner(self, handle: int) -> Owner | None:
        sample = self._samples.find(handle)
        if sample is None:
            return None
        return Owner(sample.stream.key, sample.transcript.request.id, sample.transcript.index)

    def described(self) -> dict[str, Any]:
        info = self.info
        if info is None:
            return {"model": self.model}
        found = {"model": self.model, "engine": info.engine, "device": info.device, "dtype": info.dtype}
        sequences = info.settings.get("max_sequences")
        return found | {"context_length": info.limits.context_length, "max_sequences": sequences}

    def numbers(self) -> dict[str, Any]:
        cache = self.metrics.cache
        return {
            "running": self.metrics.active,
            "waiting": self.waiting,
            "cache_use": None if cache is None else round(cache.utilization, 4),
            "hit_rate": None if cache is None else round(cache.hit_rate, 4),
        }

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, *asks: Ask, key: str = "", name: str = "") -> Stream:
        """Queue the requests of one body, all or none. A request without a timeout gets the configuration's.

        key: the name of the sender's API key; prompts that wait for encoding take turns by key. name: the body's id in
        the log. Raises Unavailable, RequestFailed, or RequestError for a request that could never enter. The stream's
        `accepted` raises faults that are found later, in a long prompt or in the engine.
        """
        if (refusal := self.supervisor.refusal) is not None:
            raise refusal
        self._check_room(sum(ask.params.n for ask in asks))
        stream = self._stream([ask.params.n for ask in asks], name)
        stream.key = key
        stream.apart = any(ask.apart for ask in asks)
        limits = [self._limited(ask.scheduling) for ask in asks]
        makes = [
            partial(ask.request, self.front_end, request_id, limited)
            for ask, request_id, limited in zip(asks, stream.ids, limits, strict=True)
        ]
        turns = [ask.turn for ask in asks]
        timeout = max(limited.timeout or 0.0 for limited in limits)
        if all(ask.short for ask in asks) and len(asks) <= MOST_AT_ONCE:
            requests = [guarded(make) for make in makes]
            check_prompt_logprobs(requests, self.config.max_prompt_logprobs)
            self._enter(stream, timeout)
            self._begin(stream, turns, requests, time.monotonic())
        else:
            sizes = [weight(ask.prompt) for ask in asks]
            self._prompts.check_room(sum(sizes))
            self._enter(stream, timeout)
            jobs = [self._prompts.put(key, size, make) for size, make in zip(sizes, makes, strict=True)]
            self._begin_later(stream, turns, jobs)
        return stream

    def _stream(self, samples: Sequence[int], name: str) -> Stream:
        """Name the requests of one body, and assign handles to their samples."""
        made = new_name()
        names = [made] if len(samples) == 1 else [f"{made}-{at}" for at in range(len(samples))]
        handles = list(itertools.accumulate(samples, initial=self._next_handle))
        self._next_handle = handles.pop()
        return Stream(names, handles, sum(samples), self.forget, self.counts, name)

    def _limited(self, scheduling: SchedulingParams) -> SchedulingParams:
        timeout = min(scheduling.timeout or math.inf, self.config.request_timeout)
        return dataclasses.replace(scheduling, timeout=timeout)

    def _enter(self, stream: Stream, timeout: float) -> None:
        """Register the stream, and start its timeout."""
        late = RequestTimeout(f"the request did not end within its timeout of {timeout:g} s")
        stream.timer = self._loop.call_later(timeout + LAST_WORD_S, self._expire, stream, late)
        self._streams.update(dict.fromkeys(stream.handles, stream))
        self.meter.enter(stream)
        self._nothing_runs.clear()
        self.supervisor.idle_since = None
        self.pool.used(self)

    def _begin_later(self, stream: Stream, turns: Sequence[Turn | None], jobs: "Sequence[Job[Request]]") -> None:
        """Begin once all prompts are encoded. Meanwhile the timeout runs, and if the stream is closed, prompts whose
        turn has not come are never encoded."""
        self._beginnings[stream] = jobs
        asyncio.gather(*jobs).add_done_callback(partial(self._encoded, stream, turns, time.monotonic()))

    def _encoded(
        self,
        stream: Stream,
        turns: Sequence[Turn | None],
        arrived: float,
        encoded: "asyncio.Future[list[Request]]",
    ) -> None:
        error = encoded.exception()
        if stream not in self._beginnings:  # it was closed
            return
        try:
            if error is not None:
                raise error if isinstance(error, GradusError) else RequestFailed()
            check_prompt_logprobs(encoded.result(), self.config.max_prompt_logprobs)
        except GradusError as refusal:
            self._close(stream, refusal)
        else:
            del self._beginnings[stream]
            self._begin(stream, turns, encoded.result(), arrived)

    def _begin(self, stream: Stream, turns: Sequence[Turn | None], requests: Sequence[Request], arrived: float) -> None:
        """Send the requests to the engine. If that fails, the stream fails, and nothing of it stays."""
        try:
            for index, (handle, turn, request) in enumerate(zip(stream.handles, turns, requests, strict=True)):
                stream.requests[request.id] = request
                stream.tally.prompt_tokens += len(request.prompt)
                self._handles[request.id] = handle
                transcripts = self.front_end.open(request, index, turn)
                self._samples.open(handle, transcripts, stream, self.front_end)
                self.supervisor.send(Submit.of(handle, request, arrived))
                self._samples_sent += request.params.n
        except Exception:
            log.exception("%s could not be sent to the engine", stream)
            self.forget(stream, RequestFailed())

    async def known(self) -> None:
        """Wait until the model's limits are known, if it is loaded by its first request; do nothing for any other one.

        At most `max_waiting` bodies wait, each at most `request_timeout`. Raises Unavailable or RequestTimeout.
        """
        if self.info is not None or not self.on_demand:
            return
        if self._readers >= self.config.max_waiting:
            raise Unavailable("too many requests wait for this model's first load", "overloaded", 1)
        self._readers += 1
        try:
            async with asyncio.timeout(self.config.request_timeout):
                await asyncio.shield(self._load_task)  # opens the tokenizer
                if (refusal := self.supervisor.refusal) is not None:
                    raise refusal
                self.supervisor.wake()
                await asyncio.shield(self._loaded)
        except BaseException as error:
            self._has_read()
            if isinstance(error, TimeoutError):
                raise RequestTimeout("the model was not loaded within the request's timeout") from None
            raise
        self._loop.call_later(READ_S, self._has_read)

    def _has_read(self) -> None:
        self._readers -= 1
        self._stay_asleep()
        self.pool.advance()

    def _stay_asleep(self) -> None:
        """Take back the claim to a place once no request needs it."""
        if not self._readers and not self.supervisor.held and self.pool.forgo(self):
            self.supervisor.stay_asleep()

    @property
    def model(self) -> str:
        """The model's name in answers."""
        return self.names[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model: those that were given, or its own."""
        return self.config.names or (self.info.model if self.info else model_name(self.config.model),)

    @property
    def front_end(self) -> FrontEnd:
        """The model's tokenizer and templates. Raises Unavailable while the model loads."""
        if self._front_end is None:
            raise self.supervisor.refusal or Unavailable(self.reason, self.state)
        return self._front_end

    @property
    def waiting(self) -> int:
        """Samples that the engine has not begun: those in its queue, those not yet taken from the inbox, and those
        whose prompt is being encoded."""
        return self._queued + self._samples_sent - self._samples_taken + self.encoding

    @property
    def encoding(self) -> int:
        """Samples whose prompt is being encoded."""
        return sum([stream.samples for stream in self._beginnings])

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
        """Estimate the whole seconds until `surplus` samples have ended and made room for as many others.

        It is never more than the request timeout: by then, every request waiting now has ended in some way.
        """
        return math.ceil(min(max(self._rate.seconds_for(surplus), 1.0), max(self.config.request_timeout, 1.0)))

    # -- endings ------------------------------------------------------------------------------------------------------

    def _expire(self, stream: Stream, late: RequestTimeout) -> None:
        """End a request whose time ran out while the engine was inside a long step."""
        self.counts.timed_out += stream.unfinished
        self._cancel(stream, "timeout")
        self._close(stream, late)

    def _end(self, stream: Stream, reason: str, otherwise: Exception) -> None:
        """Have the engine end a request whose client still waits: its last deltas carry `reason`, usage and times.

        If the engine is busy for longer than LAST_WORD_S, the stream fails with `otherwise`.
        """
        self._cancel(stream, reason)
        if stream.timer is not None:
            stream.timer.cancel()
        stream.timer = self._loop.call_later(LAST_WORD_S, self._close, stream, otherwise)

    def forget(self, stream: Stream, error: Exception) -> None:
        """Have the engine end a request whose client has left. Do nothing if it has ended already."""
        if stream.handles[0] not in self._streams:
            return
        self.counts.abandoned += isinstance(error, ClientGone) and stream.unfinished > 0
        self._cancel(stream, "cancelled")
        self._close(stream, error)

    def _cancel(self, stream: Stream, reason: str) -> None:
        """Have the engine end the requests that it was sent."""
        for name in stream.ids:
            if (handle := self._handles.get(name)) is None:
                continue
            if self.supervisor.withdraw(handle):
                self._samples_sent -= stream.requests[name].params.n
                self._stay_asleep()
                continue
            try:
                self.supervisor.send(Cancel(handle, reason))
            except Exception:  # the stream has to end all the same
                log.exception("%s could not be cancelled", stream)

    def _close(self, stream: Stream, error: Exception | None) -> None:
        """Forget a stream; with an error, fail it."""
        self.meter.leave(stream, error)
        for job in self._beginnings.pop(stream, ()):
            job.cancel()
        for name, handle in zip(stream.ids, stream.handles, strict=True):
            self._streams.pop(handle, None)
            self.front_end.close(name)
            if self._handles.pop(name, None) is not None:
                self._samples.close(handle, stream.requests[name].params.n)
        if not self._streams:
            self._nothing_runs.set()
            self.supervisor.idle_since = time.monotonic()
        self.pool.used(self)
        self.pool.advance()
        if stream.timer is not None:
            stream.timer.cancel()
        if error is not None:
            stream.fail(error)

    def _end_sample(self, request_id: str, index: int, reason: str) -> Iterable[Output]:
        """End a sample in which the front end found a stop string, or the end of its calls.

        Its last output comes with a later report.
        """
        self.supervisor.send(Cancel(self._handles[request_id], reason, index))
        return ()

    # -- the engine's messages, delivered on the event loop -----------------------------------------------------------

    def receive(self, message: EngineMessage) -> None:
        if not isinstance(message, Report):
            self.outbox.settle()
            self._deliver_news()  # of the reports before it
        match message:
            case Report():
                self._on_report(message)
            case Watched():
                self.watchers.read(message)
            case Loading():
                self.supervisor.loading(message.stage)
            case Loaded():
                self._on_loaded(message.info, message.metrics)
            case LoadFailed():
                self._on_load_failed(message.failure)
            case SelfChecked():
                self.counts.self_checks += 1
                self.counts.failed_self_checks += not message.passed
            case EngineFailed():
                self.supervisor.lose(f"the engine stopped: {message.failure.why}")

    def _on_loaded(self, info: ModelInfo, metrics: Metrics) -> None:
        self.info, self.metrics = info, metrics
        if self._front_end is None:
            self._front_end = FrontEnd(
                self._tokenizer,
                info.limits,
                self.model,
                self._end_sample,
                tool_format=self.config.tool_format,
                all_schemas=self.config.tool_schemas == "all",
                max_tool_calls=self.config.max_tool_calls,
            )
            spare_what_stays(self)  # a pause that no request should meet
        self._front_end.limits = info.limits  # another engine may have found less memory
        self.supervisor.loaded()
        self.watchers.begin()
        self.pool.begins(self)
        if not self._loaded.done():
            self._loaded.set_result(info)

    def _on_load_failed(self, failure: Failure) -> None:
        """Give up if no load has succeeded yet: the operator has to mend the settings."""
        reason = f"the model could not be loaded: {failure.why}"
        if self.info is not None or (self.on_demand and self.supervisor.started):
            self._loaded, failed = self._loop.create_future(), self._loaded
            self.supervisor.lose(reason)
            if not failed.done():
                failed.set_exception(Unavailable(reason, self.state, 1))
                failed.exception()  # read here, in case no request waits
            return
        self.supervisor.give_up(reason)
        self._loaded.set_exception(failure.error() or RuntimeError(reason))
        self._loaded.exception()  # read here, in case it is not awaited

    def _lose_all(self, error: Unavailable) -> None:
        """Fail all requests: their engine is gone, and what it had to do with it."""
        for stream in set(self._streams.values()):
            self._close(stream, error)
        self._forget_engine()

    # -- as a member of the pool --------------------------------------------------------------------------------------

    @property
    def working(self) -> bool:
        return self.supervisor.loads or self._readers > 0 or len(self._handles) > self.supervisor.held

    @property
    def loaded_now(self) -> bool:
        """Whether it has a place in memory."""
        return self in self.pool.loaded

    @property
    def load_s(self) -> float:
        return self.supervisor.load_s

    def load(self, share: tuple[int, int]) -> None:
        if self._front_end is not None:
            self._front_end.return_to_work()
        self.supervisor.load(share)

    def sleep(self) -> None:
        self.supervisor.sleep()

    def take_turns(self, yields: bool) -> None:
        self.supervisor.take_turns(yields)

    def _claim(self) -> None:
        self.pool.claim(self)

    def _rest(self) -> None:
        """Take as little memory as possible while the engine sleeps."""
        self._forget_engine()
        if self._front_end is not None:
            self._front_end.rest()
        give_back_host_memory()
        self.pool.leave(self)

    # -- the engine's end ---------------------------------------------------------------------------------------------

    def _forget_engine(self) -> None:
        """Note that no engine has work."""
        self.metrics = dataclasses.replace(self.metrics, waiting=0, active=0, cache=None)
        self._samples_sent = self._samples_taken = self._queued = self._requests = 0
        self.watchers.lose()

    def _on_report(self, report: Report) -> None:
        self.supervisor.reported(report)
        self.metrics = report.metrics or self.metrics
        self._samples_taken, self._queued = report.samples_taken, report.waiting
        self._turns, self._requests = report.turn, report.requests
        self._rate.record(report.step_s, report.ended)
        for handle in report.accepted:
            if stream := self._streams.get(handle):
                stream.accept(handle)
        for handle, failure in report.refused:
            if stream := self._streams.get(handle):
                self._cancel(stream, "cancelled")  # the other requests of its body
                self._close(stream, failure.error() or RequestFailed())
        news = self._samples.read(report)
        self.meter.report(news.deltas, report.step_s, report.metrics, news.plain)
        if not self._fresh:
            self._loop.call_soon(self._deliver_news)
        self._fresh |= news.streams

    def _deliver_news(self) -> None:
        """Deliver what all reports at hand have brought.

        A front end that lags behind the engine finds several: a stream's tokens are then written together, still as an
        event each, and writing costs less the further it lags. The system call is half of a token's time here, so steps
        of many streams leave by the outbox.
        """
        if not self._fresh or self.outbox.delays(self._deliver_news):
            return
        fresh, self._fresh = self._fresh, {}
        with self.outbox.gather(len(fresh)):
            for stream in fresh:
                if stream.handles[0] in self._streams:
                    self._deliver(stream)

    def _deliver(self, stream: Stream) -> None:
        try:
            stream.deliver()
        except Exception:  # a bug in a protocol's encoder ends this one answer
            log.exception("%s: the answer could not be written", stream)
            self.forget(stream, RequestFailed())
            return
        if stream.ended:
            self._close(stream, None)
        elif stream.buffered > self.config.max_buffered:
            stream.stall()
