"""Idle pages, the least recently used first: exact LRU order at a constant cost per page.

The pages form a line of numbers in an array. A page joins at the end, and may leave from anywhere: its entry becomes 0,
a hole. The front skips holes. When the line reaches the end of the array, it moves back to the start without its holes.
The array has twice as many entries as there are pages, so a move never copies more pages than have joined since the
last.

All state of a page is an array entry: nothing is allocated per page, and the garbage collector follows
nothing, whatever the number of pages.
"""

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

HOLE, NO_PAGE = 0, -1
STRIDE = 256  # entries to search at once for one that is not a hole


class IdlePages:
    """Some of the pages 1 to `count`, in the order in which they joined."""

    def __init__(self, count: int) -> None:
        self._room = 2 * count
        self._line = array("i", [HOLE]) * self._room
        self._line.append(NO_PAGE)  # the place of pages that have never been in the line
        self._place = array("i", [self._room]) * (count + 1)  # by page: its entry, if that still names it
        self._first = self._end = self._holes = 0
        self._listed = 0  # the entries before this one were listed by `coming`

    def __len__(self) -> int:
        return self._end - self._first - self._holes

    def __contains__(self, page: int) -> bool:
        return self._line[self._place[page]] == page

    def __iter__(self) -> Iterator[int]:
        """Iterate from the least recently used page on."""
        return filter(None, self._line[self._first : self._end])

    def numbers(self) -> NDArray[np.int32]:
        """List the pages, the least recently used first."""
        line = np.frombuffer(self._line, np.int32)[self._first : self._end]
        return line[line != HOLE]

    def oldest(self, count: int) -> list[int]:
        """List up to `count` pages from the front: fewer if there are holes between them, but at least one if any
        exist."""
        return list(filter(None, self._line[self._first : min(self._first + count, self._end)]))

    def coming(self, count: int) -> list[int]:
        """List the pages among the `count` oldest that no earlier call has listed, the oldest first.

        A page that leaves and joins again is listed again. Holes count, so a page may be listed a little later.
        """
        start, end = max(self._listed, self._first), min(self._first + count, self._end)
        if start >= end:
            return []
        self._listed = end
        return list(filter(None, self._line[start:end]))

    def extend(self, pages: list[int]) -> None:
        """Append pages, which must not be in the line yet."""
        if self._end + len(pages) > self._room:
            self._close_up()
        line, place, end = self._line, self._place, self._end
        for page in pages:
            line[end], place[page] = page, end
            end += 1
        self._end = end

    def remove(self, pages: Sequence[int]) -> None:
        """Take pages out. Raises KeyError at a page that is not in the line; the line is then no longer in order."""
        line, place, first = self._line, self._place, self._first
        end = first + len(pages)
        if end <= self._end and line[first:end].tolist() == list(pages):  # the oldest, when they are evicted
            line[first:end] = array("i", bytes(4 * len(pages)))
            self._first = end
        else:
            for page in pages:
                entry = place[page]
                if line[entry] != page:
                    raise KeyError(page)
                line[entry] = HOLE
            self._holes += len(pages)
        if line[self._first] == HOLE:
            self._skip_holes()

    def _skip_holes(self) -> None:
        first, end = self._first, self._end
        while first < end and not self._line[first]:
            found = np.frombuffer(self._line, np.int32)[first : min(first + STRIDE, end)].nonzero()[0]
            first += int(found[0]) if len(found) else min(STRIDE, end - first)
        self._holes -= first - self._first
        self._first = first

    def _close_up(self) -> None:
        line, place = np.frombuffer(self._line, np.int32), np.frombuffer(self._place, np.int32)
        self._listed = int(np.count_nonzero(line[self._first : max(self._listed, self._first)]))
        pages = line[self._first : self._end]
        pages = pages[pages != HOLE]
        line[: len(pages)], place[pages] = pages, np.arange(len(pages))
        line[len(pages) : self._room] = HOLE
        self._first, self._end, self._holes = 0, len(pages), 0

    def check(self) -> None:
        """Assert that each page in the line knows its entry, and that the count of holes is right."""
        entries = self._line[self._first : self._end]
        assert self._holes == entries.count(HOLE), "the line lost count of its holes"
        assert not entries or entries[0] != HOLE, "the line begins with a hole"
        assert not any(self._line[: self._first]) and not any(self._line[self._end : self._room]), "a page outside it"
        for place, page in enumerate(entries, self._first):
            assert page == HOLE or self._place[page] == place, f"page {page} is in the line twice"
        assert self._place[0] == self._room and self._line[self._room] == NO_PAGE, "page 0 is no page"
