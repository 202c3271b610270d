"""The tier of the prefix index in host memory: pages that a GPU's pool gives up, and their way back.

    publish ─▶ save: a page gets its key
    next to be evicted ─▶ keep: a copy out, to a place of host memory ─▶ with files: the writing thread
    a sequence is next ─▶ a Return: pages of the pool, held ─▶ copies back, as places are there or have been read
                                                             ─▶ they enter the index, and the sequence hits them

The engine's thread makes all calls and launches all copies; it never waits for one. A page that could not be copied in
time, because a step took more pages than `keep` has seen or because every place is in use, is lost and computed again.

Places are used in exact LRU order. Copying a page, hitting it in the pool and copying it back all make it the most
recently used, and of a path the beginning last: so paths lose their ends first, as in the pool and in files.

A GPU computes thousands of pages per second, and each of them passes here. So what is known by page is in lists, and
calls take columns of pages: no object per page, and no key is computed twice.

The teaching twin is phases/p05_prefix_cache/tiers.py; this one adds copies that run next to the steps, copies that stay
when their pages have come back, and files.
"""

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gradus.cache.disk.names import Names, Trail
from gradus.cache.disk.tier import WORTH_TOKENS
from gradus.cache.host.copies import Copies, Copy
from gradus.cache.host.files import MISSING, PENDING, WHOLE, Files, Reading
from gradus.cache.host.slots import NO_PLACE, Slots
from gradus.cache.tier import Load, Tier
from gradus.cache.usage import DiskUsage, HostUsage

GRACE_S, TOKEN_S = 0.05, 50e-6
"""A load with files may take the first, and the second for each token that it has loaded. One that is slower than these
20,000 tokens per second ends, and the rest of the prompt is computed."""
POLL_S = 100e-6  # between two looks at copies, while there is nothing else to do
LANDING_S = 1.0  # for the copies under way at the end, whose pages go to files


class OutFlight(NamedTuple):
    """A copy out. number: one more than that of the copy before. orders: of the pages' files; 0 for none."""

    number: int
    copy: Copy
    pages: list[int]
    places: list[int]
    keys: list[bytes]
    orders: list[int]


class BackFlight(NamedTuple):
    """A copy back. end: the places of its load that are whole once it is done."""

    copy: Copy
    places: list[int]
    end: int


class Source(NamedTuple):
    """Where a page comes from: its place, and which of its load's files is read into it; None if it is there."""

    key: bytes
    place: int
    page: int
    file: int | None


@dataclass(slots=True, eq=False)
class Return:
    """Pages on their way back.

    sources: for each place of the path that can come back. reading: the pages that come from files. opened: copies back
    may be launched. launched: they were, for that many places.
    """

    count: int
    sources: list[list[Source]]
    reading: Reading | None = None
    opened: bool = False
    launched: int = 0
    loaded: int = 0
    done: bool = False
    flights: deque[BackFlight] = field(default_factory=deque)
    began: float = field(default_factory=time.monotonic)

    def state(self, source: Source) -> int:
        """Whether a page is in its place: PENDING, WHOLE or MISSING."""
        return WHOLE if source.file is None or self.reading is None else self.reading.states[source.file]


