"""The one window on an engine: the spans of each step, block tables, page counts and the prefix tree. No torch here.

    probe = EngineProbe(engine)           # any engine: a phase's, the final one, a student's
    probe.pages(), probe.running()        # the state now
    probe.record()                        # from now on, one Step per plan
    while engine.has_work:
        engine.step()
    for step in probe.steps: ...
    probe.stop()

The conformance tests read engines only through it, and the X-ray draws from it. So a student's engine may be built in
any way, as long as its parts have the following methods and attributes.

**A cache** may have up to four methods, and leaves out those that do not apply to it:

    def tables(self, id) -> Tables            # the sequence's block tables: one tuple of pages per layer group;
                                              # () for an unknown sequence
    def pages(self) -> PageCounts             # PageCounts(total, held, idle, free)
    def tree(self) -> tuple[TreeNode, ...]    # the top nodes: TreeNode(tokens, pages, children)
    def tiers(self) -> Tiers                  # over host memory: the names of pages in the tree and below it

`Tables`, `PageCounts` and `TreeNode` are in gradus/cache/inspection.py. A cache without pages (p00 to p03) has none of
the three methods, a cache without a prefix index (p04) has no `tree`. All three only read: calling them changes
nothing. A page pool of `gradus.cache.pool` counts its own pages: `return self.pool.counts()`. If a cache has such a
`pool`, the probe reads the order of evictions from its `idle`.

**A scheduler** has `running`, the sequences that have a place now, in the order they started; `cache`; and `check()`,
which asserts its own and the cache's invariants. A scheduler that speculates (p08) also has `drafter`, and counts the
verified drafts in `drafted`, the right ones in `accepted`.

**An attention backend** for more than one sequence (from p02 on) keeps its keys and values in `storage.keys` and
`storage.values`, layer by layer, in any layout.

**A runner** has `model`, the model that it runs: the one passed in, or a phase's own version of it (p07's is
quantized).

Recording changes nothing that runs: plans, results and outputs pass through unchanged. It wraps three methods
of the scheduler, and `stop` removes them again; an engine that is not recorded pays nothing.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gradus.cache import CacheManager
from gradus.cache.inspection import PageCounts, Tables, TreeNode
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Result, Span
from gradus.engine.sequence import Output, Sequence

if TYPE_CHECKING:
    from gradus.models import Model

Id = tuple[str, int]
"""A sequence: its request's id, and the index of the request's sample."""

Tiers = tuple[dict[int, Any], tuple[Any, ...]]
"""The name of each page in the tree; and the names of the pages below, least recently used first."""

KEPT = 1024


@dataclass(frozen=True, slots=True)
class SpanView:
    """One span of a plan. tokens: UNKNOWN (-1) for a token that only the device knows yet."""

    request_id: str
    index: int
    slot: int
    start: int
    tokens: tuple[int, ...]
    logits: int

    @property
    def id(self) -> Id:
        return self.request_id, self.index

    @property
    def count(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Holding:
    """The engine's memory at the start of a plan, on which its choices depend.

    idle: the idle pages, the next to be evicted first; () if the cache has no pool that knows their order.
    tiers: as in Step.
    """

    running: tuple[Id, ...]
    tables: dict[Id, Tables]
    pages: PageCounts | None
    idle: tuple[int, ...]
    tiers: Tiers | None


@dataclass(slots=True)
class Step:
    """One plan, and the engine's state right after it was made.

    number: counts plans from 0. running: the sequences that have a place, in the order they started.
    admitted: sequences that start with this plan, new or resumed. preempted: sequences that lost their place while it
        was made. ended: finish reasons of sequences that ended since the plan before: by this plan's commit, or by
        being cancelled before this plan was made. Complete once the step is committed.
    tables: of every running sequence. pages: None for a cache without pages. tree: None without a prefix index.
    tiers: of a cache with host memory below its pool; None for others.
    committed: whether its result is known.
    before: the engine's memory when it began to make the plan.
    """

    number: int
    spans: tuple[SpanView, ...]
    running: tuple[Id, ...]
    admitted: tuple[Id, ...]
    preempted: tuple[Id, ...]
    tables: dict[Id, Tables]
    pages: PageCounts | None
    tree: tuple[TreeNode, ...] | None
    tiers: Tiers | None
    before: Holding
    ended: dict[Id, str] = field(default_factory=dict)
    committed: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of all spans."""
        return sum(span.count for span in self.spans)

    @property
    def names(self) -> list[str]:
        """The request of each span, in the plan's order."""
        return [span.request_id for span in self.spans]

    def of(self, request_id: str, index: int = 0) -> SpanView | None:
        """The sequence's span; None if the step does not run it."""
        return next((span for span in self.spans if span.id == (request_id, index)), None)


