"""The prefix is looked up first, and the tokens to compute are counted afterwards."""

from phases.museum.m02_preemption import engine
from phases.museum.m02_preemption.engine import PAGE
from phases.museum.m02_preemption.engine import Sequence as Sequence


class Engine(engine.Engine):
    """Reads `stored` after the last line that changes it."""

    def plan(self, sequence: Sequence) -> tuple[int, int] | None:
        """Decide what to compute: the first position, and how many tokens. None: there are too few pages."""
        if not sequence.pages:
            self.find(sequence)
        missing = -(-len(sequence.tokens) // PAGE) - len(sequence.pages)
        if missing > len(self.free):
            return None
        sequence.pages += [self.free.pop(0) for _ in range(missing)]
        return sequence.stored, len(sequence.tokens) - sequence.stored
