"""The words that the loop's three parts speak: a Plan goes to the runner, a Result comes back. No torch here.

Progress is a span: "run these tokens of this sequence from this position". A prefill of P tokens is (0, P), a decode
at position n is (n, 1), and the baseline without a cache recomputes (0, n) every step. There is no prefill mode and no
decode mode: a step is a list of spans, mixed freely.
"""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Protocol

from gradus.cache import TableChange
from gradus.engine.request import Request
from gradus.engine.sequence import Sequence, SpanResult

UNKNOWN = -1
"""In the place of a token id that is only on the device yet."""


@dataclass(slots=True)
class Span:
    """`tokens` of one sequence, at positions start, start + 1, …

    tokens: UNKNOWN stands for the newest that was sampled in this slot, by a step that is still under way.
    sequence: for commit alone; the runner never reads it.
    slot: the row of the sequence's state on the device while it runs (sampling state; later its block table).
    logits: how many of the last rows get logits, decided at scheduling: 1 to sample, 0 for a chunk that does not end
        the prompt.
    pages: what has changed in its block tables since its span before, or all of them if this is its first in the slot;
        None where nothing has, as in most decodes, and from caches without pages.
    """

    sequence: Sequence | None
    slot: int
    start: int
    tokens: Ordered[int]
    logits: int
    pages: TableChange | None = None


@dataclass(slots=True)
class Admission:
    """`slot` changes owner: its sampling state is built anew from the tokens known so far."""

    slot: int
    request: Request
    index: int
    tokens: tuple[int, ...]

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)


def admit(sequence: Sequence, slot: int) -> Admission:
    """Give the sequence a slot; the admission goes into the plan of its first step there."""
    sequence.slot = slot
    if sequence.scheduled is None:
        sequence.scheduled = sequence.clock()
    request, known = sequence.request, sequence.tokens
    return Admission(slot, request, sequence.index, request.prompt if not sequence.generated else tuple(known))


@dataclass(slots=True)
class Plan:
    """One step's work, in the order of the flat batch. Admissions and wiping take effect before any span runs.

    wiped: pages to be filled with zeros, because a sequence that ended with numbers that are not finite wrote them: a
    position that attention masks has the weight 0, and 0 times NaN is NaN.
    """

    spans: list[Span]
    admissions: list[Admission] = field(default_factory=list)
    wiped: tuple[int, ...] = ()


class Result(Protocol):
    """A step under way. The runner returns it at once; only `get` waits for the device.

    rows: how many rows the model computed, padding included.
    """

    rows: int

    def get(self) -> list[SpanResult]:
        """One result a span, in the plan's order. The only host sync of a step."""
