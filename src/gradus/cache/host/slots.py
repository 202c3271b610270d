"""Places of host memory, one page each, by the name of the page: least recently used first, exactly.

A place that a copy or a thread works on is *in use*. It is neither given to another page nor free until that work ends,
even if its page has been forgotten meanwhile.
"""

from array import array
from collections import OrderedDict


class Slots:
    """`count` places, numbered from 0. evictions: pages that went for newer ones."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.evictions = 0
        self._places: OrderedDict[str, int] = OrderedDict()  # by name, the least recently used first
        self._free = array("i", range(count - 1, -1, -1))  # a stack, with place 0 on top
        self._uses = array("i", bytes(4 * count))  # by place
        self._names: list[str | None] = [None] * count  # by place: whose contents it holds, or will

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __len__(self) -> int:
        return len(self._places)

    def place(self, name: str) -> int:
        """The place of a page. Raises KeyError for one that is not here."""
        return self._places[name]

    def touch(self, name: str) -> bool:
        """Make a page the most recently used. False if it is not here."""
        if name not in self._places:
            return False
        self._places.move_to_end(name)
        return True

    def add(self, name: str) -> int | None:
        """Give a new page a place, in use, as the most recently used. The least recently used page goes if none is
        free; None if all are in use."""
        if not self._free and not self._evict():
            return None
        place = self._free.pop()
        self._places[name], self._names[place], self._uses[place] = place, name, 1
        return place

    def _evict(self) -> bool:
        for name, place in self._places.items():
            if not self._uses[place]:
                self.remove(name)
                self.evictions += 1
                return True
        return False

    def remove(self, name: str) -> None:
        """Forget a page. One that is not here is allowed."""
        place = self._places.pop(name, None)
        if place is not None:
            self._names[place] = None
            if not self._uses[place]:
                self._free.append(place)

    def use(self, place: int) -> None:
        """Note that another copy or thread works on a place."""
        self._uses[place] += 1

    def done(self, place: int) -> None:
        """Note that one of them is done."""
        self._uses[place] -= 1
        if not self._uses[place] and self._names[place] is None:
            self._free.append(place)

    def names(self) -> list[str]:
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
        assert all(self._names[place] == name for name, place in self._places.items())
