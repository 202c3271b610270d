"""Results as they arrive, or the error that ended them.

A Stream lives on the event loop: the client fills it from the engine's reports, and the request's handler empties it.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from gradus.engine.logprobs import NO_LOGPROBS, Logprobs
from gradus.engine.request import Request
from gradus.server.failures import ClientGone, Unavailable
from gradus.server.measures import Counts, SampleTally, Tally
from gradus.text.completion import Completion, Delta
from gradus.text.stream import Written
from gradus.text.transcript import Transcript

Sink = Callable[[Sequence[Delta]], bool]
"""Takes results at once. Returns False without room: then they wait for `Stream.receive`."""


@dataclass(frozen=True, slots=True)
class Template:
    """A frame of one sample that differs from its other frames only in one token: before, write(text, token), after.

    write: a module's function, because what it writes of each token is kept for all requests.
    """

    before: bytes
    write: Callable[[str, int], bytes]
    after: bytes


@dataclass(slots=True, eq=False)
class Lane:
    """A sample's plain tokens, from the engine's report to the connection without an object for each.

    tally: the sample's. before, after: the bytes around what `written` has of a token, in a frame of the answer.
    new: the middles of the frames that are to be delivered; their tokens are the last ones of `transcript.unread`.
    """

    transcript: Transcript
    tally: SampleTally
    before: bytes
    written: Written
    after: bytes
    new: list[bytes] = field(default_factory=list)

    def frames(self) -> list[bytes]:
        """Return the parts of the new frames, and have none left."""
        if len(self.new) == 1:
            parts = [self.before, self.new.pop(), self.after]
        else:
            parts = [part for middle in self.new for part in (self.before, middle, self.after)]
            self.new.clear()
        return parts

    def deltas(self) -> list[Delta]:
        """Return a delta for each new token, and have none left."""
        transcript, tokens = self.transcript, self.transcript.unread[-len(self.new) :]
        self.new.clear()
        place = transcript.request.id, transcript.prompt_index, transcript.index
        return [Delta(*place, transcript.spelled(token), (token,), NO_LOGPROBS) for token in tokens]


LaneSink = Callable[[Sequence[Lane]], bool]
"""Writes the new frames of lanes at once. Returns False without room: then they become deltas."""


class Stream:
    """The results of one body as they arrive, from its one request or from several.

    ids, handles: the requests', in the engine. samples: of all requests. Cancel the stream, or read it until `done`:
    nothing else ends its requests in the engine.
    requests: the ones accepted by the engine; complete once `accepted` returns. tally: their use so far.
    buffered: tokens that wait to be received. sink: if set, it is offered results before they wait.
    templates: by prompt's and sample's index, those of the samples that may have a lane. lane_sink: writes those.
    on_end: if set, it is called with each sample's completion. error: what ended the stream before its samples' ends.
    whole: deliver only endings, and drop everything else. apart: a failed sample leaves the others to their ends.
    name: the body's id in the log. key: the name of the sender's API key; "" without keys.
    """

    def __init__(
        self,
        ids: Sequence[str],
        handles: Sequence[int],
        samples: int,
        forget: "Callable[[Stream, Exception], None]",
        counts: Counts,
        name: str = "",
    ) -> None:
        self.ids = tuple(ids)
        self.handles = tuple(handles)
        self.name = name
        self.key = ""
        self.samples = samples
        self.tally = Tally(samples)
        self.requests: dict[str, Request] = {}
        self.done = False  # every sample's last delta has been received
        self.unfinished = samples
        self.buffered = 0
        self.whole = False
        self.apart = False
        self._stalled = False
        self.sink: Sink | None = None
        self.templates: dict[tuple[int, int], Template] = {}
        self.lane_sink: LaneSink | None = None
        self.on_end: Callable[[Completion], None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._forget = forget
        self._counts = counts
        self._deltas: list[Delta] = []
        self._lanes: list[Lane] = []  # with new frames, which follow the deltas
        self._error: Exception | None = None
        self._unaccepted = set(handles)
        self._news = asyncio.Event()

    def __str__(self) -> str:
        """Name the request in the log: by the id of its answer, and the engine's."""
        return f"request {self.name or self.ids[0]}" + (f" ({', '.join(self.ids[:1])})" if self.name else "")

    async def accepted(self, timeout: float | None = None) -> None:
        """Wait until the engine has checked all requests, at most `timeout` seconds. Raises RequestError, or any error
        of `receive`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._unaccepted and self._error is None:
                    await self._wait(None)
        if self._error is not None:
            raise self._error

    async def receive(self, timeout: float | None = None) -> list[Delta]:
        """Return the deltas since the last call, or wait for some; [] if none arrive within `timeout` seconds.

        Several deltas of one sample are joined: a slow reader gets fewer, longer pieces. A sample's last delta carries
        its Completion. Raises Unavailable (the engine failed), RequestTimeout (the engine did not end the request in
        time), RequestFailed, or ClientGone (after `cancel`).
        """
        if not self._deltas and self._error is None:
            await self._wait(timeout)
        if self._error is not None:
            raise self._error
        deltas, self._deltas, self.buffered = self._deltas, [], 0
        if len(deltas) > 1:
            deltas, before = merged(deltas), len(deltas)
            self._counts.merged += before - len(deltas)
        self.done = self.unfinished == 0
        return deltas

    async def completions(self) -> list[Completion]:
        """Wait for every sample's completion, in order. Raises the same errors as `receive`."""
        self.whole = True
        found: dict[tuple[int, int], Completion] = {}
        while not self.done:
            for delta in await self.receive():
                if delta.completion is not None:
                    found[delta.prompt_index, delta.index] = delta.completion
        return [found[place] for place in sorted(found)]

    async def _wait(self, timeout: float | None) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            pass

    def cancel(self) -> None:
        """Cancel the requests. Call it at any time, any number of times."""
        self._forget(self, ClientGone("the request was cancelled"))

    def stall(self) -> None:
        """Cancel the requests of a client that does not read, and count it once."""
        self._counts.stalled += not self._stalled
        self._stalled = True
        self._forget(self, Unavailable("the client does not read its stream", "stalled"))

    @property
    def error(self) -> Exception | None:
        return self._error

    # -- called by the client -----------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether no further delta will arrive."""
        return self.unfinished == 0 or self._error is not None

    def accept(self, handle: int) -> None:
        self._unaccepted.discard(handle)
        if not self._unaccepted:
            self._news.set()

    def push(self, delta: Delta) -> None:
        """Add a delta. Call `deliver` once all deltas of the report have been added."""
        if self._lanes:
            self.end_lanes()
        if delta.completion is not None:
            self.unfinished -= 1
            if self.on_end is not None:
                self.on_end(delta.completion)
        elif self.whole:
            return
        self._deltas.append(delta)
        self.buffered += len(delta.token_ids)

    def push_lane(self, lane: Lane) -> None:
        """Note that a lane has a new frame, the first one since the last delivery."""
        self._lanes.append(lane)

    def end_lanes(self) -> None:
        """Make deltas of the lanes' new frames, so that others may follow."""
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            for delta in lane.deltas():
                self.push(delta)

    def deliver(self) -> None:
        """Hand the deltas to the sink, or else to `receive`, which gets those that end the last samples in any case."""
        if self._lanes:
            self._deliver_lanes()
            if not self._deltas:
                return
        now, last = self._deltas, list[Delta]()
        if not self.unfinished:
            now = [delta for delta in self._deltas if delta.completion is None]
            last = [delta for delta in self._deltas if delta.completion is not None]
        if now and self.sink is not None and self.sink(now):
            self._deltas, self.buffered = last, sum([len(delta.token_ids) for delta in last])
        if self._deltas:
            self._news.set()

    def _deliver_lanes(self) -> None:
        """Write the lanes' frames, unless older deltas wait: then they become deltas behind those."""
        if self._deltas or self.lane_sink is None or not self.lane_sink(self._lanes):
            self.end_lanes()
        else:
            self._lanes.clear()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._deltas.clear()
        self._lanes.clear()
        self._news.set()


JOINED = 16  # most deltas with log-probabilities to join: writing them takes 2 ms


def merged(deltas: Sequence[Delta]) -> list[Delta]:
    """Join the deltas of each sample, in the order in which the samples first appear; JOINED at a time, where each has
    log-probabilities."""
    parts: dict[tuple[int, int], list[Delta]] = {}
    for delta in deltas:
        parts.setdefault((delta.prompt_index, delta.index), []).append(delta)
    joined = []
    for each in parts.values():
        most = JOINED if each[0].logprobs else len(each)
        groups = [each[at : at + most] for at in range(0, len(each), most)]
        joined += [group[0] if len(group) == 1 else _joined(group) for group in groups]
    return joined


def _joined(deltas: Sequence[Delta]) -> Delta:
    first, last = deltas[0], deltas[-1]
    return Delta(
        first.request_id,
        first.prompt_index,
        first.index,
        "".join([delta.text for delta in deltas]),
        tuple(chain.from_iterable([delta.token_ids for delta in deltas])),
        Logprobs(tuple(chain.from_iterable([delta.logprobs.packed for delta in deltas]))),
        last.completion,
        first.prompt_logprobs,
    )
