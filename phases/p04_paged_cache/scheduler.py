"""Admission by memory, and preemption when memory runs out.

Pages are taken as sequences grow, never ahead: a sequence may end long before its longest possible length. So the pages
can run out. Then the sequence that came last gives its pages back, and is computed again when there is room. Sequences
start in the order of arrival, so `running` is in that order too: its last sequence arrived last.
"""

from gradus.cache.usage import CacheUsage
from gradus.engine.plan import Plan
from gradus.engine.sequence import Sequence
from phases.p03_continuous_batching.scheduler import ContinuousBatching
from phases.p04_paged_cache.cache import PagedCache


class PagedBatching(ContinuousBatching):
    """Run as many sequences as the slots and pages allow.

    The first running sequence is never preempted, and can have the pages of all others. `add` refuses a sequence that
    an empty pool could not hold. So the first one ends, and another becomes the first: every sequence gets its turn.
    """

    cache: PagedCache

    def schedule(self) -> Plan | None:
        """Advance running sequences, then admit waiting ones."""
        plan, preemptions = Plan([]), self.preemptions
        for sequence in self.running:  # one that is preempted leaves from the end, before the loop gets there
            self.advance(sequence, plan)
        if self.preemptions == preemptions:  # pages just taken from a sequence must not go back to it in this step
            self.let_in(plan)
        return plan if plan.spans else None

    def advance(self, sequence: Sequence, plan: Plan) -> None:
        """Plan the sequence's next span, if it still runs when there is room for it."""
        if self.make_room(sequence):
            plan.spans.append(self.span(sequence))

    def let_in(self, plan: Plan) -> None:
        """Start waiting sequences in order. The first one without room keeps the others waiting, too."""
        while self.waiting and self.free_slots and self.may_start(self.waiting[0]):
            plan.admissions.append(self.start(self.free_slots.pop()))
            plan.spans.append(self.span(self.running[-1]))

    def may_start(self, sequence: Sequence) -> bool:
        """Whether the pool has pages for the first span, plus one for each running sequence to grow into."""
        return self.cache.has_room(sequence.id, self.end_of_span(sequence), spare=len(self.running))

    def end_of_span(self, sequence: Sequence) -> int:
        """The number of positions stored after the sequence's next step: all known tokens."""
        return len(sequence.tokens)

    def make_room(self, sequence: Sequence) -> bool:
        """Preempt the sequences that came last until there is room. False: it came last itself, and is out."""
        while not self.cache.has_room(sequence.id, self.end_of_span(sequence)):
            last = self.running[-1]
            self.preempt(last)
            if last is sequence:
                return False
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Return it to the head of the queue. Its next prompt is its prompt and its output: same keys, same tokens.

        All waiting sequences arrived later, so the order of arrival holds.
        """
        self.release(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def usage(self) -> CacheUsage:
        return self.cache.usage()
