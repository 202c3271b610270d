"""The waiting line: best first, whatever the policy, and never searched however long it gets. No torch here."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from gradus.config.options import Policy
from gradus.engine.sequence import Sequence
from gradus.engine.sequence_heap import SequenceHeap

RANKS: dict[Policy, Callable[[Sequence], float]] = {
    "fcfs": lambda sequence: 0.0,
    "priority": lambda sequence: float(sequence.request.scheduling.priority),
    "deadline": lambda sequence: sequence.due,
}
"""What goes first under each policy: the smallest rank; among equals, the first to come."""


class WaitingQueue:
    """Sequences by their `order`, and how many tokens each class of them still wants.

    A class is a rank, rounded up to a whole number: one under "fcfs", one per priority, and under "deadline" one for
    each second in which a deadline falls.
    """

    def __init__(self) -> None:
        self.wanted: Counter[float] = Counter()  # class → tokens
        self.longest = 0  # the most tokens that one has wanted since the queue was last empty
        self._heap = SequenceHeap()
        self._count = 0

    def push(self, sequence: Sequence) -> None:
        self._heap.push(*sequence.order, sequence)
        self._book(sequence, 1)

    def extend(self, sequences: Iterable[Sequence], /) -> None:
        for sequence in sequences:
            self.push(sequence)

    def head(self) -> Sequence | None:
        """The next to go; None when none waits."""
        head = self._heap.head()
        return None if head is None else head[1]

    def popleft(self) -> Sequence:
        """Take out the next to go. Raises IndexError when none waits."""
        if self.head() is None:
            raise IndexError("no sequence waits")
        sequence = self._heap.pop()
        self._book(sequence, -1)
        return sequence

    def remove(self, sequence: Sequence, /) -> None:
        """It ends while it waits: from the next call on, its finish_reason is set."""
        self._book(sequence, -1)

    def learn(self, sequence: Sequence, tokens: int) -> None:
        """A waiting sequence has just got so many more tokens, by a step that was under way when it was preempted."""
        class_ = class_of(sequence)
        self.wanted[class_] -= tokens
        if not self.wanted[class_]:
            del self.wanted[class_]

    def steps_ahead(self, rank: float, slots: int) -> float:
        """The fewest steps before a newcomer of that rank can start, if every sequence runs to its full length.

        A step brings each slot one token. When a newcomer starts, at most slots - 1 of those ahead still run; what all
        the others wanted is done by then.
        """
        ahead = sum(tokens for class_, tokens in self.wanted.items() if class_ <= rank)
        return max(0.0, (ahead - (slots - 1) * self.longest) / slots)

    def _book(self, sequence: Sequence, sign: int) -> None:
        tokens = sequence.longest - len(sequence.tokens)
        class_ = class_of(sequence)
        self._count += sign
        self.wanted[class_] += sign * tokens
        if not self.wanted[class_]:
            del self.wanted[class_]
        self.longest = max(self.longest, tokens) if self._count else 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait, in no order."""
        return iter(self._heap)

    def check(self) -> None:
        """Count and tokens are those of the sequences in it."""
        wanted: Counter[float] = Counter()
        for sequence in self:
            wanted[class_of(sequence)] += sequence.longest - len(sequence.tokens)
        assert self._count == sum(1 for _ in self), "the queue lost count"
        assert self.wanted == wanted, "the queue's load is not what waits in it"


def class_of(sequence: Sequence) -> float:
    rank = sequence.order[0]
    return rank if math.isinf(rank) else math.ceil(rank)


class Siblings:
    """Samples of a request that wait, outside the queue, for the first one's prompt to be in the prefix index.

    Then they find it there, where now each would compute it for itself.
    """

    def __init__(self) -> None:
        self._held: dict[str, list[Sequence]] = {}  # request id → samples in their order, never none
        self._count = 0

    def hold(self, request_id: str, sequences: list[Sequence]) -> None:
        if sequences:
            self._held[request_id] = sequences
            self._count += len(sequences)

    def held(self, request_id: str) -> int:
        return len(self._held.get(request_id, ()))

    def take(self, request_id: str, count: int) -> list[Sequence]:
        """The first `count` that the request holds back, no longer held."""
        if request_id not in self._held:
            return []
        held = self._held.pop(request_id)
        self._count -= len(held)
        self.hold(request_id, held[count:])
        return held[:count]

    def remove(self, sequence: Sequence) -> bool:
        """It ends. False if it is none of those held."""
        held = self._held.get(sequence.request.id, [])
        if sequence not in held:
            return False
        self.take(sequence.request.id, len(held))
        self.hold(sequence.request.id, [other for other in held if other is not sequence])
        return True

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for held in self._held.values() for sequence in held)
