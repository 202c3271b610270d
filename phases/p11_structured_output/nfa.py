"""An expression becomes an automaton over the bytes of UTF-8 that may be in several states at once (Thompson 1968).

It is easy to build: every kind of node adds a few states between the one that it begins in and the one that it ends in.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradus.errors import RequestError
from phases.p11_structured_output.characters import Ranges
from phases.p11_structured_output.expression import Characters, Either, Expression, InOrder, Repeat

MOST_NFA_STATES = 50_000

Run = tuple[tuple[int, int], ...]  # first and last value of each byte of some characters


@dataclass(slots=True)
class Nfa:
    """moves: (first byte, last byte, next state) of each state. jumps: the states that come with it. It begins in 0."""

    moves: list[list[tuple[int, int, int]]] = field(default_factory=list)
    jumps: list[list[int]] = field(default_factory=list)

    def new(self) -> int:
        if len(self.moves) == MOST_NFA_STATES:
            raise too_large(MOST_NFA_STATES)
        self.moves.append([])
        self.jumps.append([])
        return len(self.moves) - 1

    def add(self, node: Expression, start: int) -> int:
        """Add what leads from `start` through the node. Returns the state behind it."""
        match node:
            case Characters(ranges):
                return self.add_characters(ranges, start)
            case InOrder(parts):
                for part in parts:
                    start = self.add(part, start)
                return start
            case Either(parts):
                end = self.new()
                for part in parts:
                    self.jumps[self.add(part, self.after(start))].append(end)
                return end
            case Repeat(part, least, most):
                for _ in range(least - 1 if most is None else least):
                    start = self.add(part, start)
                return (
                    self.add_loop(part, start, least) if most is None else self.add_optional(part, start, most - least)
                )

    def add_characters(self, ranges: Ranges, start: int) -> int:
        """Add a way for each run of bytes. Ways that end alike share their last states."""
        end = self.new()
        left: dict[Run, int] = {(): end}  # the state from which these bytes are still to come
        for low, high in ranges:
            for run in utf8(low, high):
                for size in range(1, len(run)):
                    tail = run[-size:]
                    if tail not in left:
                        left[tail] = self.new()
                        self.moves[left[tail]].append((*tail[0], left[tail[1:]]))
                self.moves[start].append((*run[0], left[run[1:]]))
        return end

    def add_loop(self, part: Expression, start: int, least: int) -> int:
        loop = self.after(start)
        end = self.add(part, loop)
        self.jumps[end].append(loop)
        behind = self.after(end)
        if not least:
            self.jumps[loop].append(behind)
        return behind

    def add_optional(self, part: Expression, start: int, most: int) -> int:
        end = self.new()
        for _ in range(most):
            self.jumps[start].append(end)
            start = self.add(part, self.after(start))
        self.jumps[start].append(end)
        return end

    def after(self, state: int) -> int:
        """A new state that `state` jumps to."""
        new = self.new()
        self.jumps[state].append(new)
        return new


def utf8(low: int, high: int) -> Iterator[Run]:
    """Split a range of characters so that in each part, every byte has a range of its own, whatever the others are."""
    for limit in (0x7F, 0x7FF, 0xFFFF):  # the last characters of one, two and three bytes
        if low <= limit < high:
            yield from utf8(low, limit)
            yield from utf8(limit + 1, high)
            return
    for bits in (6, 12, 18):  # that the last one, two and three bytes hold
        tail = (1 << bits) - 1
        if low >> bits != high >> bits and (low & tail or high & tail != tail):
            middle = low | tail if low & tail else (high & ~tail) - 1
            yield from utf8(low, middle)
            yield from utf8(middle + 1, high)
            return
    yield tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))


def nfa_of(node: Expression) -> tuple[Nfa, int]:
    """Build the automaton of an expression. Returns it with the state in which a text matches."""
    nfa = Nfa()
    return nfa, nfa.add(node, nfa.new())


def too_large(limit: int) -> RequestError:
    said = f"an expression whose automaton has at most {limit:,} states"
    return RequestError(f"structured must be {said}, got a larger one", param="structured", limit=said)
