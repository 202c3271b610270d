"""Pages of keys and values, handed out one by one and shared by counting references.

A page is free, held (at least one sequence refers to it), or idle: no sequence refers to it, but the prefix index knows
its tokens and keeps it for a later request, until the room is needed. All pages are equally good, so no request is
refused for lack of *adjacent* room. (PagedAttention: Kwon et al. 2023, section 4.)

The pool deals in numbers, 1 to `count`; it knows neither tensors nor tokens. Page 0 is never handed out.

A server soon has no free page left: every page that it takes was idle, and is evicted first. That state must cost no
more than a fresh one, so the pool keeps each page's state in an array entry, and idle pages form a line
(`gradus.cache.idle`).
"""

from array import array
from collections.abc import Container

import numpy as np

from gradus.cache.idle import IdlePages
from gradus.cache.inspection import PageCounts, States, page_states


class PageError(RuntimeError):
    """A page was used against the rules: a bug in the engine, never a user's mistake."""


class PoolExhausted(PageError):
    """No page is free."""


class DoubleFree(PageError):
    """A reference was given back that does not exist."""


class FreePageUsed(PageError):
    """A free page cannot be shared, because its contents are forgotten."""


class PageInUse(PageError):
    """A page that is not idle cannot be evicted."""


class PagePool:
    """`count` pages, each free, held or idle.

    indexed: the pages that the prefix index knows, kept up to date by the index. They become idle when the last
    reference is dropped; other pages become free at once.
    """

    def __init__(self, count: int, indexed: Container[int] = ()) -> None:
        self.count = count
        self.indexed = indexed
        self.free = array("i", range(count, 0, -1))  # a stack with page 1 on top
        self.references = array("i", bytes(4 * (count + 1)))  # by page
        self.idle = IdlePages(count)  # least recently used first

    @property
    def available(self) -> int:
        """Pages that could be taken now: the free ones, and the idle ones once they are evicted."""
        return len(self.free) + len(self.idle)

    @property
    def held(self) -> int:
        """Pages that at least one sequence refers to."""
        return self.count - self.available

    def take(self, count: int) -> list[int]:
        """Take free pages, with one reference each. Raises PoolExhausted if there are fewer: the caller evicts
        first."""
        if count > len(self.free):
            raise PoolExhausted(f"{count} pages are wanted, and {len(self.free)} of {self.count} are free")
        split, references = len(self.free) - count, self.references
        taken = self.free[split:].tolist()[::-1]
        del self.free[split:]
        for page in taken:
            references[page] = 1
        return taken

    def share(self, *pages: int) -> None:
        """Add a reference to held or idle pages; an idle page becomes held. Raises FreePageUsed at a free one."""
        references, were_idle = self.references, []
        try:
            for page in pages:
                before = references[page]
                if before == 0:
                    if page not in self.idle:
                        raise FreePageUsed(f"page {page} is free")
                    were_idle.append(page)
                references[page] = before + 1
        finally:
            self.idle.remove(were_idle)

    def drop(self, *pages: int) -> None:
        """Drop a reference. With its last one a page becomes idle, as the most recently used, or free if not indexed.

        Raises DoubleFree at a page without references.
        """
        references, indexed, idle, free = self.references, self.indexed, list[int](), self.free
        try:
            for page in pages:
                left = references[page] - 1
                if left < 0:
                    raise DoubleFree(f"page {page} has no references")
                references[page] = left
                if left == 0:
                    (idle if page in indexed else free).append(page)
        finally:
            self.idle.extend(idle)

    def oldest_idle(self, count: int) -> list[int]:
        """List up to `count` idle pages, the least recently used first: it is the next to be evicted.

        Raises PoolExhausted if none is idle.
        """
        if not self.idle:
            raise PoolExhausted("no page is idle")
        return self.idle.oldest(count)

    def reclaim(self, *pages: int) -> None:
        """Free idle pages that the index has removed. Raises PageInUse at a page that is not idle."""
        try:
            self.idle.remove(pages)
        except KeyError as error:
            (page,) = error.args
            raise PageInUse(f"page {page} is not idle, it has {self.references[page]} references") from None
        self.free.extend(pages)

    def counts(self) -> PageCounts:
        """Count the pages in each state."""
        return PageCounts(self.count, self.held, len(self.idle), len(self.free))

    def states(self) -> States:
        """Read the state of every page, for watchers. 300,000 pages take about half a millisecond."""
        return page_states(self.references, self.idle.numbers())

    def longest_free_run(self) -> int:
        """The most free pages side by side: the largest piece that an allocator of adjacent room could hand out.

        A run of free pages lies between two successive pages that are not free.
        """
        taken = np.ones(self.count + 2, np.bool_)  # with a page that is not free at each end
        taken[np.array(self.free)] = False
        return int(np.diff(taken.nonzero()[0]).max()) - 1

    def check(self) -> None:
        """Assert that every page is in exactly one of three states, as its references and the index require."""
        free, pages = set(self.free), range(1, self.count + 1)
        assert len(free) == len(self.free), "a page is free twice"
        assert self.references[0] == 0, "page 0 is never handed out"
        unheld = {page for page in pages if self.references[page] == 0}
        assert all(self.references[page] > 0 for page in pages if page not in unheld)
        self.idle.check()
        assert set(self.idle) == {page for page in unheld if page in self.indexed}, "idle is indexed and unheld"
        assert free == unheld - set(self.idle), "a page is lost, or free and in use"
