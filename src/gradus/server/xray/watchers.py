"""The clients that watch an engine, and their events.

The engine's messages arrive at most ten times per second. Each becomes one event, encoded once for all
watchers; the names of requests are added once for every key that watches. A watcher that does not keep up skips
events, and then gets the whole picture again: nothing piles up for it.

When the last watcher leaves, the engine stops looking at itself. All of this runs on the event loop.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from gradus.server.engine.messages import Watch, Watched
from gradus.server.failures import Unavailable
from gradus.server.xray.picture import Picture
from gradus.server.xray.trace import trace

log = logging.getLogger(__name__)

MOST_WATCHERS = 16
MOST_OF_A_KEY = 4
MOST_KNOWN = 8192
HEARTBEAT_S = 1.0  # between two events, if the engine has nothing to show
AGAIN_S = 5  # until a client that found no room may ask again


_json = msgspec.json.Encoder().encode


def encode(content: Any) -> bytes:
    """Encode JSON in ASCII: some clients split lines at characters that JSON leaves as they are. Only a model's name
    or a reason can hold one."""
    text = _json(content)
    return text if text.isascii() else json.dumps(msgspec.json.decode(text)).encode()


class Owner(NamedTuple):
    """A running or waiting sample: the name of its sender's key, its request's id and its number there."""

    key: str
    request_id: str
    sample: int

    @property
    def name(self) -> str:
        return self.request_id if not self.sample else f"{self.request_id}/{self.sample}"


class Engine(Protocol):
    """The engine, as its watchers see it."""

    @property
    def state(self) -> str:
        """As /health reports it."""

    @property
    def reason(self) -> str: ...

    @property
    def watchable(self) -> bool:
        """Whether the engine takes commands now."""

    def send(self, command: Watch) -> None: ...

    def owner(self, handle: int) -> Owner | None:
        """Return a sample's owner; None for one that has left."""

    def described(self) -> dict[str, Any]:
        """Describe the engine, for the first event."""

    def numbers(self) -> dict[str, Any]:
        """Counts and rates to show."""


class Watcher:
    """A client that watches. key: it may see the names of this key's requests. skipped: events that it missed.

    Take an event when the one before has been written.
    """

    def __init__(self, watchers: "Watchers", key: str) -> None:
        self.key = key
        self.skipped = 0
        self._watchers = watchers
        self._next: bytes | None = None
        self._left = False
        self._behind = True  # it needs the whole picture
        self._news = asyncio.Event()

    def offer(self, event: bytes) -> None:
        """Hand over the next event. If the one before has not been taken, both are dropped for the whole picture."""
        if self._next is not None:
            self._behind, self._next = True, None
        if self._behind:
            self.skipped += 1
        else:
            self._next = event
        self._news.set()

    def wake(self) -> None:
        self._news.set()

    def leave(self) -> None:
        """End its events: the client has left."""
        self._left = True
        self._news.set()

    async def next(self) -> bytes | None:
        """Wait for the next event; None once there will be none."""
        while not (self._watchers.closed or self._left):
            if self._behind:
                self._behind = False
                return self._watchers.whole(self.key)
            if self._next is not None:
                event, self._next = self._next, None
                return event
            self._news.clear()
            await self._news.wait()
        return None


