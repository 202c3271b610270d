"""The tier of the prefix index in host memory: pages that a GPU's pool gives up, and their way back.

    publish ─▶ save: a page gets its name
    next to be evicted ─▶ keep: a copy out, to a place of host memory ─▶ with files: the writing thread
    a sequence is next ─▶ a Return: pages of the pool, held ─▶ copies back, as places are there or have been read
                                                             ─▶ they enter the index, and the sequence hits them

The engine's thread makes all calls and launches all copies; it never waits for one. A page that could not be copied in
time, because a step took more pages than `keep` has seen or because every place is in use, is lost and computed again.

Places are used in exact LRU order. Copying a page, hitting it in the pool and copying it back all make it the most
recently used, and of a path the beginning last: so paths lose their ends first, as in the pool and in files.
"""

import time
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gradus.cache.disk.names import Names, Trail
from gradus.cache.disk.tier import WORTH_TOKENS
from gradus.cache.host.copies import Copies, Copy
from gradus.cache.host.files import Files
from gradus.cache.host.slots import Slots
from gradus.cache.tier import Load, Tier
from gradus.cache.usage import DiskUsage, HostUsage

GRACE_S, TOKEN_S = 0.05, 50e-6
"""A load with files may take the first, and the second for each token that it has loaded. One that is slower than these
20,000 tokens per second ends, and the rest of the prompt is computed."""
POLL_S = 100e-6  # between two looks at a load, while there is nothing else to do


class Out(NamedTuple):
    """A page to copy out. order: of its file; 0 if it gets none."""

    page: int
    place: int
    name: str
    order: int


class OutFlight(NamedTuple):
    """A copy out. number: later copies have larger ones."""

    number: int
    copy: Copy
    pages: list[Out]


class BackFlight(NamedTuple):
    """A copy back. end: the places of its load that are whole once it is done."""

    copy: Copy
    places: list[int]
    end: int


class Source(NamedTuple):
    """Where a page comes from: its place, and the file that is read into it, if there is one."""

    name: str
    place: int
    page: int
    file: "Future[bool] | None"


@dataclass(slots=True, eq=False)
class Return:
    """Pages on their way back.

    sources: for each place of the path that can come back. launched: copies back were launched for that many.
    """

    count: int
    sources: list[list[Source]]
    launched: int = 0
    loaded: int = 0
    done: bool = False
    flights: deque[BackFlight] = field(default_factory=deque)
    began: float = field(default_factory=time.monotonic)


