"""Stands in for the tensors: remembers what was written to which page, and sees what a query would read."""

from collections.abc import Hashable

from gradus.cache import TableChange
from gradus.cache.paged import PagedCache

NAN = "not a finite number"
Tables = tuple[tuple[int, ...], ...]


def updated(known: Tables, change: TableChange | None) -> Tables:
    """Return block tables as a reader knows them that has received every change."""
    if change is None:
        return known
    before = known or ((),) * len(change.pages)
    return tuple(table[: change.kept] + pages for table, pages in zip(before, change.pages, strict=True))


class Memory:
    """One cell a position of a page. A key depends on its layer group, on every token before it, and (so that salts
    are seen to be kept apart) on the salt."""

    def __init__(self, page_size: int, windows: tuple[int | None, ...]) -> None:
        self.page_size = page_size
        self.windows = windows
        self.cells: dict[tuple[int, int], Hashable] = {}

    def write(self, tables, tokens: list[int], salt: Hashable, start: int, end: int, poisoned: bool = False) -> None:
        for group, table in enumerate(tables):
            for position in range(start, end):
                key = NAN if poisoned else self._key(group, tokens, salt, position)
                self.cells[self._cell(table, position)] = key

    def read(self, tables, tokens: list[int], salt: Hashable, start: int, end: int) -> None:
        """Assert that the queries [start, end) find what this sequence stored, wherever they may look."""
        for group, (table, window) in enumerate(zip(tables, self.windows, strict=True)):
            first = 0 if window is None else max(0, start - window + 1)
            for position in range(first, end):
                found = self.cells.get(self._cell(table, position))
                assert found == self._key(group, tokens, salt, position), "a query reads what somebody else stored"
            loaded = {page for page in table[first // self.page_size :] if page}
            assert not [cell for cell in self.cells if cell[0] in loaded and self.cells[cell] == NAN]

    def wipe(self, pages: tuple[int, ...]) -> None:
        self.cells.update({(page, offset): 0 for page in pages for offset in range(self.page_size)})

    def _cell(self, table, position: int) -> tuple[int, int]:
        page = table[position // self.page_size]
        assert page != 0, f"position {position} has no page"
        return page, position % self.page_size

    def _key(self, group: int, tokens: list[int], salt: Hashable, position: int) -> Hashable:
        return group, salt, hash(tuple(tokens[: position + 1]))


class Sequence:
    """Drives one sequence through a cache as a scheduler would, and through the memory."""

    def __init__(self, cache: PagedCache, memory: Memory, id: Hashable, tokens: list[int], salt: Hashable = None):
        self.cache, self.memory, self.id, self.tokens, self.salt = cache, memory, id, tokens, salt
        self.hit = self.stored = cache.admit(id, tokens, salt)  # the cache counts what is reserved, this what is there
        self.tables: Tables = ()

    def step(self, count: int, publish: bool = True, poisoned: bool = False) -> bool:
        """Run a span of up to `count` tokens; one more token is sampled when all are stored. False: no room."""
        start = self.stored
        end = min(start + count, len(self.tokens))
        if not self._find_room(start, end):
            return False
        assert self.cache.stored(self.id) >= end
        self.stored = end
        self.tables = updated(self.tables, self.cache.table_change(self.id))
        self.memory.wipe(self.cache.take_wiped())
        self.memory.write(self.tables, self.tokens, self.salt, start, end, poisoned)
        if poisoned:
            return True
        self.memory.read(self.tables, self.tokens, self.salt, start, end)
        if end == len(self.tokens):
            self.tokens.append(len(self.tokens) % 2)
        if publish:
            self.cache.publish(self.id, self.tokens, self.stored)
        return True

    def _find_room(self, start: int, end: int) -> bool:
        """A decode that enters a page reserves it whole."""
        enters = start > 0 and start % self.cache.page_size == 0 and self.cache.stored(self.id) == start
        if enters and end == start + 1 == len(self.tokens):
            changes = self.cache.add_pages([self.id])
            if changes is not None:
                self.tables = updated(self.tables, *changes)
            return changes is not None
        return end <= self.cache.stored(self.id) or self.cache.reserve(self.id, end)

    def release(self, poisoned: bool = False) -> None:
        self.cache.release(self.id, poisoned)
        self.stored = 0
