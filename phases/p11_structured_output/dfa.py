"""An automaton that is in one state at a time: one for every set of states that the NFA can be in at once.

It follows a text with one look-up per byte (the subset construction, Rabin and Scott 1959).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from phases.p11_structured_output.expression import Expression
from phases.p11_structured_output.nfa import Nfa, nfa_of, too_large

MOST_STATES = 4096


@dataclass(frozen=True, slots=True)
class Dfa:
    """steps: the next state by byte, of each state; with a byte that is not there, nothing can match any more.

    accepting: whether the text that led to each state is a match. It begins in state 0. A match can follow every state.
    """

    steps: list[dict[int, int]]
    accepting: list[bool]

    def follow(self, state: int, text: bytes) -> int | None:
        """The state behind these bytes; None if nothing can match any more."""
        at: int | None = state
        for byte in text:
            at = None if at is None else self.steps[at].get(byte)
        return at

    def forced(self, state: int) -> bytes:
        """The bytes that every match must continue with."""
        text = bytearray()
        while not self.accepting[state] and len(self.steps[state]) == 1:
            ((byte, state),) = self.steps[state].items()
            text.append(byte)
        return bytes(text)


def dfa_of(node: Expression) -> Dfa:
    """Build the automaton of an expression. Raises RequestError if it has too many states."""
    nfa, last = nfa_of(node)
    return subsets(nfa, last)


def closure(nfa: Nfa, states: Iterable[int]) -> frozenset[int]:
    """The states that these ones jump to over any number of jumps, themselves included.

    States that only jump are left out: they take no byte, and with them equal sets would look different.
    """
    found, left = set(states), list(states)
    while left:
        for state in nfa.jumps[left.pop()]:
            if state not in found:
                found.add(state)
                left.append(state)
    return frozenset(state for state in found if nfa.moves[state] or not nfa.jumps[state])


def moved(nfa: Nfa, states: Iterable[int]) -> dict[int, set[int]]:
    """The states that these ones lead to, by byte, before any jump."""
    behind: dict[int, set[int]] = {}
    for state in states:
        for first, last, target in nfa.moves[state]:
            for byte in range(first, last + 1):
                behind.setdefault(byte, set()).add(target)
    return behind


def subsets(nfa: Nfa, last: int) -> Dfa:
    """Number the sets of states as they are found, beginning with the one that contains the NFA's state 0.

    last: the NFA's state in which a text matches. Raises RequestError beyond MOST_STATES.
    """
    start = closure(nfa, [0])
    numbers, found = {start: 0}, [start]
    steps: list[dict[int, int]] = []
    for states in found:  # grows in the loop
        steps.append({})
        for byte, targets in moved(nfa, states).items():
            behind = closure(nfa, targets)
            if behind not in numbers:
                if len(found) == MOST_STATES:
                    raise too_large(MOST_STATES)
                numbers[behind] = len(found)
                found.append(behind)
            steps[-1][byte] = numbers[behind]
    return Dfa(steps, [last in states for states in found])