class HostTier(Tier):
    """Keeps the pages of one engine in `places` places of host memory, and in files, if there are any.

    pages: the pool's number. ahead: as in `Tier`.
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
    ) -> None:
        self._names, self._copies, self._files, self._page_size = names, copies, files, page_size
        self.ahead = ahead
        self.slots = Slots(places)
        self._named: list[str | None] = [None] * (pages + 1)  # by page: its name, while the index has it
        self._orders = [0] * (pages + 1)  # by page: the order of its file; 0 if it gets none
        self._out: deque[OutFlight] = deque()
        self._leaving: dict[int, OutFlight] = {}  # by page: the newest copy out that may not have read it yet
        self._back: deque[BackFlight] = deque()  # of loads that were stopped
        self._late: list[tuple[Future[bool], int]] = []  # files still read for such loads, and their places
        self._load: Return | None = None
        self._before_load: Copy | None = None  # reads the pages that the load fills
        self._number = 0
        self.hit_positions = self.copied = self.lost = 0

    # -- pages go out --------------------------------------------------------------------------------------------------

    def trail(self, salt: Hashable) -> Trail:
        return self._names.trail(salt, time.time_ns())

    def save(self, trail: Trail, tokens: list[int], tables: Sequence[list[int]], end: int) -> None:
        worth = self._files is not None and len(tokens) >= WORTH_TOKENS
        first = trail.saved if trail.worth == worth else 0
        trail.saved, trail.worth = end, worth
        if end <= first:
            return
        self._names.extend(trail, tokens, end)
        pages = []
        for place in range(end - 1, first - 1, -1):
            order = trail.order(place) if worth else 0
            for group, table in enumerate(tables):
                if page := table[place]:
                    self._named[page] = name = self._names.name(trail, place, group)
                    self._orders[page] = order
                    self.slots.touch(name)
                    pages.append(page)
        if worth:
            self._save_in_files(pages[::-1])

    def _save_in_files(self, pages: list[int]) -> None:
        """Copy pages out that no file has yet, as far as the writing thread keeps up. The others count as used."""
        files = self._files
        assert files is not None
        room = self.slots.count // 2 - files.queued - sum(len(flight.pages) for flight in self._out)
        used, fresh = [], []
        for page in pages:
            name, order = self._named[page], self._orders[page]
            assert name is not None
            if name in files:
                used.append((name, order))
            elif room > 0 and files.wants(name):
                if name not in self.slots:
                    fresh.append(page)
                elif page not in self._leaving:
                    self._write(self.slots.place(name), name, order)
                room -= 1
        files.touch(used)
        self.keep(fresh)

    def keep(self, pages: list[int]) -> None:
        out = []
        for page in pages:
            name = self._named[page]
            if name is not None and not self.slots.touch(name):
                place = self.slots.add(name)
                if place is not None:
                    out.append(Out(page, place, name, self._orders[page]))
        for first in range(0, len(out), self._copies.at_once):
            self._launch(out[first : first + self._copies.at_once])

    def _launch(self, out: list[Out]) -> None:
        self._number += 1
        copy = self._copies.out([each.page for each in out], [each.place for each in out])
        flight = OutFlight(self._number, copy, out)
        self._out.append(flight)
        self._leaving.update((each.page, flight) for each in out)
        self.copied += len(out)

    def evicted(self, pages: list[int]) -> None:
        self.lost += sum([name is not None and name not in self.slots for name in map(self._named.__getitem__, pages)])

    def taken(self, pages: list[int], load: bool) -> None:
        newest: OutFlight | None = None
        for page in pages:
            self._named[page] = None
            if self._leaving and (flight := self._leaving.pop(page, None)) is not None:
                newest = flight if newest is None or flight.number > newest.number else newest
        if newest is not None:
            self._copies.fence(newest.copy, steps=not load)  # earlier copies out have read their pages before it does
        if load:
            self._before_load = None if newest is None else newest.copy

    def discard(self, trail: Trail, groups: int, pages: Sequence[int]) -> None:
        places = range(trail.found, len(trail.digests) - 1)
        names = {self._names.name(trail, place, group) for place in places for group in range(groups)}
        for name in names.union(filter(None, (self._named[page] for page in pages))):
            self.slots.remove(name)
            if self._files is not None:
                self._files.remove(name)
        for page in pages:
            self._named[page] = None

    # -- pages come back -----------------------------------------------------------------------------------------------

    def find(self, trail: Trail, tokens: list[int], first: int, end: int, groups: int) -> list[list[bool]]:
        self._names.extend(trail, tokens, end)
        names = [[self._names.name(trail, place, group) for place in range(first, end)] for group in range(groups)]
        return [[name in self.slots or (self._files is not None and name in self._files) for name in group]
                for group in names]  # fmt: skip

    def load(self, trail: Trail, tables: Sequence[list[int]], first: int, end: int) -> Return:
        assert self._load is None, "one load at a time"
        self._load = load = Return(end - first, [])
        for place in range(first, end):
            sources = self._sources(trail, tables, place)
            if sources is None:
                break
            load.sources.append(sources)
        for sources in reversed(load.sources):
            for source in sources:
                self.slots.touch(source.name)
        self._copies.open(self._newest_into({source.place for sources in load.sources for source in sources}))
        self._advance(load)
        return load

    def _newest_into(self, places: set[int]) -> Copy | None:
        """Find the newest copy out under way that fills any of `places`."""
        for flight in reversed(self._out):
            if any(each.place in places for each in flight.pages):
                return flight.copy
        return None

    def _sources(self, trail: Trail, tables: Sequence[list[int]], place: int) -> list[Source] | None:
        """Reserve what a place of the path needs, and begin to read its files. None if there is no room for them."""
        found: list[Source] = []
        for group, table in enumerate(tables):
            if page := table[place]:
                name = self._names.name(trail, place, group)
                source = self._source(name, page, trail.order(place))
                if source is None:
                    self._give_up(found)
                    return None
                found.append(source)
        for source in found:
            self._named[source.page], self._orders[source.page] = source.name, 0
        return found

    def _source(self, name: str, page: int, order: int) -> Source | None:
        if name in self.slots:
            self.slots.use(place := self.slots.place(name))
            return Source(name, place, page, None)
        added = self.slots.add(name)
        if added is None or self._files is None:
            return None
        self._files.touch([(name, order)])
        return Source(name, added, page, self._files.read(name, added))

    def _give_up(self, sources: list[Source]) -> None:
        """Let go of places that no copy back was launched for. What was not read by now is forgotten."""
        for source in sources:
            if source.file is None or (source.file.done() and source.file.result()):
                self.slots.done(source.place)
            else:
                self.slots.remove(source.name)
                self._late.append((source.file, source.place))

    def _advance(self, load: Return) -> None:
        """Launch copies back of all places whose pages are in host memory by now, and see which copies are done."""
        ready = load.launched
        while ready < len(load.sources) and all(each.file is None or each.file.done() for each in load.sources[ready]):
            if not all(each.file is None or each.file.result() for each in load.sources[ready]):
                self._end_at(load, ready)
                break
            ready += 1
        self._launch_back(load, ready)
        while load.flights and load.flights[0].copy.done:
            load.loaded = load.flights[0].end
            self._landed_back(load.flights.popleft())
        allowed = GRACE_S + TOKEN_S * self._page_size * load.launched
        if load.launched < len(load.sources) and time.monotonic() - load.began > allowed:
            self._end_at(load, load.launched)
        load.done = load.loaded == len(load.sources)

    def _end_at(self, load: Return, end: int) -> None:
        for sources in load.sources[end:]:
            self._give_up(sources)
        del load.sources[end:]

    def _launch_back(self, load: Return, end: int) -> None:
        numbered = [(source, place) for place in range(load.launched, end) for source in load.sources[place]]
        at_once = self._copies.at_once
        for first in range(0, len(numbered), at_once):
            some = numbered[first : first + at_once]
            places = [source.place for source, _ in some]
            copy = self._copies.back(places, [source.page for source, _ in some])
            after = numbered[first + at_once :]
            load.flights.append(BackFlight(copy, places, after[0][1] if after else end))
        load.launched = end

    def _landed_back(self, flight: BackFlight) -> None:
        for place in flight.places:
            self.slots.done(place)

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
        while self._out and self._out[0].copy.done:
            self._landed_out(self._out.popleft())
        while self._back and self._back[0].copy.done:
            self._landed_back(self._back.popleft())
        if self._late:
            for file, place in self._late:
                if file.done():
                    self.slots.done(place)
            self._late = [(file, place) for file, place in self._late if not file.done()]
        if self._files is not None:
            for place in self._files.written():
                self.slots.done(place)
        if self._load is not None:
            self._advance(self._load)

    def _landed_out(self, flight: OutFlight) -> None:
        for each in flight.pages:
            if self._leaving.get(each.page) is flight:
                del self._leaving[each.page]
            kept = each.name in self.slots and self.slots.place(each.name) == each.place  # else it was discarded
            if kept and each.order and self._files is not None and self._files.wants(each.name):
                self._write(each.place, each.name, each.order)
            self.slots.done(each.place)

    def _write(self, place: int, name: str, order: int) -> None:
        assert self._files is not None
        self.slots.use(place)
        self._files.write(name, place, order)

    def close(self) -> None:
        """Write what is queued for files, for a while, and give host memory back."""
        if self._files is not None:
            self._files.close()
        self._copies.close()

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
        assert all(flight in self._out for flight in self._leaving.values()), "a copy that is done still holds a page"
