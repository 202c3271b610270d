"""The waiting queue: best first under every policy, and never searched whole, however long it gets. No torch here."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from gradus.config.options import Policy
from gradus.engine.sequence import Sequence
from gradus.engine.sequence_heap import SequenceHeap

RANKS: dict[Policy, Callable[[Sequence], float]] = {
    "fcfs": lambda sequence: 0.0,
    "priority": lambda sequence: float(sequence.request.scheduling.priority),
    "deadline": lambda sequence: sequence.due,
}
"""The rank of a sequence under each policy: the smallest goes first; equal ranks go in order of arrival."""


class WaitingQueue:
    """Waiting sequences by their `order`, and how many tokens each class of them still wants.

    A class is a rank, rounded up to a whole number: one under "fcfs", one per priority, and under "deadline" one for
    each second in which a deadline falls.
    """

    def __init__(self) -> None:
        self.count = 0
        self.wanted: Counter[float] = Counter()  # class → tokens
        self.longest = 0  # the most tokens that a sequence wanted since the queue was last empty
        self._heap = SequenceHeap()

    def push(self, sequence: Sequence) -> None:
        self._heap.push(*sequence.order, sequence)
        self._book(sequence, 1)

    def extend(self, sequences: Iterable[Sequence], /) -> None:
        for sequence in sequences:
            self.push(sequence)

    def head(self) -> Sequence | None:
        """Return the next sequence to start; None when none waits."""
        head = self._heap.head() if self.count else None
        return None if head is None else head[1]

    def popleft(self) -> Sequence:
        """Take out the next sequence to start. Raises IndexError when none waits."""
        if (head := self.head()) is None:
            raise IndexError("no sequence waits")
        self.take(head)
        return head

    def some(self, count: int) -> list[Sequence]:
        """List up to `count` waiting sequences, the head first, and mostly those that would start early."""
        return list(islice(self._heap, count))

    def take(self, sequence: Sequence) -> None:
        """Take out a sequence that starts: the head at once, another one by a search."""
        if sequence is self.head():
            self._heap.pop()
        else:
            self._heap.take(sequence)
        self._book(sequence, -1)

    def remove(self, sequence: Sequence, /) -> None:
        """Drop a sequence that ends while it waits. Its finish_reason must be set before the next call."""
        self._book(sequence, -1)

    def learn(self, sequence: Sequence, tokens: int) -> None:
        """Record that a waiting sequence got `tokens` more, from a step under way when it was preempted."""
        class_ = class_of(sequence)
        self.wanted[class_] -= tokens
        if not self.wanted[class_]:
            del self.wanted[class_]

    def steps_ahead(self, rank: float, slots: int) -> float:
        """Return the fewest steps before a new sequence of this rank can start, if all others run to their full length.

        A step gives each slot one token. When the new sequence starts, at most slots - 1 sequences ahead of it still
        run; all others have their tokens by then.
        """
        ahead = sum(tokens for class_, tokens in self.wanted.items() if class_ <= rank)
        return max(0.0, (ahead - (slots - 1) * self.longest) / slots)

    def _book(self, sequence: Sequence, sign: int) -> None:
        tokens = sequence.longest - len(sequence.tokens)
        class_ = class_of(sequence)
        self.count += sign
        self.wanted[class_] += sign * tokens
        if not self.wanted[class_]:
            del self.wanted[class_]
        self.longest = max(self.longest, tokens) if self.count else 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate over the waiting sequences, in no order."""
        return iter(self._heap)

    def check(self) -> None:
        """Assert that count and tokens match the waiting sequences."""
        wanted: Counter[float] = Counter()
        for sequence in self:
            wanted[class_of(sequence)] += sequence.longest - len(sequence.tokens)
        assert self.count == sum(1 for _ in self), "the queue lost count"
        assert self.wanted == wanted, "the queue's load is not what waits in it"


def class_of(sequence: Sequence) -> float:
    rank = sequence.order[0]
    return rank if math.isinf(rank) else math.ceil(rank)


class Siblings:
    """Samples that wait, outside the queue, until the prefix index has the prompt from their request's first sample.

    Then they hit it there; started earlier, each would compute it again.
    """

    def __init__(self) -> None:
        self._held: dict[str, list[Sequence]] = {}  # request id → samples in their order, at least one
        self.count = 0

    def hold(self, request_id: str, sequences: list[Sequence]) -> None:
        if sequences:
            self._held[request_id] = sequences
            self.count += len(sequences)

    def held(self, request_id: str) -> int:
        return len(self._held.get(request_id, ()))

    def take(self, request_id: str, count: int) -> list[Sequence]:
        """Take out the first `count` samples held for the request."""
        if request_id not in self._held:
            return []
        held = self._held.pop(request_id)
        self.count -= len(held)
        self.hold(request_id, held[count:])
        return held[:count]

    def remove(self, sequence: Sequence) -> bool:
        """Drop a sequence that ends while held. False if it is not held."""
        held = self._held.get(sequence.request.id, [])
        if sequence not in held:
            return False
        self.take(sequence.request.id, len(held))
        self.hold(sequence.request.id, [other for other in held if other is not sequence])
        return True

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for held in self._held.values() for sequence in held)
