"""The words that the loop's three parts speak: a Plan goes to the runner, a Result comes back. No torch here.

Progress is a span: "run these tokens of this sequence from this position". A prefill of P tokens is (0, P), a decode
at position n is (n, 1), and the baseline without a cache recomputes (0, n) every step. There is no prefill mode and no
decode mode: a step is a list of spans, mixed freely.

Most spans of a busy engine are decodes, and all they differ in is a few numbers. The final engine writes those as
columns (`Decodes`), one row per span; a `Span` then describes whatever takes more.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradus.cache import TableChange
from gradus.engine.logprobs import Logprobs
from gradus.engine.request import Request
from gradus.engine.sequence import Sequence, SpanResult

UNKNOWN = -1
"""Stands for a token id that is only on the device yet."""

REJECTED = -2
"""Stands where a step sampled no token that counts: a draft, it or one before it, was wrong."""

UNDRAFTED = -3
"""Stands where a step had room for a draft and there was none."""

Column = NDArray[np.int64]
NO_DRAFTS: Column = np.empty(0, np.int64)


@dataclass(slots=True)
class Span:
    """`tokens` of one sequence, at positions start, start + 1, …

    tokens: UNKNOWN stands for the newest token that was sampled in this slot, by a step that is still under way.
    sequence: for commit alone; the runner never reads it, and a plan that was unpacked has None.
    slot: the row of the sequence's state on the device while it runs (sampling state, block table).
    logits: how many of the last rows get logits, decided at scheduling: 1 to sample, 0 for a chunk that does not end
        the prompt, k + 1 to verify k drafts.
    pages: what has changed in its block tables since its last span, or all of them if this is its first in the slot;
        None where nothing has, as in most decodes, and from caches without pages.
    """

    sequence: Sequence | None
    slot: int
    start: int
    tokens: Ordered[int]
    logits: int
    pages: TableChange | None = None


@dataclass(slots=True, eq=False)
class Decodes:
    """Spans of one token with logits, in columns: row i runs the newest token of slot slots[i], at position starts[i].

    The device has that token (`UNKNOWN` here): the step that sampled it may still be under way.
    limits: how many positions each may store; rows beyond are padding.
    pages: (slot, change) of the slots whose block tables have changed.

    drafts: in an engine that speculates, how many each verifies at most, in as many rows after its first; empty: none
    does. Only the device knows how many drafts of earlier steps were accepted, so starts are the least that the
    positions can be.

    For commit alone; an unpacked plan has none of them:
    owners: the sequences. departures: how many had left their slots before. See `gradus.scheduling.columns`.
    """

    slots: Column = field(default_factory=lambda: np.empty(0, np.int64))
    starts: Column = field(default_factory=lambda: np.empty(0, np.int64))
    limits: Column = field(default_factory=lambda: np.empty(0, np.int64))
    pages: Ordered[tuple[int, TableChange]] = ()
    drafts: Column = field(default_factory=lambda: NO_DRAFTS)
    owners: NDArray[np.object_] | None = None
    departures: int = 0

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def rows(self) -> int:
        """How many tokens they run, the drafts included."""
        return len(self.slots) + int(self.drafts.sum())

    @property
    def width(self) -> int:
        """The most rows of one of them."""
        return 1 + int(self.drafts.max(initial=0))

    def expanded(self) -> Iterator[Span]:
        """The same as spans of one token, for readers that want those. Drafts are not known, and left out."""
        changes = dict(self.pages)
        owners = [None] * len(self) if self.owners is None else self.owners
        rows = zip(owners, self.slots.tolist(), self.starts.tolist(), strict=True)
        return (Span(owner, slot, start, (UNKNOWN,), 1, changes.get(slot)) for owner, slot, start in rows)


NO_DECODES = Decodes()
"""Shared by all plans without decodes in columns, and so never changed."""


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
    """One step's work. In the flat batch the decodes come first, then the spans, each in their order.

    Admissions and wiping take effect before any span runs.
    wiped: pages to fill with zeros, because a sequence that ended with numbers that are not finite wrote them: a
    position that attention masks has the weight 0, and 0 times NaN is NaN.
    """

    spans: list[Span] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    wiped: tuple[int, ...] = ()
    decodes: Decodes = NO_DECODES

    @property
    def size(self) -> int:
        """How many sequences it advances."""
        return len(self.decodes) + len(self.spans)

    @property
    def tokens(self) -> int:
        """How many tokens it runs, drafts included."""
        return self.decodes.rows + sum([len(span.tokens) for span in self.spans])

    def expanded(self) -> list[Span]:
        """All of it as spans, in the order of the flat batch: for readers that do not mind the cost."""
        return [*self.decodes.expanded(), *self.spans]


class Result(Protocol):
    """A step under way. The runner returns it at once; only `get` waits for the device.

    rows: how many rows the model computed, padding included.
    """

    rows: int

    def get(self) -> "Sampled":
        """What was sampled, on the host. The only host sync of a step."""


NOT_FINITE = "the model gave no finite logit to choose from"


@dataclass(slots=True)
class Sampled:
    """What a step sampled: a row per logits row, in the order of the flat batch, so the decodes' rows come first.

    tokens: int64 [R], negative where there is none. counts: the rows of each span outside the columns.
    logprobs: of each row, packed as in gradus.engine.logprobs, b"" where the request asks for none; () if none does.
    width: rows of each decode in the columns: 1, and one for each draft that the step had room for, which may be fewer
    than its plan allows. Those that stand come first, the others are REJECTED or UNDRAFTED.
    seconds: how long the step took, where its runner measures that; else 0. usual: the next one like it takes as long;
    not where a drafter had to catch up first.

    Iterating gives a SpanResult per span outside the columns, as `zip(plan.spans, result.get())` wants them.
    """

    tokens: Column
    counts: Ordered[int]
    logprobs: Ordered[bytes] = ()
    width: int = 1
    seconds: float = 0.0
    usual: bool = True

    @classmethod
    def of(cls, plan: Plan, results: Iterable[SpanResult]) -> "Sampled":
        """Made from a result per span of `plan.expanded()`, without log-probabilities: for runners without a model."""
        tokens: list[int] = []
        for span, result in zip(plan.expanded(), results, strict=True):
            tokens += (-1,) * span.logits if result.error is not None else result.tokens
        return cls(np.array(tokens, np.int64), [span.logits for span in plan.spans])

    @property
    def decoded(self) -> Column:
        """The tokens of the decodes in columns, [B, width]."""
        return self.tokens[: len(self.tokens) - sum(self.counts)].reshape(-1, self.width)

    def decode(self, row: int) -> SpanResult:
        """What one of the decodes in columns sampled."""
        return self.result(row * self.width, self.width)

    def result(self, first: int, count: int = 1) -> SpanResult:
        """What a span with these rows sampled; one without a finite logit makes an error of all."""
        tokens = tuple([token for token in self.tokens[first : first + count].tolist() if token > REJECTED])
        if tokens and min(tokens) < 0:
            return SpanResult(error=NOT_FINITE)
        if not self.logprobs:
            return SpanResult(tokens)
        packed = tuple(self.logprobs[first : first + len(tokens)])
        return SpanResult(tokens, Logprobs(packed)) if any(packed) else SpanResult(tokens)

    def __iter__(self) -> Iterator[SpanResult]:
        row = len(self.tokens) - sum(self.counts)
        for count in self.counts:
            yield self.result(row, count)
            row += count
