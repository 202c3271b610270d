"""Planning one step ahead: a plan needs lengths, pages and slots, and none of them depends on which token is sampled.

The next step is planned while the one before still runs. Its decodes begin with a token that only the device knows:
`UNKNOWN` takes its place. The outcome of a step is known one plan too late, and `record` corrects for that: a
sequence may have stopped, been cancelled or been preempted since the step was planned.
"""

from collections import Counter

from gradus.engine.plan import UNKNOWN, Plan, Span
from gradus.engine.sequence import Output, Sequence, SpanResult
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.scheduler import ChunkedPrefill


class PlanningAhead(ChunkedPrefill):
    """p06's scheduler, counting for each sequence the tokens that planned steps will sample. With none it is p06's."""

    def __init__(self, cache: PrefixCache, max_sequences: int, token_budget: int) -> None:
        super().__init__(cache, max_sequences, token_budget)
        self.unknown: Counter[Sequence] = Counter()  # tokens that are planned and not recorded

    # -- before a step -----------------------------------------------------------------------------------------------

    def length(self, sequence: Sequence) -> int:
        """The length that the sequence will have once every planned step has run."""
        return len(sequence.tokens) + self.unknown[sequence]

    def advance(self, sequence: Sequence, plan: Plan) -> None:
        """Advance as p04 does, except that a sequence whose last token is planned needs no further step."""
        if self.length(sequence) < sequence.longest:
            super().advance(sequence, plan)

    def end_of_span(self, sequence: Sequence) -> int:
        """End as p06 does, counting the tokens in flight."""
        return min(self.length(sequence), self.cache.stored(sequence.id) + self.left)

    def span(self, sequence: Sequence) -> Span:
        """Plan as p06 does. A span that begins after the known tokens decodes one that only the device knows."""
        span = super().span(sequence)
        if not span.tokens:
            span.tokens, span.logits = (UNKNOWN,), 1
        self.unknown[sequence] += span.logits
        return span

    def may_start(self, sequence: Sequence) -> bool:
        """Decide as p06 does. A preempted sequence waits until all its tokens are known: they are its next prompt."""
        return self.length(sequence) == len(sequence.tokens) and super().may_start(sequence)

    # -- after a step ------------------------------------------------------------------------------------------------

    def record(self, span: Span, sampled: SpanResult) -> list[Output]:
        """Record as p06 does, unless the sequence ended or was preempted while its step was in flight."""
        sequence = span.sequence
        assert sequence is not None
        self.unknown[sequence] -= span.logits
        if not self.unknown[sequence]:
            del self.unknown[sequence]  # nothing is kept of a sequence that has ended
        if sequence.finish_reason is not None:
            return []  # computed in vain
        if sequence.id not in self.cache.block_tables:
            return self.record_preempted(sequence, span, sampled)
        return super().record(span, sampled)

    def record_preempted(self, sequence: Sequence, span: Span, sampled: SpanResult) -> list[Output]:
        """Its pages are gone, its token is not. It may even end in the queue."""
        assert sequence in self.waiting, "a sequence that was preempted waits; this one has ended"
        if not span.logits:
            return []
        output = sequence.accept(sampled)
        if sequence.finish_reason is not None:
            self.waiting.remove(sequence)
        return [output]

    def check(self) -> None:
        super().check()
        for sequence, count in self.unknown.items():
            assert count >= 0 and (sequence.finish_reason is not None or self.length(sequence) <= sequence.longest)