class HostTier(Tier):
    """Keeps the pages of one engine in `places` places of host memory, and in files, if there are any.

    pages: the pool's number. ahead: as in `Tier`. worth: the fewest tokens of a sequence whose pages are kept: shorter
    ones are computed in no time. repeats: whether rows of a step under way are still to be run again; they may write to
    pages whose sequence has ended, and that a load has taken.
    """

    def __init__(
        self,
        names: Names,
        copies: Copies[Any],
        places: int,
        pages: int,
        page_size: int,
        ahead: int,
        files: Files | None = None,
        worth: int = WORTH_TOKENS,
        repeats: Callable[[], bool] = lambda: False,
    ) -> None:
        self._names, self._copies, self._files, self._page_size = names, copies, files, page_size
        self.ahead, self._worth, self._repeats = ahead, worth, repeats
        self.slots = Slots(places)
        self._keys: list[bytes | None] = [None] * (pages + 1)  # by page: its key, while the index has it
        self._orders = [0] * (pages + 1)  # by page: the order of its file; 0 if it gets none
        self._leaving = [0] * (pages + 1)  # by page: the number of its newest copy out; 0 for none
        self._out: deque[OutFlight] = deque()
        self._landed = 0  # the number of the newest copy out that is done
        self._back: deque[BackFlight] = deque()  # of loads that were stopped
        self._late: list[tuple[Reading, int, int]] = []  # files still read for such loads, and their places
        self._load: Return | None = None
        self._before_load: Copy | None = None  # reads the pages that the load fills
        self.hit_positions = self.copied = self.lost = 0

    # -- pages go out --------------------------------------------------------------------------------------------------

    def trail(self, salt: Hashable, tables: Sequence[list[int]]) -> Trail:
        """Begin a sequence's path: behind its hit, if a page there has a key already."""
        for table in tables:
            if table and (key := self._keys[table[-1]]) is not None:
                return self._names.trail_after(key, len(table), time.time_ns())
        return self._names.trail(salt, time.time_ns())

    def save(self, trail: Trail, tokens: list[int], tables: Sequence[list[int]], end: int) -> None:
        first = trail.saved
        if end <= first or len(tokens) < self._worth:
            return
        trail.saved, known = end, max(first, trail.start)  # a hit's pages have their keys
        self._names.extend(trail, tokens, end)
        for group, table in enumerate(tables):
            for page, key in zip(table[known:end], self._names.keys(trail, known, end, group), strict=True):
                if page:
                    self._keys[page] = key
        tables = [table[first:end] for table in tables]
        pages = [page for row in zip(*tables, strict=True) for page in row if page]
        self._touch(pages)
        if self._files is not None:
            for table in tables:
                for place, page in enumerate(table, first):
                    self._orders[page] = trail.order(place)
            self._save_in_files(self._files, pages)

    def _save_in_files(self, files: Files, pages: list[int]) -> None:
        """Copy pages out that no file has yet, as far as the writing thread keeps up. The others count as used."""
        room = self.slots.count // 2 - files.queued - sum(len(flight.pages) for flight in self._out)
        used, fresh = [], []
        for page in pages:
            key, order = self._keys[page], self._orders[page]
            if key is None:
                continue
            if key in files:
                used.append((key, order))
            elif room > 0 and files.wants(key):
                if key not in self.slots:
                    fresh.append(page)
                elif not self.slots.in_use(place := self.slots.place(key)):  # else it may not be filled yet
                    self._write(place, key, order)
                room -= 1
        files.touch(used)
        self.keep(fresh)
        self._touch(fresh)

    def _touch(self, pages: list[int]) -> None:
        """Count pages of a path, in its order, as used: its beginning last."""
        self.slots.touch([key for page in reversed(pages) if (key := self._keys[page]) is not None])

    def keep(self, pages: list[int]) -> None:
        named = [(page, key) for page in pages if (key := self._keys[page]) is not None]
        places = self.slots.enter([key for _, key in named])
        out = [(page, place, key) for (page, key), place in zip(named, places, strict=True) if place != NO_PLACE]
        for first in range(0, len(out), self._copies.at_once):
            self._launch(*map(list, zip(*out[first : first + self._copies.at_once], strict=True)))

    def _launch(self, pages: list[int], places: list[int], keys: list[bytes]) -> None:
        number = self._landed + len(self._out) + 1
        orders = [self._orders[page] for page in pages]
        self._out.append(OutFlight(number, self._copies.out(pages, places), pages, places, keys, orders))
        for page in pages:
            self._leaving[page] = number
        self.copied += len(pages)

    def evicted(self, pages: list[int]) -> None:
        self.lost += self.slots.missing([key for page in pages if (key := self._keys[page]) is not None])

    def taken(self, pages: list[int], load: bool) -> None:
        keys, leaving, newest = self._keys, self._leaving, self._landed
        for page in pages:
            keys[page] = None
            if leaving[page] > newest:
                newest = leaving[page]
            leaving[page] = 0
        copy = None if newest == self._landed else self._out[newest - self._landed - 1].copy
        if copy is not None:
            self._copies.fence(copy, steps=not load)  # earlier copies out have read their pages before it does
        if load:
            self._before_load = copy

    def discard(self, trail: Trail, tables: Sequence[list[int]], pages: Sequence[int]) -> None:
        keys = {key for page in pages if (key := self._keys[page]) is not None}
        for group in range(len(tables)):
            keys.update(self._names.keys(trail, max(trail.found, trail.start), trail.end, group))
        for key in keys:
            self.slots.remove(key)
            if self._files is not None:
                self._files.remove(key)
        for page in pages:
            self._keys[page] = None

    # -- pages come back -----------------------------------------------------------------------------------------------

    def find(
        self, trail: Trail, tokens: list[int], first: int, end: int, windows: Sequence[int | None]
    ) -> list[list[bool]]:
        """Look pages up as `Tier` says. Computes keys as far as pages are found, and at most as many again."""
        found, files = [list[bool]() for _ in windows], self._files
        full = [there for there, window in zip(found, windows, strict=True) if window is None]
        start, count = first, 1
        while start < end and all(all(there) for there in full):
            to = min(start + count, end)
            self._names.extend(trail, tokens, to)
            for group, there in enumerate(found):
                keys = self._names.keys(trail, start, to, group)
                there += [key in self.slots or (files is not None and key in files) for key in keys]
            start, count = to, 2 * count
        return found

    def use(self, trail: Trail, starts: Sequence[int], end: int) -> None:
        for place in range(end - 1, min(starts) - 1, -1):
            for group, start in enumerate(starts):
                if place >= start:
                    self.slots.touch(self._names.keys(trail, place, place + 1, group))

    def load(self, trail: Trail, tables: Sequence[list[int]], first: int, end: int) -> Return:
        assert self._load is None, "one load at a time"
        self._load = load = Return(end - first, [])
        files: list[tuple[bytes, int, int]] = []
        for place in range(first, end):
            sources = self._sources(trail, tables, place, files)
            if sources is None:
                break
            load.sources.append(sources)
        if self._files is not None and files:
            self._files.touch([(key, order) for key, _, order in files])
            load.reading = self._files.read([key for key, _, _ in files], [place for _, place, _ in files])
        self.slots.touch([source.key for sources in reversed(load.sources) for source in sources])
        self._advance(load)
        return load

    def _open(self, load: Return) -> None:
        self._copies.open(self._newest_into({source.place for sources in load.sources for source in sources}))
        load.opened, load.began = True, time.monotonic()

    def _newest_into(self, places: set[int]) -> Copy | None:
        """Find the newest copy out under way that fills any of `places`."""
        for flight in reversed(self._out):
            if not places.isdisjoint(flight.places):
                return flight.copy
        return None

    def _sources(
        self, trail: Trail, tables: Sequence[list[int]], place: int, files: list[tuple[bytes, int, int]]
    ) -> list[Source] | None:
        """Reserve what a place of the path needs. Adds the files to read to `files`, by key, place and order.

        Returns None, and reserves nothing, if there is no room.
        """
        found, before = list[Source](), len(files)
        for group, table in enumerate(tables):
            if page := table[place]:
                (key,) = self._names.keys(trail, place, place + 1, group)
                source = self._source(key, page, trail.order(place), files)
                if source is None:
                    self.slots.done([source.place for source in found])
                    for key, _, _ in files[before:]:
                        self.slots.remove(key)
                    del files[before:]
                    return None
                found.append(source)
        for source in found:
            self._keys[source.page], self._orders[source.page] = source.key, 0
        return found

    def _source(self, key: bytes, page: int, order: int, files: list[tuple[bytes, int, int]]) -> Source | None:
        if key in self.slots:
            self.slots.use(place := self.slots.place(key))
            return Source(key, place, page, None)
        if self._files is None:  # it went for another page since it was found
            return None
        (place,) = self.slots.enter([key])
        if place == NO_PLACE:
            return None
        files.append((key, place, order))
        return Source(key, place, page, len(files) - 1)

    def _give_up(self, load: Return, sources: list[Source]) -> None:
        """Let go of places that no copy back was launched for. What was not read by now is forgotten."""
        for source in sources:
            if load.state(source) == WHOLE:
                self.slots.done([source.place])
            else:
                assert load.reading is not None and source.file is not None
                self.slots.remove(source.key)
                self._late.append((load.reading, source.file, source.place))

    def _advance(self, load: Return) -> None:
        """Launch copies back of places whose pages are in host memory by now, and see which copies are done.

        While files are read, half a full copy is the least: many small ones would keep the engine from its steps.
        """
        if not load.opened:
            if self._repeats():
                return
            self._open(load)
        ready, missing = self._ready(load)
        late = time.monotonic() - load.began > GRACE_S + TOKEN_S * self._page_size * ready
        if missing or late or ready == len(load.sources) or ready - load.launched >= self._copies.at_once // 2:
            self._launch_back(load, ready)
        if missing or (late and ready < len(load.sources)):
            self._end_at(load, ready)
        while load.flights and load.flights[0].copy.done:
            load.loaded = load.flights[0].end
            self.slots.done(load.flights.popleft().places)
        load.done = load.loaded == len(load.sources)

    def _ready(self, load: Return) -> tuple[int, bool]:
        """Count the places whose pages are in host memory by now, and see whether the next one lacks a page."""
        for ready in range(load.launched, len(load.sources)):
            states = [load.state(source) for source in load.sources[ready]]
            if PENDING in states:
                return ready, False
            if MISSING in states:
                return ready, True
        return len(load.sources), False

    def _end_at(self, load: Return, end: int) -> None:
        if load.reading is not None:
            load.reading.stopped = True
        for sources in load.sources[end:]:
            self._give_up(load, sources)
        del load.sources[end:]

    def _launch_back(self, load: Return, end: int) -> None:
        numbered = [(source, place) for place in range(load.launched, end) for source in load.sources[place]]
        at_once = self._copies.at_once
        for first in range(0, len(numbered), at_once):
            after = first + at_once
            some = [source for source, _ in numbered[first:after]]
            places = [source.place for source in some]
            copy = self._copies.back(places, [source.page for source in some])
            load.flights.append(BackFlight(copy, places, numbered[after][1] if after < len(numbered) else end))
        load.launched = end

    def stop(self, load: Load) -> None:
        assert isinstance(load, Return)
        if load.flights:  # what is launched from now on waits for them, so their pages are as good as there
            self._copies.fence(load.flights[-1].copy)
            self._back += load.flights
        if self._before_load is not None and load.launched < load.count:
            self._copies.fence(self._before_load)  # the pages that are left go to others
        self._count_hits(load)
        load.loaded = load.launched
        self._end_at(load, load.launched)
        load.done, self._load = True, None

    def _count_hits(self, load: Return) -> None:
        hit = load.sources[: load.launched]
        self.hit_positions += len(hit) * self._page_size
        if self._files is not None:
            self._files.hit_positions += self._page_size * sum(
                any(source.file is not None for source in sources) for sources in hit
            )

    def wait(self, load: Load, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not load.done and time.monotonic() < ends:
            time.sleep(POLL_S)
            self.settle()

    # -- copies are done -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        self._settle_out()
        while self._back and self._back[0].copy.done:
            self.slots.done(self._back.popleft().places)
        if self._late:
            pending = [reading.states[file] == PENDING for reading, file, _ in self._late]  # threads go on meanwhile
            self.slots.done([late[2] for late, wait in zip(self._late, pending, strict=True) if not wait])
            self._late = [late for late, wait in zip(self._late, pending, strict=True) if wait]
        if self._files is not None:
            self.slots.done(self._files.written())
        if self._load is not None:
            self._advance(self._load)

    def _settle_out(self) -> None:
        while self._out and self._out[0].copy.done:
            self._landed_out(self._out.popleft())

    def _landed_out(self, flight: OutFlight) -> None:
        self._landed = flight.number
        if self._files is not None:
            for place, key, order in zip(flight.places, flight.keys, flight.orders, strict=True):
                if order and self.slots.holds(place, key) and self._files.wants(key):  # else it was discarded
                    self._write(place, key, order)
        self.slots.done(flight.places)

    def _write(self, place: int, key: bytes, order: int) -> None:
        assert self._files is not None
        self.slots.use(place)
        self._files.write(key, place, order)

    def start(self) -> None:
        if self._files is not None:
            self._files.start()

    def close(self) -> None:
        """Write to files what is on its way there, for a while, and give host memory back."""
        if self._files is not None:
            self._wait_for_copies_out(LANDING_S)
            self._files.close()
        self._copies.close()

    def _wait_for_copies_out(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        with suppress(RuntimeError):  # a device that has failed copies nothing any more
            while self._out and time.monotonic() < ends:
                self._settle_out()
                time.sleep(POLL_S)

    # -- the books -----------------------------------------------------------------------------------------------------

    @property
    def disk_usage(self) -> DiskUsage | None:
        return None if self._files is None else self._files.usage

    @property
    def host_usage(self) -> HostUsage:
        return HostUsage(
            pages=len(self.slots),
            most_pages=self.slots.count,
            page_bytes=self._copies.page_bytes,
            hit_positions=self.hit_positions,
            copied_pages=self.copied,
            evictions=self.slots.evictions,
            lost=self.lost,
        )

    def check(self) -> None:
        self.slots.check()
        numbers = [flight.number for flight in self._out]
        assert numbers == list(range(self._landed + 1, self._landed + 1 + len(numbers))), "a copy out is lost"
        assert max(self._leaving) <= self._landed + len(numbers), "a page leaves with a copy that does not exist"
