"""A device whose work is late: steps, copies out and copies back are three streams, run in any order that is allowed.

The stand-in for tensors, over such a device, sees what steps and copies really read. So a copy that does not wait for
what it must wait for moves another sequence's numbers, and a later query notices.
"""

import random
from collections import deque
from collections.abc import Callable

from gradus.cache.paged import PagedCache
from tests.cache.memory import Memory, Sequence


class Event:
    """A point in a stream. done: whether all before it has run."""

    def __init__(self, stream: "deque") -> None:
        self.stream, self.done = stream, False

    def reach(self) -> None:
        self.done = True


class Device:
    """Streams of work: functions, and events of other streams to wait for."""

    def __init__(self) -> None:
        self.steps, self.out, self.back = (deque[Callable[[], None] | Event]() for _ in range(3))

    @property
    def streams(self) -> tuple[deque, ...]:
        return self.steps, self.out, self.back

    def record(self, stream: deque) -> Event:
        event = Event(stream)
        stream.append(event.reach)
        return event

    def wait(self, stream: deque, event: Event) -> None:
        if event.stream is not stream:
            stream.append(event)

    def _next(self, stream: deque) -> bool:
        """Run the next piece of a stream. False if it must wait."""
        work = stream[0]
        if isinstance(work, Event):
            if not work.done:
                return False
            stream.popleft()
            return True
        stream.popleft()
        work()
        return True

    def turn(self, draw: random.Random) -> None:
        """Run some stream's next piece, if any can go on."""
        for stream in draw.sample(self.streams, 3):
            if stream and self._next(stream):
                return

    def finish(self, event: Event) -> None:
        """Run what an event needs, and nothing else: all other work is as late as it may be."""
        while not event.done:
            work = event.stream[0]
            if isinstance(work, Event):
                self.finish(work)
            self._next(event.stream)

    def drain(self) -> None:
        for stream in self.streams:
            if stream:
                self.finish(self.record(stream))


class LateMemory(Memory):
    """The memory as the device's steps see it, whenever they run."""

    def __init__(self, device: Device, page_size: int, windows: tuple[int | None, ...]) -> None:
        super().__init__(page_size, windows)
        self.device = device

    def write(self, tables, tokens, salt, start, end, poisoned=False) -> None:
        tokens, write = list(tokens), super().write
        self.device.steps.append(lambda: write(tables, tokens, salt, start, end, poisoned))

    def read(self, tables, tokens, salt, start, end) -> None:
        tokens, read = list(tokens), super().read
        self.device.steps.append(lambda: read(tables, tokens, salt, start, end))

    def wipe(self, pages) -> None:
        wipe = super().wipe
        self.device.steps.append(lambda: wipe(pages))


class LateCopy:
    def __init__(self, used: Event, landed: Event) -> None:
        self.used, self.landed = used, landed

    @property
    def done(self) -> bool:
        return self.landed.done


class LateCopies:
    """Copies between the cells of a `LateMemory` and places of the host."""

    page_bytes = 1

    def __init__(self, device: Device, memory: LateMemory, at_once: int) -> None:
        self.device, self.memory, self.at_once = device, memory, at_once
        self.places: dict[int, list] = {}

    def _cells(self, page: int) -> list[tuple[int, int]]:
        return [(page, offset) for offset in range(self.memory.page_size)]

    def out(self, pages, places) -> LateCopy:
        assert len(pages) == len(places) <= self.at_once
        out, staging = self.device.out, {}

        def gather():
            staging.update((page, [self.memory.cells.get(cell) for cell in self._cells(page)]) for page in pages)

        def land():
            self.places.update((place, staging[page]) for page, place in zip(pages, places, strict=True))

        out.append(gather)
        used = self.device.record(out)
        out.append(land)
        return LateCopy(used, self.device.record(out))

    def back(self, places, pages) -> LateCopy:
        assert len(pages) == len(places) <= self.at_once
        back, staging = self.device.back, {}

        def fetch():
            staging.update((place, self.places[place]) for place in places)

        def scatter():
            for place, page in zip(places, pages, strict=True):
                self.memory.cells.update(zip(self._cells(page), staging[place], strict=True))

        back.append(fetch)
        back.append(scatter)
        landed = self.device.record(back)
        return LateCopy(landed, landed)

    def open(self, after) -> None:
        self.device.wait(self.device.back, self.device.record(self.device.steps))
        if after is not None:
            self.device.wait(self.device.back, after.landed)

    def fence(self, copy, *, steps=True) -> None:
        for stream in self.device.streams[0 if steps else 1 :]:
            self.device.wait(stream, copy.used)

    def view(self, place):
        raise NotImplementedError("there are no files here")

    def close(self) -> None:
        self.device.drain()


class LateSequence(Sequence):
    """A sequence with steps under way: it publishes what a step has stored once that step is committed."""

    def __init__(self, cache: PagedCache, memory: LateMemory, id, tokens, salt=None) -> None:
        super().__init__(cache, memory, id, tokens, salt)
        self.device, self.under_way = memory.device, deque[tuple[Event, int]]()

    def launch(self, count: int, poisoned: bool = False) -> bool:
        if not self.step(count, publish=False, poisoned=poisoned):
            return False
        self.under_way.append((self.device.record(self.device.steps), self.stored))
        return True

    def commit(self) -> None:
        """Wait for the oldest step under way, and publish."""
        if self.under_way:
            event, stored = self.under_way.popleft()
            self.device.finish(event)
            self.cache.publish(self.id, self.tokens, stored)
