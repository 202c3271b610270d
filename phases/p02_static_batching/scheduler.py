"""Batches that start together and end together."""

from gradus.cache import CacheManager
from gradus.engine.plan import Plan
from phases.p00_baseline.scheduler import Scheduler


class StaticBatching(Scheduler):
    """Takes up to `max_sequences` from the queue, runs them all to their ends, then takes the next batch."""

    def __init__(self, cache: CacheManager, max_sequences: int) -> None:
        super().__init__(cache)
        self.max_sequences = max_sequences

    def schedule(self) -> Plan | None:
        admissions = []
        if not self.running:
            admissions = [self.start(slot) for slot in range(min(self.max_sequences, len(self.waiting)))]
        if not self.running:
            return None
        return Plan([self.span(sequence) for sequence in self.running], admissions)
