"""When each rank does what it does, on a clock that counts weights and not seconds.

A decode is as fast as weights are read (p02). So here a rank's clock goes on by one for each weight that it reads, and
by a toll for each exchange.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from phases.p12_parallelism.counted import COMPUTES, GATHER, RECEIVE, SEND, Act

EXCHANGES, WAITS = "exchanges", "waits"


@dataclass(frozen=True, slots=True)
class Piece:
    """A rank's time from `at` until `until`, in weights. kind: COMPUTES, EXCHANGES or WAITS (for what `act` needs)."""

    rank: int
    kind: str
    at: int
    until: int
    act: Act


def replay(found: Sequence[Sequence[Act]], parts: int, toll: int) -> list[Piece]:
    """Give every act its time. found: what each rank did; `parts` ranks share a stage. Returns pieces by their begin.

    A rank that gathers waits for the last one of its stage, and one that receives waits for its sender. Both then take
    `toll`. A sender goes on at once.
    """
    left = [deque(each) for each in found]
    clocks = [0] * len(left)
    sent: dict[tuple[int, int], deque[int]] = {}  # by sender and receiver: when
    pieces: list[Piece] = []

    def meet(number: int, begin: int) -> None:
        """The rank's next act is an exchange in which it can take part from `begin` on."""
        act = left[number].popleft()
        if begin > clocks[number]:
            pieces.append(Piece(number, WAITS, clocks[number], begin, act))
        begin = max(begin, clocks[number])
        clocks[number] = begin + toll
        pieces.append(Piece(number, EXCHANGES, begin, begin + toll, act))

    while any(left):
        for number, mine in enumerate(left):
            while mine and mine[0].kind in (COMPUTES, SEND):
                act = mine.popleft()
                if act.kind == SEND:
                    sent.setdefault((number, act.to or 0), deque()).append(clocks[number])
                else:
                    pieces.append(Piece(number, COMPUTES, clocks[number], clocks[number] + act.weights, act))
                    clocks[number] += act.weights
            if mine and mine[0].kind == RECEIVE and (ready := sent.get((mine[0].to or 0, number))):
                meet(number, ready.popleft())
        for first in range(0, len(left), parts):
            stage = range(first, first + parts)
            if all(left[number] and left[number][0].kind == GATHER for number in stage):
                begin = max(clocks[number] for number in stage)
                for number in stage:
                    meet(number, begin)
    return sorted(pieces, key=lambda piece: (piece.at, piece.rank))


def length(pieces: Sequence[Piece]) -> int:
    """When the last rank is done, in weights."""
    return max(piece.until for piece in pieces)
