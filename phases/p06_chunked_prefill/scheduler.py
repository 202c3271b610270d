"""A budget of tokens per step: decodes take one each, and a long prompt takes the rest, in chunks.

No round of its own is needed for the decodes. A waiting sequence starts only when every prompt before it has been
planned to its end. So at most one prompt is under way, and it belongs to the sequence that came last: the loop over
`running`, which is in the order of arrival, gives all decodes their token before it reaches that prompt.
(Sarathi-Serve, Agrawal et al. 2024.)
"""

from gradus.engine.plan import Plan, Span
from gradus.engine.sequence import Output, Sequence, SpanResult
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p05_prefix_cache.scheduler import PrefixBatching


class ChunkedPrefill(PrefixBatching):
    """No step computes more than `token_budget` tokens, however long a prompt is.

    Each running sequence had a span in the step before. So no more of them run than the budget has tokens, and there is
    at least one token for each.
    """

    def __init__(self, cache: PrefixCache, max_sequences: int, token_budget: int) -> None:
        super().__init__(cache, max_sequences)
        self.token_budget = token_budget
        self.left = 0  # tokens that the step being planned has room for

    def schedule(self) -> Plan | None:
        self.left = self.token_budget
        return super().schedule()

    def end_of_span(self, sequence: Sequence) -> int:
        """End after all known tokens, or where the budget ends: the rest of the prompt is for later steps."""
        return min(len(sequence.tokens), self.cache.stored(sequence.id) + self.left)

    def span(self, sequence: Sequence) -> Span:
        """The next chunk. Only the chunk that reaches the newest token has logits: the token that an earlier one would
        predict is in the prompt already."""
        start, end = self.cache.stored(sequence.id), self.end_of_span(sequence)
        reserved = self.cache.reserve(sequence.id, end)
        assert reserved, "`make_room` or `may_start` saw to it"
        self.left -= end - start
        logits = 1 if end == len(sequence.tokens) else 0
        pages = self.cache.table_change(sequence.id)
        return Span(sequence, sequence.slot, start, sequence.tokens[start:end], logits, pages)

    def may_start(self, sequence: Sequence) -> bool:
        """Decide as p05 does, if the step has tokens left."""
        return self.left > 0 and super().may_start(sequence)

    def record(self, span: Span, sampled: SpanResult) -> list[Output]:
        """A chunk without logits publishes its pages, and has no output."""
        outputs = super().record(span, sampled)
        return outputs if span.logits else []

    def check(self) -> None:
        super().check()
        under_way = [s for s in self.running if self.cache.stored(s.id) < len(s.tokens) - 1]
        assert under_way in ([], self.running[-1:]), "only the sequence that came last has a prompt under way"
