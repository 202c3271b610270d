"""The final engine's cache manager: a sequence may use any pages, and its block table lists them.

Entry i of a table is the page with positions [i * page_size, (i + 1) * page_size), so a sequence wastes less than a
page, grows one page at a time, and shares whole pages with others that begin alike (PagedAttention: Kwon et al. 2023).
A layer group with a sliding window has its own table, and gives back pages that no query will read again:
their entries become 0.

The teaching twin is phases/p04_paged_cache (and p05 for the prefix index); this one adds layer groups with windows,
tables sent as changes, eviction ahead of need, wiping of pages poisoned by NaN or infinity, and a second tier of pages
behind the pool.
"""

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from gradus.cache import TableChange
from gradus.cache.capacity import sequences_by_length
from gradus.cache.disk.names import Trail
from gradus.cache.inspection import NodeSize, PageCounts, Tables, TreeNode
from gradus.cache.pool import PagePool
from gradus.cache.radix import Cursor, PrefixIndex
from gradus.cache.tier import Load, Tier
from gradus.cache.usage import CacheUsage
from gradus.cache.windows import first_page, last_seen, longest_sequence, most_pages

NEVER = sys.maxsize
MOST_READY, AT_ONCE = 1 / 64, 1 / 256
"""The parts of all pages that may be free ahead of need, and that are evicted at once: evicting many costs little more
than evicting a few, and a step that needs many pages finds them free."""
WORTH_A_CALL = 8  # fewest pages to evict ahead


@dataclass(slots=True, eq=False)
class Resident:
    """A sequence in the cache.

    tables: its block tables, one list of pages per layer group, all equally long. first: the first entry of each that
    has not been given back. stored: positions reserved; room: positions that the tables have room for.
    sent: the number of leading entries of each table that have not changed since `change`. cursor: how far its pages
    are in the prefix index, if there is one; publish_at: the number of stored positions at which another full page can
    be published. asked: the tokens of its admission, until it has room for its first span and they count in the
    statistics.
    gives_at: the first position whose query no longer sees one of its window pages; earlier ones give nothing back.
    trail: its path in the second tier, if there is one.
    """

    tables: list[list[int]]
    first: list[int]
    stored: int
    room: int
    cursor: Cursor | None
    publish_at: int
    sent: int = 0
    asked: int = 0
    gives_at: int = 0
    trail: Trail | None = None

    def change(self) -> TableChange | None:
        """Return the change of the block tables since the last call; None if there is none."""
        return None if self.sent == len(self.tables[0]) else self.send()

    def send(self) -> TableChange:
        """Return the change, which must exist, and count it as sent."""
        kept, tables = self.sent, self.tables
        self.sent = len(tables[0])
        if len(tables) == 1:  # saves a list: this is called for every page that a decode enters
            return TableChange(kept, (tuple(tables[0][kept:]),))
        return TableChange(kept, tuple([tuple(table[kept:]) for table in tables]))


@dataclass(slots=True, eq=False)
class Arrival:
    """Pages on their way back from the second tier, held until they enter the index.

    tables: block tables with them, after the pages that the index had. cursor: behind those. tokens: of all.
    unwiped: those that had to be wiped before they could be used; a load does better.
    """

    tokens: list[int]
    cursor: Cursor
    tables: list[list[int]]
    load: Load
    unwiped: set[int]


