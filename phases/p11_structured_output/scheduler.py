"""p10's scheduler. It refuses what no automaton follows, and what could never end, before the request is queued."""

from collections.abc import Iterable

from gradus.engine.request import Request
from gradus.engine.sequence import Sequence
from gradus.errors import RequestError
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
            self.prepare(sequence.request)
        super().add(samples)

    def prepare(self, request: Request) -> None:
        if request.params.structured is None:
            return
        if not request.stop_ids:
            limit = "given with a stop token, since this model has no token that ends an answer"
            raise RequestError(f"structured must be {limit}, got no stop_token_ids", param="structured", limit=limit)
        self.grammars.masks(request.params.structured)
