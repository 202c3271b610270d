"""Drafts join the decodes of a step that is planned already, and leave it again when it is recorded.

They come last: when prompts and decodes have theirs, the rest of the step's budget and of the pool's pages goes to
guesses. So no guess ever takes the place of a token that is certain.
"""

from gradus.engine.plan import Plan, Span
from gradus.engine.sequence import Output, Sequence, SpanResult
from phases.p06_chunked_prefill.scheduler import ChunkedPrefill
from phases.p08_speculation.cache import RollbackCache
from phases.p08_speculation.drafting import Drafter
from phases.p08_speculation.verification import kept


class Speculative(ChunkedPrefill):
    """A decode is the span (n, 1 + drafts), with logits for all of its rows.

    drafts: most tokens that are guessed for a sequence in a step.
    drafted, accepted: how many drafts were verified so far, and how many of them were right.
    """

    cache: RollbackCache

    def __init__(
        self, cache: RollbackCache, max_sequences: int, token_budget: int, drafter: Drafter, drafts: int
    ) -> None:
        super().__init__(cache, max_sequences, token_budget)
        self.drafter = drafter
        self.drafts = drafts
        self.drafted = self.accepted = 0

    def schedule(self) -> Plan | None:
        plan = super().schedule()
        if plan is not None:
            self.guess(plan)
        return plan

    def guess(self, plan: Plan) -> None:
        """Ask the drafter about all decodes at once: one with a model of its own then runs it once for all."""
        asked = [(span, sequence) for span in plan.spans if (sequence := decoding(span)) and self.room(sequence) > 0]
        drafts = self.drafter.propose([(sequence, self.room(sequence)) for _, sequence in asked]) if asked else []
        for (span, sequence), guessed in zip(asked, drafts, strict=True):
            self.append(span, sequence, guessed[: self.left])

    def room(self, sequence: Sequence) -> int:
        """How many drafts may follow the newest token. A step samples one token more than it has drafts."""
        return min(self.drafts, self.left, sequence.longest - len(sequence.tokens) - 1)

    def append(self, span: Span, sequence: Sequence, drafts: list[int]) -> None:
        """Append drafts to the span's token, if there are pages for them."""
        if drafts and self.cache.reserve(sequence.id, span.start + 1 + len(drafts)):
            span.tokens = [*span.tokens, *drafts]
            span.logits = len(span.tokens)
            span.pages = self.cache.table_change(sequence.id)
            self.left -= len(drafts)

    def record(self, span: Span, sampled: SpanResult) -> list[Output]:
        """Keep the accepted drafts and roll the cache back to them, before anything is published."""
        sequence = span.sequence
        assert sequence is not None
        if span.logits > 1 and sampled.error is None:
            self.drafted += span.logits - 1
            span, sampled = kept(span, sampled)
            self.accepted += len(span.tokens) - 1
            self.cache.truncate(sequence.id, span.start + len(span.tokens))
        return super().record(span, sampled)

    def stored_by(self, sequence: Sequence, span: Span) -> list[int]:
        """Include the accepted drafts, which the sequence itself knows only after this."""
        return [*sequence.tokens[: span.start], *span.tokens]


def decoding(span: Span) -> Sequence | None:
    """The sequence whose newest token this span runs, if drafts may follow; None for prompts, and under a penalty.

    A penalty depends on all tokens before it, drafts among them, and the sampler counts tokens per slot, not per row.
    """
    assert span.sequence is not None
    plain = span.logits == 1 and len(span.tokens) == 1 and not span.sequence.request.params.penalized
    return span.sequence if plain else None
