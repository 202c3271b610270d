"""Decide anew at every step which sequences run: iteration-level scheduling (Orca, Yu et al. 2022)."""

from gradus.cache import CacheManager
from gradus.engine.plan import Admission, Plan
from gradus.engine.sequence import Sequence
from phases.p00_baseline.scheduler import Scheduler


class ContinuousBatching(Scheduler):
    """Up to `max_sequences` run. A sequence that ends leaves its slot in that very step, and the next step gives it to
    another.

    A new sequence's prompt and the others' decodes are spans of one plan: they share the forward pass.
    """

    def __init__(self, cache: CacheManager, max_sequences: int) -> None:
        super().__init__(cache)
        self.free_slots = list(reversed(range(max_sequences)))  # the lowest free slot is on top
        self.max_sequences = max_sequences

    def schedule(self) -> Plan | None:
        admissions = self.admit()
        if not self.running:
            return None
        return Plan([self.span(sequence) for sequence in self.running], admissions)

    def admit(self) -> list[Admission]:
        """Start as many waiting sequences as there are free slots, in the order they came."""
        return [self.start(self.free_slots.pop()) for _ in range(min(len(self.free_slots), len(self.waiting)))]

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self.free_slots.append(sequence.slot)
        self.free_slots.sort(reverse=True)  # low slots first: attention reads up to the highest one in use

    def check(self) -> None:
        super().check()
        taken = [sequence.slot for sequence in self.running]
        every = sorted(taken + self.free_slots)
        assert every == list(range(self.max_sequences)), f"slots are taken {taken} and free {self.free_slots}"
