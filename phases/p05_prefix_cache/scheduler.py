"""Reuse of prefixes: look a prompt up before it starts, publish its pages when they are filled."""

from gradus.engine.plan import Span
from gradus.engine.sequence import Output, Sequence, SpanResult
from phases.p04_paged_cache.scheduler import PagedBatching
from phases.p05_prefix_cache.cache import PrefixCache


class PrefixBatching(PagedBatching):
    """A sequence starts after the longest known prefix, and its first span is the rest."""

    cache: PrefixCache

    def may_start(self, sequence: Sequence) -> bool:
        """Decide as p04 does, for the remaining tokens. Hold the pages found, or give them back on a refusal."""
        found = self.cache.admit(sequence.id, sequence.tokens, sequence.request.scheduling.cache_salt)
        if not super().may_start(sequence):
            self.cache.release(sequence.id)
            return False
        if sequence.scheduled is None:  # not when it resumes after a preemption
            sequence.cached_tokens = found
            self.cached_tokens += found
        return True

    def record(self, span: Span, sampled: SpanResult) -> list[Output]:
        """Publish before the sequence can end: its pages outlive it. Nothing is published from a step that failed."""
        sequence = span.sequence
        assert sequence is not None
        size, end = self.cache.page_size, span.start + len(span.tokens)
        if sampled.error is None and span.start // size < end // size:  # the span has filled a page
            self.cache.publish(sequence.id, self.stored_by(sequence, span), sequence.request.scheduling.cache_salt)
        return super().record(span, sampled)

    def stored_by(self, sequence: Sequence, span: Span) -> list[int]:
        """The tokens that are stored once the span has run. Later steps have not stored theirs yet."""
        return sequence.tokens[: span.start + len(span.tokens)]
