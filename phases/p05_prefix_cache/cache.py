"""p04's cache with a memory: pages of sequences that are over stay until their room is needed, for others to find.

A page that no sequence refers to is *idle* while the index knows it. Idle pages are as good as free ones: when too few
are free, the one that has been idle longest is evicted. That page always ends a path. A sequence holds every page of
its own path, and drops the last one first: so no page becomes idle before the pages after it.
"""

from collections.abc import Hashable
from dataclasses import replace
from itertools import pairwise

from gradus.cache.inspection import TreeNode
from gradus.cache.pool import PagePool
from gradus.cache.usage import CacheUsage
from phases.p04_paged_cache.cache import PagedCache
from phases.p05_prefix_cache.radix import PrefixIndex, page_keys, view


class PrefixCache(PagedCache):
    """Begins a sequence with the pages that are known (`admit`), and makes its computed pages known (`publish`)."""

    def __init__(self, pages: int, page_size: int) -> None:
        super().__init__(pages, page_size)
        self.index = PrefixIndex()
        self.pool = PagePool(pages, indexed=self.index.owners)
        self.queried_positions = self.hit_positions = self.evictions = 0

    def admit(self, id: Hashable, tokens: list[int], salt: Hashable) -> int:
        """Begin a sequence with the pages of its longest known prefix. Returns how many positions they hold.

        The last token is always left to compute: its row gives the logits for the next one. For the statistics,
        queried_positions grows by the tokens of the sequence and hit_positions by the positions found.
        """
        pages = self.index.match(page_keys(tokens[:-1], self.page_size, salt))
        self.pool.share(*pages)
        self.block_tables[id] = pages
        found = self.lengths[id] = len(pages) * self.page_size
        self.queried_positions += len(tokens)
        self.hit_positions += found
        return found

    def publish(self, id: Hashable, tokens: list[int], salt: Hashable) -> None:
        """Make the pages that the sequence has filled findable, after a step has run.

        If another sequence was first with the same prefix, this one switches to its pages and gives back its
        own copies. So a sequence holds every page of its path in the tree.
        """
        table = self.block_tables[id]
        keys = page_keys(tokens[: self.stored(id)], self.page_size, salt)
        for place, page in enumerate(self.index.insert(keys, table[: len(keys)])):
            if page != table[place]:
                self.pool.share(page)
                self.pool.drop(table[place])
                table[place] = page

    def take(self, count: int) -> list[int]:
        while len(self.pool.free) < count:
            self.evict()
        return super().take(count)

    def evict(self) -> None:
        """Forget the page that has been idle longest."""
        (page,) = self.pool.oldest_idle(1)
        self.index.remove(page)
        self.pool.reclaim(page)
        self.evictions += 1

    def forget(self) -> None:
        """Evict all idle pages: a benchmark's next run finds nothing of the one before."""
        while self.pool.idle:
            self.evict()

    # -- the books ---------------------------------------------------------------------------------------------------

    def tree(self) -> tuple[TreeNode, ...]:
        """For probes: the top nodes of the index."""
        return tuple(map(view, self.index.root.children.values()))

    def usage(self) -> CacheUsage:
        return replace(
            super().usage(),
            queried_positions=self.queried_positions,
            hit_positions=self.hit_positions,
            evictions=self.evictions,
        )

    def check(self) -> None:
        """Check as p04 does; the index also knows where its pages are, and could evict the idle ones in their order."""
        super().check()
        self.index.check()
        turns = {page: turn for turn, page in enumerate(self.pool.idle)}
        for node in self.index.nodes():
            above = node.parent.pages[-1:] if node.parent else []
            for page, behind in pairwise([*above, *node.pages]):
                in_order = page not in turns or turns.get(behind, len(turns)) < turns[page]
                assert in_order, f"page {page} would be evicted before page {behind}, which is behind it"
