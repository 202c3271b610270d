"""The final engine's cache manager: a sequence lives on pages, wherever they are, and its block table lists them.

Entry i of a table is the page with positions [i * page_size, (i + 1) * page_size), so a sequence wastes less than a
page, grows one page at a time, and shares whole pages with others that begin alike (PagedAttention: Kwon et al. 2023).
A layer group with a sliding window has a table of its own, in which pages that no query will read again are given
back: their entries are 0.

The teaching twin is phases/p04_paged_cache (and p05 for the prefix index); this one adds layer groups with windows,
tables told by what changed, eviction ahead of need, and pages poisoned by numbers that are not finite.
"""

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from gradus.cache import TableChange
from gradus.cache.inspection import PageCounts, Tables, TreeNode
from gradus.cache.pool import PagePool
from gradus.cache.radix import Cursor, PrefixIndex
from gradus.cache.usage import CacheUsage
from gradus.cache.windows import first_page, last_seen, longest_sequence, most_pages

NEVER = sys.maxsize
MOST_READY, AT_ONCE = 1 / 64, 1 / 256
"""These parts of all pages may be evicted before they are needed, and together: many at once cost little more than a
few, and a step that needs many finds them free."""
WORTH_A_CALL = 8  # pages; fewer are not evicted ahead


@dataclass(slots=True, eq=False)
class Resident:
    """A sequence in the cache.

    tables: its block tables, one list of pages per layer group, all equally long. first: the first entry of each that
    has not been given back. stored: positions reserved; room: positions that the tables have room for.
    told: so many entries of each table are as `change` last told. cursor: how far its pages are in the prefix index, if
    there is one; publish_at: once that many positions are stored, there is a full page more to publish.
    asked: tokens that it was admitted with, until it has room for its first span and they count.
    gives_at: the first position whose query no longer sees one of its window pages; earlier ones give nothing back.
    """

    tables: list[list[int]]
    first: list[int]
    stored: int
    room: int
    cursor: Cursor | None
    publish_at: int
    told: int = 0
    asked: int = 0
    gives_at: int = 0

    def change(self) -> TableChange | None:
        """What is new in the block tables since this was last asked; None if nothing is."""
        return None if self.told == len(self.tables[0]) else self.tell()

    def tell(self) -> TableChange:
        """What is new, if there is something."""
        kept, tables = self.told, self.tables
        self.told = len(tables[0])
        if len(tables) == 1:  # spared a list: this is called for every page that a decode enters
            return TableChange(kept, (tuple(tables[0][kept:]),))
        return TableChange(kept, tuple([tuple(table[kept:]) for table in tables]))