class PagedCache:
    """Pages for every sequence, by its id: taken as it grows, shared if an index finds them, given back at its end.

    windows: one per layer group, None for full attention (see `layer_groups`). index: finds the pages of sequences
    that begin alike, or None. tier: keeps indexed pages that the pool gives up, or None.
    """

    def __init__(
        self,
        pages: int,
        page_size: int,
        windows: Sequence[int | None] = (None,),
        index: PrefixIndex | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.page_size = page_size
        self.windows = tuple(windows)
        self.sliding = [(group, window) for group, window in enumerate(windows) if window is not None]
        self.index, self.tier = index, tier
        self.arrival: Arrival | None = None
        if index is not None:
            index.attach(page_size, windows, pages)
        self.pool = PagePool(pages, indexed=index or ())
        self.residents: dict[Hashable, Resident] = {}
        self.wiped: set[int] = set()
        self._most_ready = int(pages * MOST_READY)
        self._batch = max(int(pages * AT_ONCE), min(WORTH_A_CALL, self._most_ready))
        self.queried_positions = self.hit_positions = self.evictions = self.refusals = 0

    # -- a sequence comes --------------------------------------------------------------------------------------------

    def fits(self, length: int, longest_span: int) -> bool:
        """Whether a sequence of `length`, alone in the pool, could run in spans of at most `longest_span` positions."""
        needed = sum(most_pages(length, longest_span, window, self.page_size) for window in self.windows)
        return needed <= self.pool.count

    def longest(self, longest_span: int | None, most: int) -> int:
        """The longest sequence, up to `most`, that fits. longest_span: as in `fits`; None: one span per sequence."""
        return longest_sequence(self.pool.count, self.windows, self.page_size, longest_span, most)

    def sequences(self, longest: int, most: int) -> dict[int, int]:
        """How many sequences run at once, by length up to `longest`, of `most` at most: see `gradus.cache.capacity`."""
        return sequences_by_length(self.pool.count, self.windows, self.page_size, longest, most)

    def kept_in_host(self, longest: int) -> dict[int, int]:
        """How many evicted sequences host memory keeps at least, by length; {} without any.

        Every page that a sequence has had is counted, though a hit needs only a window's in layers with a window.
        """
        host = None if self.tier is None else self.tier.host_usage
        every = [None] * len(self.windows)
        return {} if host is None else sequences_by_length(host.most_pages, every, self.page_size, longest)

    def admit(self, id: Hashable, tokens: list[int], salt: Hashable = None) -> int:
        """Begin a sequence with the pages that the index has for its tokens and salt. Returns the positions hit.

        The pages hit are held from now on; at least one token always remains to compute. Raises ValueError for a
        sequence that is in the cache already.
        """
        if id in self.residents:
            raise ValueError(f"sequence {id!r} is in the cache already")
        resident = self.residents[id] = self._newcomer() if self.index is None else self._hit(self.index, tokens, salt)
        resident.asked = len(tokens)
        if self.tier is not None:
            hit = resident.stored // self.page_size
            trail = resident.trail = self.tier.trail(salt, resident.tables)
            trail.found = hit
            self.tier.save(trail, tokens, resident.tables, hit)
        return resident.stored

    def known(self, tokens: list[int], salt: Hashable = None) -> tuple[int, int]:
        """Return how many positions `admit` would hit now, and how many after a load. Holds nothing."""
        if self.index is None:
            return 0, 0
        cursor, tables = self.index.match(tokens, salt)
        _, end = self._find(self.index, tokens, salt, tables, NEVER)
        return cursor.depth * self.page_size, max(cursor.depth, end) * self.page_size

    def pages_for(self, positions: int) -> int:
        """Return the pages that hold this many positions, of all layer groups together."""
        return -(-positions // self.page_size) * len(self.windows)

    def publishes_at(self, id: Hashable) -> int:
        """Return how many positions a sequence must have stored for its next page to be found by others."""
        return self.residents[id].publish_at

    def _newcomer(self, cursor: Cursor | None = None) -> Resident:
        """Begin a sequence without a page. If it was not admitted by its tokens, it shares with sequences without a
        salt."""
        if cursor is None and self.index is not None:
            cursor = Cursor(None, self.index.root)
        publish_at = NEVER if cursor is None else self.page_size
        return Resident([[] for _ in self.windows], [0] * len(self.windows), 0, 0, cursor, publish_at)

    def _hit(self, index: PrefixIndex, tokens: list[int], salt: Hashable) -> Resident:
        cursor, tables = index.match(tokens, salt)
        if not cursor.depth:
            return self._newcomer(cursor)
        self.pool.share(*self._pages(tables))
        hit = cursor.depth * self.page_size
        first = [0 if window is None else first_page(hit, window, self.page_size) for window in self.windows]
        return Resident(tables, first, hit, hit, cursor, hit + self.page_size)

    def _pages(self, tables: list[list[int]]) -> list[int]:
        """List all pages in block tables, without entries that were given back."""
        if not self.sliding and len(tables) == 1:
            return tables[0]
        return [page for entries in zip(*tables, strict=True) for page in entries if page]

    # -- pages from the second tier ------------------------------------------------------------------------------------

    @property
    def loading(self) -> bool:
        """Whether pages are on their way back from the second tier."""
        return self.arrival is not None

    def load(self, tokens: list[int], salt: Hashable, most: int) -> None:
        """Begin to load pages, if the second tier has those that continue the prefix in the index.

        They are in the index once `settle` has found them there. most: pages that may be taken for them. Nothing else
        may be `loading`.
        """
        if self.tier is None or self.index is None:
            return
        cursor, tables = self.index.match(tokens, salt)
        first = cursor.depth
        trail, end = self._find(self.index, tokens, salt, tables, most)
        if trail is None or end <= first:
            return
        starts = [max(first, first_page(end * self.page_size, window, self.page_size)) for window in self.windows]
        hit, count = self._pages(tables), sum(end - start for start in starts)
        if count > self.pool.available - sum([page in self.pool.idle for page in hit]):
            return
        self.pool.share(*hit)
        self.tier.use(trail, starts, end)
        self._keep_ahead(self.tier, count)
        taken = self._take(count, load=True)
        assert taken is not None, "there is room"
        pages = iter(taken)
        for table, start in zip(tables, starts, strict=True):
            table += [0] * (start - first) + [next(pages) for _ in range(start, end)]
        load = self.tier.load(trail, tables, first, end)
        unwiped = self.wiped.intersection(taken)
        self.wiped -= unwiped  # the next plan would wipe what the load has brought by then
        self.arrival = Arrival(tokens[: end * self.page_size], cursor, tables, load, unwiped)

    def _find(
        self, index: PrefixIndex, tokens: list[int], salt: Hashable, tables: list[list[int]], most: int
    ) -> tuple[Trail | None, int]:
        """Find where a load of up to `most` pages could end, and the path there. tables: of the index's hit."""
        if self.tier is None:
            return None, 0
        trail, end = self.tier.trail(salt, tables), (len(tokens) - 1) // self.page_size
        there = self.tier.find(trail, tokens, len(tables[0]), end, self.windows)
        return trail, self._loadable(index, tables, there, most)

    def _loadable(self, index: PrefixIndex, tables: list[list[int]], there: list[list[bool]], most: int) -> int:
        """Find where a load could end. there: by layer group, the places after the hit that the second tier has."""
        full = [found for found, window in zip(there, self.windows, strict=True) if window is None]
        places = len(there[0])
        for found in full:
            places = found.index(False) if False in found[:places] else places
        places = min(places, most // len(self.windows))
        return index.usable(
            [table + list(map(int, found[:places])) for table, found in zip(tables, there, strict=True)]
        )

    def settle(self) -> None:
        """Enter pages into the index that have come back from the second tier, and let it copy what it needs."""
        tier = self.tier
        if tier is None:
            return
        tier.settle()
        if self.arrival is not None and self.arrival.load.done:
            self._stop_loading(self.arrival)
        self._keep_ahead(tier, tier.ahead)

    def _keep_ahead(self, tier: Tier, count: int) -> None:
        """Let the tier copy the pages that the pool would evict for `count` others."""
        missing = count - len(self.pool.free)
        if tier.ahead and missing > 0 and (coming := self.pool.idle.coming(max(missing, self._batch))):
            tier.keep(coming)

    def _stop_loading(self, arrival: Arrival) -> None:
        """End a load: enter the pages that are there by now, and give the others back."""
        assert self.tier is not None and self.index is not None
        self.arrival, load, tables = None, arrival.load, arrival.tables
        self.tier.stop(load)
        end = len(tables[0]) - load.count + load.loaded
        self.wiped |= arrival.unwiped.intersection(page for table in tables for page in table[end:])
        for group, place, page in self.index.insert(arrival.cursor, arrival.tokens, tables, end):
            self.pool.share(page)
            self.pool.drop(tables[group][place])
            tables[group][place] = page
        self.pool.drop(*self._pages(tables)[::-1])

    def wait_for_pages(self, seconds: float) -> None:
        """Wait until the pages on their way back are there, for at most `seconds`."""
        if self.tier is not None and self.arrival is not None:
            self.tier.wait(self.arrival.load, seconds)

    # -- it grows ----------------------------------------------------------------------------------------------------

    def stored(self, id: Hashable) -> int:
        """Positions stored once every step planned so far has run; 0 for a sequence never seen."""
        resident = self.residents.get(id)
        return 0 if resident is None else resident.stored

    def reserve(self, id: Hashable, end: int, start: int | None = None) -> bool:
        """Make room for positions [stored, end), and count them as stored: all of them, or none (returns False).

        Before it takes pages, it gives back window pages that no query from the span's start on can see, and evicts
        idle pages if too few are free. start: the span's start, if it may lie before the stored end.
        """
        resident = self.residents.get(id)
        if resident is None:
            resident = self._newcomer()
        if end > resident.room:
            count = -(-(end - resident.room) // self.page_size)
            if not self._extend(resident, count, resident.stored if start is None else start):
                return False
            self.residents[id] = resident
        if resident.asked:  # counted only now, so that an attempt without room counts for nothing
            self.queried_positions += resident.asked
            self.hit_positions += resident.stored
            resident.asked = 0
        resident.stored = end
        return True

    def add_pages(self, ids: Sequence[Hashable]) -> list[TableChange] | None:
        """Reserve one more whole page for each of these sequences, whose pages are all full: all, or none.

        Returns the changes of their block tables, as `table_change` would; None if there is no room.
        """
        entering = [self.residents[id] for id in ids]
        if self.sliding:
            for resident in entering:
                self._give_back(resident, resident.stored)
        taken = self._take(len(entering) * len(self.windows))
        if taken is None:
            return None
        pages = iter(taken)
        for resident in entering:
            for table in resident.tables:
                table.append(next(pages))
            resident.stored = resident.room = resident.room + self.page_size
        return [resident.send() for resident in entering]

    def _extend(self, resident: Resident, count: int, start: int) -> bool:
        """Lengthen each of its tables by `count` pages. Returns False, and takes none, if there is no room for all."""
        if self.sliding:
            self._give_back(resident, start)
        taken = self._take(count * len(self.windows))
        if taken is None:
            return False
        for group, table in enumerate(resident.tables):
            table += taken[group * count : (group + 1) * count]
        resident.room += count * self.page_size
        return True

    def _give_back(self, resident: Resident, start: int) -> None:
        """Drop the window pages before the window of the next span's first query; later queries see no further back."""
        if start < resident.gives_at:
            return
        for group, window in self.sliding:
            first = resident.first[group]
            seen = max(first, first_page(start, window, self.page_size))
            table = resident.tables[group]
            if first < seen:
                resident.sent = min(resident.sent, first)
            for page in table[first:seen]:
                self.pool.drop(page)
            table[first:seen] = [0] * (seen - first)
            resident.first[group] = seen
        resident.gives_at = (
            min(last_seen(resident.first[group], window, self.page_size) for group, window in self.sliding) + 1
        )

    def _take(self, count: int, load: bool = False) -> list[int] | None:
        """Take `count` pages, evicting idle ones if necessary; None if there are fewer. A sequence that runs needs them
        more than one that waits for its pages: a load ends where no others are left. load: whether they are for one."""
        if count > self.pool.available and self.arrival is not None:
            self._stop_loading(self.arrival)
        if count > self.pool.available:
            self.refusals += 1
            return None
        while (missing := count - len(self.pool.free)) > 0:
            self._evict(max(missing, self._batch))
        taken = self.pool.take(count)
        if self.tier is not None:
            self.tier.taken(taken, load)
        return taken

    def make_ready(self, count: int) -> None:
        """Evict a few pages if fewer than `count` are free. Called once per step.

        Many decodes may enter a page in the same step. Their pages are thus evicted in the steps before.
        """
        missing = min(count, self._most_ready) - len(self.pool.free)
        if missing >= self._batch > 0 and self.pool.idle:
            self._evict(self._batch)

    def _evict(self, count: int) -> None:
        """Free the pages that have been idle longest, with pages that are useless without them: up to `count`, or
        one."""
        assert self.index is not None, "pages are idle only in an index"
        evicted = self.index.trim(self.pool.oldest_idle(count))
        if self.tier is not None:
            self.tier.evicted(evicted)
        self.pool.reclaim(*evicted)
        self.evictions += len(evicted)

    def table_change(self, id: Hashable) -> TableChange | None:
        """Return the change of the block tables since the last call; None if there is none, or no pages."""
        resident = self.residents.get(id)
        return None if resident is None else resident.change()

    # -- others may share --------------------------------------------------------------------------------------------

    def publish(self, id: Hashable, tokens: list[int], end: int = NEVER) -> bool:
        """Enter each full stored page of `tokens` into the index, for others to hit, after its step has run.

        end: only positions below it are published; later ones belong to steps in flight, whose numbers may yet turn out
        not finite. If another sequence has published the same tokens first, this one swaps its page for that one; plans
        in flight keep their snapshots, so they are not affected, and the next plan wipes the page swapped out. Returns
        whether it swapped. A sequence never seen has no pages.
        """
        resident = self.residents.get(id)
        if resident is None:
            return False
        end = min(len(tokens), resident.stored, end)
        if end < resident.publish_at:
            return False
        assert self.index is not None and resident.cursor is not None, "without an index, publish_at is never reached"
        duplicates = self.index.insert(resident.cursor, tokens, resident.tables, end // self.page_size)
        for group, place, page in duplicates:
            own = resident.tables[group][place]
            self.pool.share(page)
            self.pool.drop(own)
            self.wiped.add(own)  # a chunk's numbers may turn out not finite once the page is another sequence's
            resident.tables[group][place] = page
            resident.sent = min(resident.sent, place)
        resident.publish_at = (resident.cursor.depth + 1) * self.page_size
        if self.tier is not None and resident.trail is not None:
            self.tier.save(resident.trail, tokens, resident.tables, resident.cursor.depth)
        return bool(duplicates)

    # -- it goes -----------------------------------------------------------------------------------------------------

    def release(self, id: Hashable, poisoned: bool = False) -> None:
        """Forget the sequence and drop its pages, deepest first. A sequence never seen is allowed.

        poisoned: it ended with NaN or infinity. Pages that only it held leave the index and are wiped.
        """
        resident = self.residents.pop(id, None)
        if resident is None:
            return
        if poisoned:
            self._poison(resident)
        self.pool.drop(*self._pages(resident.tables)[::-1])

    def _poison(self, resident: Resident) -> None:
        held = [page for table in resident.tables for page in filter(None, table)]
        alone = [page for page in held if self.pool.references[page] == 1]
        self.wiped.update(alone)
        left = list[int]()
        for page in alone:
            if self.index is not None and page in self.index:
                gone = self.index.remove(page)
                left += gone
                self.wiped.update(gone)
                self.pool.reclaim(
                    *filter(self.pool.idle.__contains__, gone)
                )  # ends of other paths, and given-back pages
        if self.tier is not None and resident.trail is not None:
            self.tier.discard(resident.trail, resident.tables, left)

    def forget(self) -> None:
        """Empty the index of all pages that no sequence holds, as if the cache were new."""
        while self.pool.idle:
            self._evict(len(self.pool.idle))

    def take_wiped(self) -> tuple[int, ...]:
        """Take the pages that the next plan must fill with zeros before it stores anything. Each is returned once."""
        if not self.wiped:
            return ()
        wiped, self.wiped = tuple(sorted(self.wiped)), set()
        return wiped

    # -- the books ---------------------------------------------------------------------------------------------------

    @property
    def available(self) -> int:
        """Pages that `reserve` could take now."""
        return self.pool.available

    def tables(self, id: Hashable) -> Tables:
        """The sequence's block tables, one per layer group; () for a sequence never seen. For probes."""
        resident = self.residents.get(id)
        return () if resident is None else tuple(tuple(table) for table in resident.tables)

    def pages(self) -> PageCounts:
        """The number of pages in each state. For probes."""
        return self.pool.counts()

    def tree(self) -> tuple[TreeNode, ...] | None:
        """The top nodes of the prefix index; None without one. For probes."""
        return None if self.index is None else self.index.view()

    def page_count(self, id: Hashable) -> int:
        """Count the pages that a sequence holds, in all layer groups. For watchers."""
        resident = self.residents.get(id)
        if resident is None:
            return 0
        return sum(len(table) - first for table, first in zip(resident.tables, resident.first, strict=True))

    def largest_nodes(self, most: int) -> list[NodeSize] | None:
        """List the prefix index's largest nodes; None without one. For watchers."""
        return None if self.index is None else self.index.largest(most, self.pool.references)

    def usage(self, ahead: int = 0) -> CacheUsage:
        """The pool's state and history. It takes time in proportion to the number of pages, so not for every step.

        ahead: reserved positions for which no step has been planned yet.
        """
        unused = ahead + sum(resident.room - resident.stored for resident in self.residents.values())
        return CacheUsage(
            pages=self.pool.count,
            page_size=self.page_size,
            held=self.pool.held,
            idle=len(self.pool.idle),
            free=len(self.pool.free),
            stored_positions=self.pool.held * self.page_size - unused * len(self.windows),
            longest_free_run=self.pool.longest_free_run(),
            queried_positions=self.queried_positions,
            hit_positions=self.hit_positions,
            evictions=self.evictions,
            refusals=self.refusals,
            disk=None if self.tier is None else self.tier.disk_usage,
            host=None if self.tier is None else self.tier.host_usage,
        )

    def check(self) -> None:
        """Assert the invariants: pool, index and tables agree."""
        self.pool.check()
        references = [0] * (self.pool.count + 1)
        for resident in self.residents.values():
            self._check_tables(resident)
            for page in (page for table in resident.tables for page in filter(None, table)):
                references[page] += 1
        for page in [] if self.arrival is None else self._pages(self.arrival.tables):
            references[page] += 1
        assert references == self.pool.references.tolist(), "a reference without a holder, or a page mapped without one"
        if self.index is not None:
            self._check_index(self.index)
        if self.tier is not None:
            self.tier.check()

    def _check_tables(self, resident: Resident) -> None:
        assert 0 <= resident.stored <= resident.room < resident.stored + self.page_size
        for table, first in zip(resident.tables, resident.first, strict=True):
            assert len(table) * self.page_size == resident.room
            assert not any(table[:first]) and all(table[first:]), "pages are given back from the front"

    def _check_index(self, index: PrefixIndex) -> None:
        index.check()
        for resident in self.residents.values():
            assert resident.cursor is not None
            for group in (group for group, window in enumerate(self.windows) if window is None):
                held = resident.tables[group][: resident.cursor.depth]
                assert held == index.path(resident.cursor, group), "a sequence holds every page on its path"
        age = {page: rank for rank, page in enumerate(self.pool.idle)}
        for page, after in index.successors():
            assert page not in age or (after in age and age[after] < age[page]), "paths are evicted from their ends"
