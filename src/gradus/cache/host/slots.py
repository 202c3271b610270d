"""Places of host memory, one page each, by the page's key: least recently used first, exactly.

A place that a copy or a thread works on is *in use*. It is neither given to another page nor free until that work ends,
even if its page has been forgotten meanwhile. A page in use when its turn to go comes counts as used now: where a disk
is slow, thousands of the oldest pages wait to be written, and must not be looked at again for each page that comes.
Calls take many pages: the pool gives up thousands per second.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

NO_PLACE = -1


class Slots:
    """`count` places, numbered from 0. evictions: pages that went for newer ones."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.evictions = 0
        self._places: OrderedDict[bytes, int] = OrderedDict()  # by key, the least recently used first
        self._free = array("i", range(count - 1, -1, -1))  # a stack, with place 0 on top
        self._uses = array("i", bytes(4 * count))  # by place
        self._keys: list[bytes | None] = [None] * count  # by place: whose contents it holds, or will

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def place(self, key: bytes) -> int:
        """The place of a page. Raises KeyError for one that is not here."""
        return self._places[key]

    def holds(self, place: int, key: bytes) -> bool:
        """Whether a place is that of a page."""
        return self._keys[place] == key

    def missing(self, keys: Iterable[bytes]) -> int:
        """Count the pages that are not here."""
        places = self._places
        return sum([key not in places for key in keys])

    def touch(self, keys: Iterable[bytes]) -> None:
        """Make each page that is here the most recently used, one after another."""
        places, move = self._places, self._places.move_to_end
        for key in keys:
            if key in places:
                move(key)

    def enter(self, keys: Sequence[bytes]) -> list[int]:
        """Make pages the most recently used, one after another. A page that is not here gets a place, in use, and the
        least recently used page goes if none is free.

        Returns these places; NO_PLACE for a page that was here, or that found all places in use.
        """
        found, places, move, room = list[int](), self._places, self._places.move_to_end, True
        for key in keys:
            place = NO_PLACE
            if key in places:
                move(key)
            elif self._free or (room := room and self._evict()):  # once there is none, this call makes none
                place = self._free.pop()
                places[key], self._keys[place], self._uses[place] = place, key, 1
            found.append(place)
        return found

    def _evict(self) -> bool:
        """Free the place of the least recently used page. False if all are in use."""
        for _ in range(len(self._places)):
            key, place = next(iter(self._places.items()))
            if not self._uses[place]:
                del self._places[key]
                self._keys[place] = None
                self._free.append(place)
                self.evictions += 1
                return True
            self._places.move_to_end(key)
        return False

    def remove(self, key: bytes) -> None:
        """Forget a page. One that is not here is allowed."""
        place = self._places.pop(key, None)
        if place is not None:
            self._keys[place] = None
            if not self._uses[place]:
                self._free.append(place)

    def in_use(self, place: int) -> bool:
        """Whether a copy or thread works on a place."""
        return self._uses[place] > 0

    def use(self, place: int) -> None:
        """Note that another copy or thread works on a place."""
        self._uses[place] += 1

    def done(self, places: Iterable[int]) -> None:
        """Note that a copy or thread is done with these places, one use each."""
        uses, keys = self._uses, self._keys
        for place in places:
            uses[place] -= 1
            if keys[place] is None and not uses[place]:
                self._free.append(place)

    def by_use(self) -> list[bytes]:
        """The pages, the least recently used first."""
        return list(self._places)

    def check(self) -> None:
        """Assert that each place is free, or has a page, or is still in use by what works on a page forgotten."""
        free, held = set(self._free), set(self._places.values())
        assert len(free) == len(self._free) and len(held) == len(self._places), "a place is twice in use"
        assert not free & held, "a place is free and holds a page"
        left = set(range(self.count)) - free - held
        assert all(self._uses[place] > 0 for place in left), "a place is lost"
        assert all(self._uses[place] == 0 for place in free), "a place is free and in use"
        assert all(self._keys[place] == key for key, place in self._places.items())
