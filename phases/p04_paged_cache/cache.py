"""The pages of each sequence: a block table per sequence over one pool (PagedAttention, Kwon et al. 2023).

Keys and values lie on pages of `page_size` positions. Entry i of a sequence's block table is the page that holds its
positions [i * page_size, (i + 1) * page_size). All pages are alike, so a sequence takes any free page when it has
filled its last one, and wastes less than a page. Numbers only: the tensors are the attention backend's.
"""

from collections import Counter
from collections.abc import Hashable

from gradus.cache import TableChange
from gradus.cache.inspection import PageCounts, Tables
from gradus.cache.pool import PagePool
from gradus.cache.usage import CacheUsage


class PagedCache:
    """Hands out pages as sequences grow, and takes all of a sequence's pages back when it ends."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.pool = PagePool(pages)
        self.block_tables: dict[Hashable, list[int]] = {}
        self.lengths: dict[Hashable, int] = {}  # positions stored, once every planned step has run

    # -- growing and ending ------------------------------------------------------------------------------------------

    def stored(self, id: Hashable) -> int:
        return self.lengths.get(id, 0)

    def fits(self, length: int, longest_span: int) -> bool:
        """Whether an empty pool could hold a sequence of `length` positions."""
        return self.pages_for(length) <= self.pool.count

    def has_room(self, id: Hashable, end: int, spare: int = 0) -> bool:
        """Whether the sequence can grow to `end` positions, and leave `spare` pages available."""
        return self.missing(id, end) + spare <= self.pool.available

    def reserve(self, id: Hashable, end: int) -> bool:
        """Give positions [0, end) a page each, all of them or none: False leaves everything as it was."""
        if not self.has_room(id, end):
            return False
        self.block_tables.setdefault(id, []).extend(self.take(self.missing(id, end)))
        self.lengths[id] = end
        return True

    def missing(self, id: Hashable, end: int) -> int:
        """Pages that the block table lacks for positions [0, end)."""
        return max(0, self.pages_for(end) - len(self.block_tables.get(id, ())))

    def pages_for(self, length: int) -> int:
        return -(-length // self.page_size)  # rounded up: a page that is begun is a page

    def take(self, count: int) -> list[int]:
        """Hand out `count` free pages; `has_room` has checked that the pool has them."""
        return self.pool.take(count)

    def release(self, id: Hashable) -> None:
        """Free the sequence's pages, the last one first."""
        self.lengths.pop(id, None)
        self.pool.drop(*reversed(self.block_tables.pop(id, [])))

    # -- the books ---------------------------------------------------------------------------------------------------

    def table_change(self, id: Hashable) -> TableChange:
        """Return the whole block table, as if none of its entries had been sent before."""
        return TableChange(kept=0, pages=self.tables(id))

    def tables(self, id: Hashable) -> Tables:
        """For probes: the block table, the only one since all layers share it; () for a sequence never seen."""
        return (tuple(self.block_tables[id]),) if id in self.block_tables else ()

    def pages(self) -> PageCounts:
        """For probes: the number of pages in each state."""
        return self.pool.counts()

    def usage(self) -> CacheUsage:
        held = self.pool.held
        unfilled = sum(len(table) * self.page_size - self.lengths[id] for id, table in self.block_tables.items())
        return CacheUsage(
            pages=self.pool.count,
            page_size=self.page_size,
            held=held,
            idle=len(self.pool.idle),
            free=len(self.pool.free),
            stored_positions=held * self.page_size - unfilled,
            longest_free_run=self.pool.longest_free_run(),
        )

    def check(self) -> None:
        """Assert that the pool's references match the block tables, and that each table is as long as its sequence
        needs."""
        self.pool.check()
        entries = Counter(page for table in self.block_tables.values() for page in table)
        counted = Counter({page: count for page, count in enumerate(self.pool.references) if count})
        assert entries == counted, f"the tables have {dict(entries)} (page: times), the pool counts {dict(counted)}"
        for id, table in self.block_tables.items():
            needed = self.pages_for(self.stored(id))
            assert len(table) == needed, f"{self.stored(id)} positions need {needed} pages, the table has {len(table)}"
