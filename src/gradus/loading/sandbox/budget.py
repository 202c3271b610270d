"""The work and the memory that one rendering may take.

A unit of work takes some 50 ns: the template evaluates a node, or an operation reads 32 characters. Memory is the sum
of all bytes created. Freed bytes count too, so the sum is an upper bound of the memory in use at any moment.
"""

from collections.abc import ItemsView, KeysView, ValuesView
from itertools import chain
from typing import Any

import jinja2

WORK = 1_000_000
WORK_PER_WEIGHT = 8
MEMORY = 48 << 20  # bytes
MEMORY_PER_WEIGHT = 64
LARGEST_VALUE = 32 << 20  # bytes of one text or list

QUICK_GROWTH = 6
SHORT = 4096  # characters; the nodes of a template pay for the time that shorter texts take
NODE = 8  # the weight of a value without its characters
VIEWS = (KeysView, ItemsView, ValuesView)


class Exhausted(jinja2.TemplateRuntimeError):
    """A rendering would take more than its budget. limit: the amount that it would exceed."""

    def __init__(self, limit: str) -> None:
        super().__init__(f"needs more than {limit}")
        self.limit = limit


class Budget:
    """The work and memory left for one rendering.

    inputs: the values that the conversation gives the template. Each character, and each NODE-th of a value, adds
    WORK_PER_WEIGHT units of work and MEMORY_PER_WEIGHT bytes. They are weighed only when the rest is used up.
    """

    __slots__ = ("_inputs", "_weights", "memory", "most_memory", "most_work", "work")

    def __init__(self, *inputs: object) -> None:
        self._weights: dict[int, tuple[object, int]] = {}
        self._inputs: tuple[object, ...] | None = inputs
        self.work = self.most_work = WORK
        self.memory = self.most_memory = MEMORY

    def spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0 or self.memory < 0:
            self.extend()

    def create(self, size_bytes: int) -> None:
        """Pay for a value that is about to be created, and for writing it. Fewer than 0 bytes cost nothing."""
        size_bytes = max(size_bytes, 0)
        self.memory -= size_bytes
        self.work -= 1 + (size_bytes >> 9)
        if self.work < 0 or self.memory < 0 or size_bytes > LARGEST_VALUE:
            self.extend(size_bytes)

    def take(self, text: str) -> None:
        """Pay for an operation on a short text, whose result is at most QUICK_GROWTH times as long."""
        self.memory -= QUICK_GROWTH * room(text)
        if self.memory < 0:
            self.extend()

    def extend(self, size_bytes: int = 0) -> None:
        """Add what the inputs justify, once. Raises Exhausted if that is not enough. size_bytes: of a value."""
        if self._inputs is not None:
            inputs, self._inputs = self._inputs, None
            left, self.work, self.memory = (self.work, self.memory), 1 << 62, 0  # weighing them is free
            weight = sum(map(self.weigh, inputs))
            self.most_work += WORK_PER_WEIGHT * weight
            self.most_memory += MEMORY_PER_WEIGHT * weight
            self.work, self.memory = left[0] + WORK_PER_WEIGHT * weight, left[1] + MEMORY_PER_WEIGHT * weight
        most = LARGEST_VALUE + self.most_memory - MEMORY
        if size_bytes > most:
            raise Exhausted(f"{most >> 20} MiB for one value")
        if self.memory < 0:
            raise Exhausted(f"{self.most_memory >> 20} MiB of memory")
        if self.work < 0:
            raise Exhausted(f"{self.most_work} steps")

    def read(self, *values: object) -> None:
        """Pay for one pass over the values."""
        for value in values:
            self.spend(1 + (self.weigh(value) >> 5))

    def weigh(self, value: Any) -> int:
        """Return NODE for a value and for each value in it, at any depth, plus the characters of all texts.

        A list may hold another one twice, and so on: then its weight grows exponentially with the depth, like the time
        to compare or to write it. Containers cannot change, so each is weighed once.
        """
        kind = type(value)
        if kind in (list, tuple, dict):
            known = self._weights.get(id(value))
            if known is None:
                known = self._weights[id(value)] = value, self._weigh_items(value)  # kept alive: so is its id
            return known[1]
        if isinstance(value, str):
            return NODE + len(value)
        if kind is range:
            return NODE + NODE * len(value)
        if isinstance(value, VIEWS):
            return self._weigh_items(list(value))
        return NODE

    def _weigh_items(self, value: Any) -> int:
        self.spend(1 + len(value))
        total = NODE
        for item in chain(value, value.values()) if type(value) is dict else value:
            total += NODE + len(item) if type(item) is str else self.weigh(item)
        return total


def room(text: str) -> int:
    """Return the most bytes that a text takes."""
    return len(text) if text.isascii() else 4 * len(text)


def size_of(*texts: str, characters: int | None = None) -> int:
    """Return the most bytes that texts take, or `characters` made of theirs."""
    count = sum(map(len, texts)) if characters is None else characters
    return count if all(text.isascii() for text in texts) else 4 * count
