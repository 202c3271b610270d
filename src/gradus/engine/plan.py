"""The data that the loop's three parts exchange: a Plan goes to the runner, a Result comes back. No torch here.

Progress is a span: "run these tokens of this sequence from this position". A prefill of P tokens is (0, P), a decode
at position n is (n, 1), and the baseline without a cache recomputes (0, n) every step. There is no prefill mode and no
decode mode: a step is a list of spans, mixed freely.

Most spans of a busy engine are decodes, which differ in a few numbers only. The final engine writes these as columns
(`Decodes`), one row per span; a `Span` then describes whatever takes more.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradus.cache import TableChange
from gradus.engine.logprobs import Logprobs
from gradus.engine.request import Request
from gradus.engine.sequence import Sequence, SpanResult

UNKNOWN = -1
"""Marks a token id that only the device knows yet."""

REJECTED = -2
"""Marks a row whose token does not count: its draft, or one before it, was rejected."""

UNDRAFTED = -3
"""Marks a row with room for a draft where none was found."""

SCORED = 2
"""Tokens that a row counts as if its log-probability is asked for: it passes the head, too, and all its logits are
read. So such a prompt makes a step no longer than another one does."""

Column = NDArray[np.int64]

NO_DRAFTS: Column = np.empty(0, np.int64)


def upto_missing(tokens: Iterable[int]) -> list[int]:
    """Cut tokens before the first that is marked as none: a negative one."""
    return list(takewhile(lambda token: token >= 0, tokens))


@dataclass(frozen=True, slots=True)
class Scores:
    """Asks for the log-probabilities of tokens that are known: of a prompt's own.

    targets: the tokens that follow the span's first rows, one for each. top: how many likeliest tokens to add.
    """

    targets: tuple[int, ...]
    top: int


@dataclass(slots=True)
class Span:
    """`tokens` of one sequence, at positions start, start + 1, …

    tokens: UNKNOWN is the newest token sampled in this slot, by a step that is still under way.
    sequence: for commit alone; the runner never reads it, and an unpacked plan has None.
    slot: the row of the sequence's state on the device while it runs (sampling state, block table).
    logits: how many of the last rows get logits, decided at scheduling: 1 to sample, 0 for a chunk that does not end
        the prompt, k + 1 to verify k drafts.
    pages: the changes in its block tables since its last span, or all of the tables in its first span in the slot;
        None if nothing changed, as in most decodes, and from caches without pages.
    scores: given where a request asks for its prompt's log-probabilities.
    """

    sequence: Sequence | None
    slot: int
    start: int
    tokens: Ordered[int]
    logits: int
    pages: TableChange | None = None
    scores: Scores | None = None


@dataclass(slots=True, eq=False)
class Decodes:
    """Spans of one token with logits, in columns: row i runs the newest token of slot slots[i], at position starts[i].

    The device has that token (`UNKNOWN` here): the step that sampled it may still be under way.
    limits: how many positions each may store; rows beyond are padding.
    pages: (slot, change) of the slots whose block tables have changed.

    drafts: the most that each verifies, one row each after its first, in an engine that speculates; empty if none
    verifies any. Only the device knows how many drafts of earlier steps were accepted, so starts are lower bounds of
    the positions.

    For commit alone, and left out of an unpacked plan:
    owners: the sequences. departures: how many sequences had left their slots before. See `gradus.scheduling.columns`.
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
        """The number of tokens that they run, drafts included."""
        return len(self.slots) + (int(self.drafts.sum()) if len(self.drafts) else 0)

    @property
    def width(self) -> int:
        """The most rows of any decode."""
        return 1 + (int(self.drafts.max()) if len(self.drafts) else 0)

    def expanded(self) -> Iterator[Span]:
        """Convert to spans of one token, for readers that want spans. Drafts are unknown here, and left out."""
        changes = dict(self.pages)
        owners = [None] * len(self) if self.owners is None else self.owners
        rows = zip(owners, self.slots.tolist(), self.starts.tolist(), strict=True)
        return (Span(owner, slot, start, (UNKNOWN,), 1, changes.get(slot)) for owner, slot, start in rows)


NO_DECODES = Decodes()
"""The value that all plans without decodes in columns share, and so never changed."""


@dataclass(slots=True)
class Admission:
    """A new owner of `slot`: the slot's sampling state is built anew from the tokens known so far."""

    slot: int
    request: Request
    index: int
    tokens: tuple[int, ...]

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)