class Watchers:
    """All watchers of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.closed = False
        self._engine = engine
        self._picture = Picture()
        self._watchers: list[Watcher] = []
        self._whole: bytes | None = None  # of the newest picture, without names
        self._known: dict[int, Owner] = {}  # the owners of samples that were seen, for the trace
        self._told: tuple[str, str] = ("", "")  # the state and its reason, as the newest event had them
        self._last = 0.0  # when the newest event was made
        self._heart: asyncio.Task[None] | None = None

    # -- coming and going ----------------------------------------------------------------------------------------------

    def add(self, key: str) -> Watcher:
        """Begin to watch. Raises Unavailable if too many do."""
        own = sum(watcher.key == key for watcher in self._watchers)
        if self.closed or len(self._watchers) >= MOST_WATCHERS or (key and own >= MOST_OF_A_KEY):
            raise Unavailable(self._refusal(own), "overloaded", AGAIN_S)
        watcher = Watcher(self, key)
        self._watchers.append(watcher)
        if len(self._watchers) == 1:
            self.begin()
            self._heart = asyncio.get_running_loop().create_task(self._beat())
        return watcher

    def _refusal(self, own: int) -> str:
        if self.closed:
            return self._engine.reason
        if own >= MOST_OF_A_KEY:
            return f"this API key watches {own} times already, and at most {MOST_OF_A_KEY} at once"
        return f"{len(self._watchers)} clients watch already, and at most {MOST_WATCHERS} at once"

    def remove(self, watcher: Watcher) -> None:
        """End watching. The last one to leave ends the engine's looks at itself."""
        self._watchers.remove(watcher)
        if not self._watchers:
            if self._heart is not None:
                self._heart.cancel()
            if self._engine.watchable:
                self._engine.send(Watch(on=False))
            self._reset()

    def begin(self) -> None:
        """Have the engine show itself, if it is there and somebody watches: also after another start."""
        self._reset()
        if self._watchers and self._engine.watchable:
            self._engine.send(Watch(on=True))

    def lose(self) -> None:
        """The engine is gone, and what it showed."""
        self._reset()
        self._catch_up()

    def close(self) -> None:
        """End all watching."""
        self.closed = True
        for watcher in self._watchers:
            watcher.wake()

    def _reset(self) -> None:
        self._picture, self._whole, self._known = Picture(), None, {}

    def _catch_up(self) -> None:
        """Give every watcher the whole picture: no change leads from the last event to it."""
        for watcher in self._watchers:
            watcher._behind, watcher._next = True, None
            watcher.wake()

    # -- events --------------------------------------------------------------------------------------------------------

    def read(self, message: Watched) -> None:
        """Show what the engine has looked like."""
        if not self._watchers:
            return  # the last one has just left
        try:
            self._picture.read(message)
        except ValueError:
            log.exception("the engine has shown something that cannot be read")
            return
        self._whole = None
        self._send(self._picture.change())
        self._remember()

    def _send(self, content: dict[str, Any]) -> None:
        """Encode an event once, and the names once for each key."""
        self._last, self._told = time.monotonic(), (self._engine.state, self._engine.reason)
        shared = encode(self._state() | content)
        owners = self._owners()
        events: dict[str, bytes] = {}
        for watcher in self._watchers:
            if watcher.key not in events:
                events[watcher.key] = _joined(shared, named(owners, watcher.key))
            watcher.offer(events[watcher.key])

    def whole(self, key: str) -> bytes:
        """Make the event that needs none before it."""
        if self._whole is None:
            self._whole = encode(self._state() | {"whole": True, "about": self._engine.described()} | self._shown())
        return _joined(self._whole, named(self._owners(), key))

    def _shown(self) -> dict[str, Any]:
        return self._picture.whole() if self._picture.began else {}

    def _state(self) -> dict[str, Any]:
        return {"state": self._engine.state, "reason": self._engine.reason, "numbers": self._engine.numbers()}

    def _remember(self) -> None:
        """Keep the owners of samples that a trace names, also once they have left."""
        handles = [*self._picture.handles, *(each.handle for each in self._picture.queue)]
        for handle in handles:
            if handle not in self._known and (owner := self._engine.owner(handle)) is not None:
                self._known[handle] = owner
        if len(self._known) > MOST_KNOWN:
            kept = {handle for *_, handle in self._picture.events}.union(handles)
            self._known = {handle: owner for handle, owner in self._known.items() if handle in kept}

    def _owners(self) -> tuple[list[Owner | None], list[Owner | None]]:
        of = self._engine.owner
        return list(map(of, self._picture.handles)), [of(each.handle) for each in self._picture.queue]

    async def _beat(self) -> None:
        """Show every state of the engine, also while it shows nothing itself; a connection that is gone is noticed."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            changed = self._told != (self._engine.state, self._engine.reason)
            if changed or time.monotonic() - self._last >= HEARTBEAT_S:
                self._whole = None
                self._send({})

    # -- in one piece --------------------------------------------------------------------------------------------------

    @property
    def has_picture(self) -> bool:
        return self._picture.began > 0

    def tracer(self, key: str, model: str) -> Callable[[], dict[str, Any]]:
        """Return a function that makes a trace of the last steps, for another thread: it has its own copy of them.

        A key's own requests have names, except those that came and went between two looks.
        """
        steps, events = list(self._picture.steps), list(self._picture.events)
        names = {handle: owner.name for handle, owner in self._known.items() if owner.key == key}
        return partial(trace, steps, events, names, model)


def named(owners: tuple[Sequence[Owner | None], Sequence[Owner | None]], key: str) -> dict[str, dict[int, str]]:
    """Return the names of a key's samples, by their place among the rows and in the queue."""
    rows, queue = (
        {place: owner.name for place, owner in enumerate(each) if owner is not None and owner.key == key}
        for each in owners
    )
    return {"rows": rows, "queue": queue}


def _joined(shared: bytes, own: dict[str, dict[int, str]]) -> bytes:
    """Add a key's own part to the shared one: one JSON object."""
    return shared[:-1] + b',"own":' + encode(own) + b"}"