class Probe(Protocol):
    """An engine's state for tests and drawings: its present state, and the recorded steps."""

    steps: "deque[Step]"

    def running(self) -> tuple[Id, ...]:
        """The sequences that have a place, in the order they started."""

    def tables(self, request_id: str, index: int = 0) -> Tables:
        """A sequence's block tables, one per layer group; () if there are none."""

    def pages(self) -> PageCounts | None:
        """The number of pages in each state; None without pages."""

    def tree(self) -> tuple[TreeNode, ...] | None:
        """The top nodes of the prefix tree; None without a prefix index."""

    def tiers(self) -> Tiers | None:
        """Pages by name in the tree and below it; None without host memory below."""

    def memory(self) -> tuple[Any, Any]:
        """The tensors of all keys and all values."""

    def model(self) -> "Model":
        """The model that the engine runs, for a test that disturbs its logits."""

    def drafts(self) -> tuple[int, int] | None:
        """The numbers of drafts verified and accepted; None without speculation."""

    def guess_nothing(self) -> None:
        """Propose no more drafts, for tests of plans that a guess would change."""

    def check(self) -> None:
        """Assert the engine's invariants."""

    def record(self) -> None:
        """Keep one Step per plan from now on, in `steps`."""

    def stop(self) -> None:
        """Stop recording."""


class NoDrafts:
    """A drafter that proposes nothing."""

    def propose(self, asked: Ordered[Any]) -> list[list[int]]:
        return [[] for _ in asked]