class PagedCache:
    """Pages for every sequence, by its id: taken as it grows, shared where an index finds them, given back at the end.

    windows: one per layer group, None for full attention (see `layer_groups`). index: reuses the pages of sequences
    that began alike, or None.
    """

    def __init__(
        self, pages: int, page_size: int, windows: Sequence[int | None] = (None,), index: PrefixIndex | None = None
    ) -> None:
        self.page_size = page_size
        self.windows = tuple(windows)
        self.sliding = [(group, window) for group, window in enumerate(windows) if window is not None]
        self.index = index
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
        """The longest sequence, up to `most`, that fits; longest_span: as in `fits`, None for a sequence in one."""
        return longest_sequence(self.pool.count, self.windows, self.page_size, longest_span, most)

    def admit(self, id: Hashable, tokens: list[int], salt: Hashable = None) -> int:
        """Begin a sequence with what the index has of its tokens, under the same salt. Returns the positions hit.

        The pages hit are held from now on; at least one token is always left to compute. Raises ValueError for a
        sequence that is there already.
        """
        if id in self.residents:
            raise ValueError(f"sequence {id!r} is in the cache already")
        resident = self.residents[id] = self._newcomer() if self.index is None else self._hit(self.index, tokens, salt)
        resident.asked = len(tokens)
        return resident.stored

    def _newcomer(self, cursor: Cursor | None = None) -> Resident:
        """A sequence without a page. Not admitted by its tokens, it shares with those that have no salt."""
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
        """All pages in block tables, without the entries of those given back."""
        if not self.sliding and len(tables) == 1:
            return tables[0]
        return [page for entries in zip(*tables, strict=True) for page in entries if page]

    # -- it grows ----------------------------------------------------------------------------------------------------

    def stored(self, id: Hashable) -> int:
        """Positions stored once every step planned so far has run; 0 for a sequence never seen."""
        resident = self.residents.get(id)
        return 0 if resident is None else resident.stored

    def reserve(self, id: Hashable, end: int, start: int | None = None) -> bool:
        """Make room for positions [stored, end), and count them as stored: all of them, or none and False.

        Before a page is taken, window pages that no query from the span's start on can see are given back, and idle
        pages are evicted if too few are free. start: the span's, where it may begin before what is stored.
        """
        resident = self.residents.get(id)
        if resident is None:
            resident = self._newcomer()
        if end > resident.room:
            count = -(-(end - resident.room) // self.page_size)
            if not self._extend(resident, count, resident.stored if start is None else start):
                return False
            self.residents[id] = resident
        if resident.asked:  # an attempt that found no room, and was given up, has asked for nothing
            self.queried_positions += resident.asked
            self.hit_positions += resident.stored
            resident.asked = 0
        resident.stored = end
        return True

    def add_pages(self, ids: Sequence[Hashable]) -> list[TableChange] | None:
        """A page more, reserved whole, for each of these sequences, whose pages are all full: all or none and None.

        Returns what is new in their block tables, as `table_change`.
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
        return [resident.tell() for resident in entering]

    def _extend(self, resident: Resident, count: int, start: int) -> bool:
        """Lengthen each of its tables by so many pages. False, and no page more, if there is no room for all."""
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
        """Drop the window pages before what the next span's first query sees: its later ones see no further back."""
        if start < resident.gives_at:
            return
        for group, window in self.sliding:
            first = resident.first[group]
            seen = max(first, first_page(start, window, self.page_size))
            table = resident.tables[group]
            if first < seen:
                resident.told = min(resident.told, first)
            for page in table[first:seen]:
                self.pool.drop(page)
            table[first:seen] = [0] * (seen - first)
            resident.first[group] = seen
        resident.gives_at = (
            min(last_seen(resident.first[group], window, self.page_size) for group, window in self.sliding) + 1
        )

    def _take(self, count: int) -> list[int] | None:
        """So many pages; None if there are fewer, evictions included."""
        if count > self.pool.available:
            self.refusals += 1
            return None
        while (missing := count - len(self.pool.free)) > 0:
            self._evict(max(missing, self._batch))
        return self.pool.take(count)

    def make_ready(self, count: int) -> None:
        """Evict a few pages if fewer than `count` are free. Called once per step.

        What decodes take when they enter a page, many of them in the same step, is thus evicted in the steps before.
        """
        missing = min(count, self._most_ready) - len(self.pool.free)
        if missing >= self._batch > 0 and self.pool.idle:
            self._evict(self._batch)

    def _evict(self, count: int) -> None:
        """Free the pages that have been idle longest, with what is of no use without them: up to `count`, or one."""
        assert self.index is not None, "pages are idle only in an index"
        evicted = self.index.trim(self.pool.oldest_idle(count))
        self.pool.reclaim(*evicted)
        self.evictions += len(evicted)

    def table_change(self, id: Hashable) -> TableChange | None:
        """What is new in the block tables since this was last asked; None if nothing is, or it has no pages."""
        resident = self.residents.get(id)
        return None if resident is None else resident.change()

    # -- others may share --------------------------------------------------------------------------------------------

    def publish(self, id: Hashable, tokens: list[int], end: int = NEVER) -> bool:
        """Steps have run: each full page of `tokens` that is stored enters the index, for others to hit.

        end: only pages of positions below it; what later steps, now under way, store has not been seen to be good.
        Where another sequence was first with the same tokens, this one swaps its page for that one; plans under way
        keep their snapshots, so they never notice. Returns whether it did. A sequence never seen has no pages.
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
            self.pool.share(page)
            self.pool.drop(resident.tables[group][place])
            resident.tables[group][place] = page
            resident.told = min(resident.told, place)
        resident.publish_at = (resident.cursor.depth + 1) * self.page_size
        return bool(duplicates)

    # -- it goes -----------------------------------------------------------------------------------------------------

    def release(self, id: Hashable, poisoned: bool = False) -> None:
        """Forget the sequence and drop its pages, deepest first. A sequence never seen is no mistake.

        poisoned: it ended with numbers that are not finite. Pages that only it held leave the index and get wiped.
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
        for page in alone:
            if self.index is not None and page in self.index:
                gone = self.index.remove(page)
                self.wiped.update(gone)
                self.pool.reclaim(*filter(self.pool.idle.__contains__, gone))  # others' ends, and given-back ones

    def forget(self) -> None:
        """Empty the index of all that no sequence holds: what comes next finds the cache as it was at the start."""
        while self.pool.idle:
            self._evict(len(self.pool.idle))

    def take_wiped(self) -> tuple[int, ...]:
        """Pages that the next plan must fill with zeros before it stores anything. They are told once."""
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
        """How many pages are in which state. For probes."""
        return self.pool.counts()

    def tree(self) -> tuple[TreeNode, ...] | None:
        """The top nodes of the prefix index; None without one. For probes."""
        return None if self.index is None else self.index.view()

    def usage(self, ahead: int = 0) -> CacheUsage:
        """The pool now, and what has happened in it. Takes time with the number of pages: not for every step.

        ahead: positions that are reserved and that no step has been planned for yet.
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
        )

    def check(self) -> None:
        """Assert the invariants: pool, index and tables agree."""
        self.pool.check()
        references = [0] * (self.pool.count + 1)
        for resident in self.residents.values():
            self._check_tables(resident)
            for page in (page for table in resident.tables for page in filter(None, table)):
                references[page] += 1
        assert references == self.pool.references.tolist(), "a reference without a holder, or a page mapped without one"
        if self.index is not None:
            self._check_index(self.index)

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
