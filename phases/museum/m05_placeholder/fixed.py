"""A sequence with a grammar waits for the value of its newest token: a grammar cannot read a placeholder."""

from phases.museum.m05_placeholder import engine
from phases.museum.m05_placeholder.engine import UNKNOWN
from phases.museum.m05_placeholder.engine import Sequence as Sequence


class Engine(engine.Engine):
    """Plans a constrained sequence only once all of its tokens have arrived."""

    def ready(self, sequence: Sequence) -> bool:
        """Whether the sequence's next step can be planned now. If not, a step arrives first."""
        return not sequence.constrained or UNKNOWN not in sequence.tokens