class EngineProbe:
    """The probe of any Engine whose parts have the methods that the module's docstring lists.

    kept: the most steps in `steps`, which has the oldest first.
    """

    def __init__(self, engine: Engine, kept: int = KEPT) -> None:
        self.engine = engine
        self.steps: deque[Step] = deque(maxlen=kept)
        self._numbers = 0
        self._under_way: deque[tuple[Plan, Step]] = deque()
        self._ended: dict[Id, str] = {}  # sequences cancelled since the last plan

    @property
    def cache(self) -> CacheManager:
        """The engine's cache manager, for a test that drives it alone."""
        return self.engine.scheduler.cache

    @property
    def scheduler(self) -> Any:
        """The engine's scheduler, for a test that asks it alone."""
        return self.engine.scheduler

    # -- the present state -------------------------------------------------------------------------------------------

    def running(self) -> tuple[Id, ...]:
        return tuple(sequence.id for sequence in self.engine.scheduler.running)

    def tables(self, request_id: str, index: int = 0) -> Tables:
        return self._tables((request_id, index))

    def pages(self) -> PageCounts | None:
        return self.cache.pages() if hasattr(self.cache, "pages") else None

    def tree(self) -> tuple[TreeNode, ...] | None:
        return self.cache.tree() if hasattr(self.cache, "tree") else None

    def tiers(self) -> Tiers | None:
        return self.cache.tiers() if hasattr(self.cache, "tiers") else None

    def holding(self) -> Holding:
        """The memory from which the next plan will be made."""
        running, idle = self.running(), getattr(getattr(self.cache, "pool", None), "idle", ())
        tables = {id: self._tables(id) for id in running}
        return Holding(running, tables, self.pages(), tuple(idle) if isinstance(idle, Iterable) else (), self.tiers())

    def memory(self) -> tuple[Any, Any]:
        storage = self.engine.runner.attention.storage  # type: ignore[attr-defined]
        return storage.keys, storage.values

    def model(self) -> "Model":
        return self.engine.runner.model  # type: ignore[attr-defined]

    def drafts(self) -> tuple[int, int] | None:
        scheduler: Any = self.engine.scheduler
        return (scheduler.drafted, scheduler.accepted) if hasattr(scheduler, "drafter") else None

    def guess_nothing(self) -> None:
        scheduler: Any = self.engine.scheduler
        if hasattr(scheduler, "drafter"):
            scheduler.drafter = NoDrafts()

    def check(self) -> None:
        self.engine.scheduler.check()

    def _tables(self, id: Id) -> Tables:
        return self.cache.tables(id) if hasattr(self.cache, "tables") else ()

    # -- recording ---------------------------------------------------------------------------------------------------

    def record(self) -> None:
        """Wrap the scheduler's methods. Raises ValueError if a probe records already."""
        scheduler = self.engine.scheduler
        if "schedule" in vars(scheduler):
            raise ValueError("this engine is being recorded already")
        self._schedule, self._commit, self._cancel = scheduler.schedule, scheduler.commit, scheduler.cancel
        watched = {"schedule": self._watched_schedule, "commit": self._watched_commit, "cancel": self._watched_cancel}
        vars(scheduler).update(watched)

    def stop(self) -> None:
        for name in ("schedule", "commit", "cancel"):
            vars(self.engine.scheduler).pop(name, None)

    def _watched_schedule(self) -> Plan | None:
        before, holding = list(self.engine.scheduler.running), self.holding()
        plan = self._schedule()
        if plan is not None:
            step = self._step(plan, before, holding)
            self.steps.append(step)
            self._under_way.append((plan, step))
        return plan

    def _step(self, plan: Plan, before: list[Sequence], holding: Holding) -> Step:
        running = self.running()
        admitted = tuple((admission.request.id, admission.index) for admission in plan.admissions)
        kept = set(running) - set(admitted)
        number, self._numbers = self._numbers, self._numbers + 1
        ended, self._ended = self._ended, {}
        return Step(
            number=number,
            spans=tuple(map(view, plan_spans(plan))),
            running=running,
            admitted=admitted,
            preempted=tuple(s.id for s in before if s.finish_reason is None and s.id not in kept),
            tables={id: self._tables(id) for id in running},
            pages=self.pages(),
            tree=self.tree(),
            tiers=self.tiers(),
            before=holding,
            ended=ended,
        )

    def _watched_commit(self, plan: Plan, result: Result) -> Ordered[Output]:
        outputs = self._commit(plan, result)
        while self._under_way and self._under_way[0][0] is not plan:
            self._under_way.popleft()  # never committed while this probe recorded
        if self._under_way:
            _, step = self._under_way.popleft()
            step.ended |= endings(outputs)
            step.committed = True
        return outputs

    def _watched_cancel(self, *args: Any, **kwargs: Any) -> list[Output]:
        outputs = self._cancel(*args, **kwargs)
        self._ended |= endings(outputs)
        return outputs


def plan_spans(plan: Plan) -> list[Span]:
    """List every span of the plan, in the order of its results. Only this function knows how a plan stores them."""
    return plan.expanded()


def view(span: Span) -> SpanView:
    assert span.sequence is not None, "a scheduler's spans name their sequences"
    request_id, index = span.sequence.id
    return SpanView(request_id, index, span.slot, span.start, tuple(span.tokens), span.logits)


def endings(outputs: Ordered[Output]) -> dict[Id, str]:
    """Collect the finish reasons of the sequences that these outputs end."""
    return {(output.request_id, output.index): output.finish_reason for output in outputs if output.finish_reason}


def walk(tree: tuple[TreeNode, ...]) -> Iterator[TreeNode]:
    """Yield every node, parents before their children."""
    for node in tree:
        yield node
        yield from walk(node.children)