def scores_of(sequence: Sequence, start: int, end: int) -> Scores | None:
    """Return what a span over [start, end) is to score: the prompt's tokens that follow its rows, if that is asked."""
    request = sequence.request
    if request.params.prompt_logprobs is None or not sequence.unscored:
        return None
    targets = request.prompt[start + 1 : end + 1]
    return Scores(targets, request.params.prompt_logprobs) if targets else None


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
    wiped: pages to fill with zeros. A sequence that ended with numbers that are not finite wrote to them, or one that
    gave them back before its numbers were seen. A position that attention masks has the weight 0, and 0 times NaN is
    NaN.
    """

    spans: list[Span] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    wiped: tuple[int, ...] = ()
    decodes: Decodes = NO_DECODES

    @property
    def size(self) -> int:
        """The number of sequences that it advances."""
        return len(self.decodes.slots) + len(self.spans)

    @property
    def tokens(self) -> int:
        """The number of tokens that it runs, drafts included."""
        rows = self.decodes.rows
        return rows + sum([len(span.tokens) for span in self.spans]) if self.spans else rows

    def expanded(self) -> list[Span]:
        """List all of it as spans, in the order of the flat batch: for readers that do not mind the cost."""
        return [*self.decodes.expanded(), *self.spans]


class Result(Protocol):
    """A step under way. The runner returns it at once; only `get` waits for the device.

    rows: the number of rows that the model computed, padding included.
    """

    rows: int

    def get(self) -> "Sampled":
        """Wait for the sampled tokens, and return them on the host. The only host sync of a step."""


NOT_FINITE = "the model gave no finite logit to choose from"


@dataclass(slots=True)
class Sampled:
    """The tokens sampled by a step: a row per logits row, in the order of the flat batch, so the decodes come first.

    tokens: int64 [R], negative where no token was sampled. counts: the rows of each span outside the columns.
    logprobs: of each row, packed as in gradus.engine.logprobs, b"" where the request asks for none; () if none does.
    width: rows of each decode in the columns: 1, plus one for each draft that the step had room for, which may be fewer
    than its plan allows. Sampled tokens come first; the other rows are REJECTED or UNDRAFTED.
    faults: why a row has no token, where its grammar knows; by row.
    scores: of each span that asks for some, in their order, packed in the same way.
    seconds: how long the step took, if its runner measures that; otherwise 0. usual: whether the next step like it
    takes as long; False where a drafter had to catch up first.

    Iteration yields a SpanResult per span outside the columns, for `zip(plan.spans, result.get())`.
    """

    tokens: Column
    counts: Ordered[int]
    logprobs: Ordered[bytes] = ()
    width: int = 1
    seconds: float = 0.0
    usual: bool = True
    faults: Mapping[int, str] = field(default_factory=dict)
    scores: Ordered[tuple[bytes, ...]] = ()

    @classmethod
    def of(cls, plan: Plan, results: Iterable[SpanResult]) -> "Sampled":
        """Build from a result per span of `plan.expanded()`, without log-probabilities. For runners without a model."""
        tokens: list[int] = []
        for span, result in zip(plan.expanded(), results, strict=True):
            tokens += (-1,) * span.logits if result.error is not None else result.tokens
        return cls(np.array(tokens, np.int64), [span.logits for span in plan.spans])

    @property
    def decoded(self) -> Column:
        """The tokens of the decodes in columns, [B, width]."""
        return self.tokens[: len(self.tokens) - sum(self.counts)].reshape(-1, self.width)

    def decode(self, row: int) -> SpanResult:
        """Return the result of one decode in the columns."""
        return self.result(row * self.width, self.width)

    def result(self, first: int, count: int = 1) -> SpanResult:
        """Return the result of the span with these rows; a single row without a finite logit makes it an error."""
        tokens = tuple([token for token in self.tokens[first : first + count].tolist() if token > REJECTED])
        if tokens and min(tokens) < 0:
            return SpanResult(error=self.faults.get(first, NOT_FINITE))
        if not self.logprobs:
            return SpanResult(tokens)
        packed = tuple(self.logprobs[first : first + len(tokens)])
        return SpanResult(tokens, Logprobs(packed)) if any(packed) else SpanResult(tokens)

    def __iter__(self) -> Iterator[SpanResult]:
        row = len(self.tokens) - sum(self.counts)
        for count in self.counts:
            yield self.result(row, count)
            row += count
