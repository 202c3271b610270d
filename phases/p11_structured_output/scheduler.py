"""p10's scheduler. It refuses what no automaton follows, before the request is queued."""

from collections.abc import Iterable

from gradus.engine.sequence import Sequence
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p10_cuda_graphs.scheduler import PlanningAhead
from phases.p11_structured_output.grammars import Grammars


class Constrained(PlanningAhead):
    def __init__(self, cache: PrefixCache, max_sequences: int, token_budget: int, grammars: Grammars) -> None:
        super().__init__(cache, max_sequences, token_budget)
        self.grammars = grammars

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Compile what they ask for. Raises RequestError if that fails, and nothing is queued."""
        samples = list(sequences)
        for sequence in samples:
            if sequence.request.params.structured is not None:
                self.grammars.masks(sequence.request.params.structured)
        super().add(samples)
