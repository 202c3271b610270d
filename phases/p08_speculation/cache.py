"""p05's cache that can take back: the positions of rejected drafts are forgotten."""

from collections.abc import Hashable

from phases.p05_prefix_cache.cache import PrefixCache


class RollbackCache(PrefixCache):
    """Truncates a sequence to the positions that are right."""

    def truncate(self, id: Hashable, end: int) -> None:
        """Forget the positions from `end` on. A page without any position left is free again, the last one first.

        Nothing is erased: the next tokens overwrite those keys and values, and attention reads none beyond a
        sequence's length. The pages dropped are the sequence's own, for only accepted tokens are ever published.
        """
        table = self.block_tables[id]
        pages = self.pages_for(end)
        self.pool.drop(*reversed(table[pages:]))
        del table[pages:]
        self.lengths[id] = end
