"""Pages: what keys and values are kept on, handed out one by one and shared by counting references.

A page is free (nobody wants it), held (sequences refer to it), or idle: nobody refers to it, but the prefix index knows
what it holds, and keeps it for whoever asks next, until the room is needed. Because every page is as good as any other,
no request is ever refused for want of *adjacent* room. (PagedAttention: Kwon et al. 2023, section 4.)

The pool deals in numbers, 1 to `count`; it knows neither tensors nor tokens. Page 0 is nobody's.
"""

from collections import OrderedDict
from collections.abc import Container
from itertools import islice


class PageError(RuntimeError):
    """A page was used against the rules: a defect of the engine's, never the user's."""


class PoolExhausted(PageError):
    """No page is free."""


class DoubleFree(PageError):
    """A reference was given back that nobody has."""


class FreePageUsed(PageError):
    """Somebody wanted to share a page that is free: what it held is forgotten."""


class PageInUse(PageError):
    """A page was to be evicted that is not idle."""


class PagePool:
    """`count` pages, each free, held or idle.

    indexed: the pages that the prefix index knows, kept up to date by the index. They turn idle when the last reference
    goes; the others are free at once.
    """

    def __init__(self, count: int, indexed: Container[int] = ()) -> None:
        self.count = count
        self.indexed = indexed
        self.free = list(range(count, 0, -1))  # a stack with page 1 on top
        self.references = [0] * (count + 1)  # by page
        self.idle: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def available(self) -> int:
        """Pages that could be had now: the free ones, and the idle ones once they are evicted."""
        return len(self.free) + len(self.idle)

    @property
    def held(self) -> int:
        """Pages that somebody refers to."""
        return self.count - self.available

    def take(self, count: int) -> list[int]:
        """Free pages, with one reference each. Raises PoolExhausted if there are fewer: evict first, nobody waits."""
        if count > len(self.free):
            raise PoolExhausted(f"{count} pages are wanted, and {len(self.free)} of {self.count} are free")
        split = len(self.free) - count
        taken, self.free[split:] = self.free[split:][::-1], ()
        for page in taken:
            self.references[page] = 1
        return taken

    def share(self, *pages: int) -> None:
        """One more reference to pages held or idle; idle no more. Raises FreePageUsed at a free one."""
        references = self.references
        for page in pages:
            if references[page] == 0:
                if page not in self.idle:
                    raise FreePageUsed(f"page {page} is free")
                del self.idle[page]
            references[page] += 1

    def drop(self, *pages: int) -> None:
        """One reference less. With the last one a page is idle, the most recently used, or free if not indexed.

        Raises DoubleFree at a page that nobody holds.
        """
        references, indexed = self.references, self.indexed
        for page in pages:
            left = references[page] - 1
            if left < 0:
                raise DoubleFree(f"nobody holds page {page}")
            references[page] = left
            if left == 0:
                if page in indexed:
                    self.idle[page] = None
                else:
                    self.free.append(page)

    def oldest_idle(self, count: int) -> list[int]:
        """Up to `count` idle pages, the one first that was used longest ago: it is the next to be evicted.

        Raises PoolExhausted if none is idle.
        """
        if not self.idle:
            raise PoolExhausted("no page is idle")
        return list(islice(self.idle, count))

    def reclaim(self, *pages: int) -> None:
        """Idle pages that the index has given up are free. Raises PageInUse at one that is not idle."""
        for page in pages:
            if page not in self.idle:
                raise PageInUse(f"page {page} is not idle, it has {self.references[page]} references")
            del self.idle[page]
            self.free.append(page)

    def longest_free_run(self) -> int:
        """The most free pages side by side: all that an allocator of adjacent room could hand out at once."""
        free = bytearray(self.count + 1)
        for page in self.free:
            free[page] = 1
        return max(map(len, free.split(b"\0")))

    def check(self) -> None:
        """Every page is in exactly one of three states, the one that its references and the index say."""
        free, pages = set(self.free), range(1, self.count + 1)
        assert len(free) == len(self.free), "a page is free twice"
        assert self.references[0] == 0, "page 0 is nobody's"
        unheld = {page for page in pages if self.references[page] == 0}
        assert all(self.references[page] > 0 for page in pages if page not in unheld)
        assert set(self.idle) == {page for page in unheld if page in self.indexed}, "idle is indexed and unheld"
        assert free == unheld - set(self.idle), "a page is lost, or free and in use"
