"""Random work for a scheduler, with everything watched that must hold whatever happens."""

import math
import random
from collections.abc import Callable

from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.config.options import Policy
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Span
from gradus.engine.request import Request
from gradus.engine.sequence import Output, Sequence
from gradus.engine.time_limits import TimeLimits
from gradus.errors import RequestError
from gradus.scheduling.draft_shapes import DraftShapes
from gradus.scheduling.drafting import DraftControl
from gradus.scheduling.scheduler import Scheduler
from gradus.scheduling.step_target import StepTarget
from tests.scheduling.replica import EVEN, LIMITS, Done, Replica, VirtualClock, ask, expected, nothing

PREFIXES = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 50, 60, 70, 80], []]


class World:
    """An engine over a replica, its requests, and what each must get. AssertionError where a promise is broken."""

    def __init__(
        self,
        pages: int,
        page_size: int = 4,
        slots: int = 4,
        budget: int | None = None,
        policy: Policy = "fcfs",
        shared: bool = False,
        windows: tuple[int | None, ...] = (None,),
        scheduler: Callable[..., Scheduler] = Scheduler,
        lag: int = 0,
        drafting: DraftControl | None = None,
        guess: Callable[[int, list[int], int], list[int]] = nothing,
        micro_batches: int = 1,
        target: float | None = None,
        step_s: float = 1.0,
        row_s: float = 0.0,
        slowdown: float = math.inf,
    ) -> None:
        self.clock = VirtualClock()
        self.cache = PagedCache(pages, page_size, windows, PrefixIndex() if shared else None)
        times = TimeLimits(self.clock, 1 if drafting is None else 1 + drafting.most)
        self.target = None if target is None else StepTarget(target, EVEN, self.clock, micro_batches, slowdown)
        self.scheduler = scheduler(self.cache, slots, budget, policy, times, drafting, micro_batches, self.target)
        self.runner = Replica(page_size, self.clock, step_s, row_s, windows=windows, guess=guess)
        self.engine = Engine(self.scheduler, self, LIMITS, lag, times)
        self.budget, self.slots = budget, slots
        self.requests: dict[str, Request] = {}
        self.tokens: dict[tuple[str, int], tuple[int, ...]] = {}  # of each sample, so far
        self.reasons: dict[tuple[str, int], str] = {}  # how each sample ended
        self.refused = 0
        self.best: Sequence | None = None  # who was first among those running when the step began
        self.doomed: str | None = None  # a request to be cancelled while the next step is under way
        self.work = 0  # tokens of everybody taken in: an end to how long it can take

    def add(self, request: Request) -> bool:
        """False if it could never fit."""
        before = self.scheduler.waiting_count
        try:
            self.engine.submit(request)
        except RequestError:
            assert self.scheduler.waiting_count == before, "a refused request left something behind"
            self.refused += 1
            return False
        self.requests[request.id] = request
        self.work += request.longest * request.params.n
        self.tokens |= {(request.id, index): () for index in range(request.params.n)}
        self.scheduler.check()
        return True

    def cancel(self, request_id: str, index: int | None = None) -> None:
        outputs = self.engine.cancel(request_id, index)
        self.take(outputs)
        assert self.engine.cancel(request_id, index) == [], "what ended can be cancelled no more"
        self.scheduler.check()

    def step(self) -> None:
        self.best = min(self.scheduler.running, key=lambda sequence: sequence.order, default=None)
        had_work = self.scheduler.waiting_count + self.scheduler.active_count
        committed = self.scheduler.committed
        self.runner.plan = None
        outputs = self.engine.step()
        self.scheduler.check()
        assert self.scheduler.issued - self.scheduler.committed == len(self.engine.in_flight) <= self.engine.lag
        done = self.runner.plan or outputs or self.scheduler.committed > committed
        assert done or not had_work, "there is work, and nothing is done"
        self.take(outputs)

    def run(self, plan: Plan) -> Done:
        """The engine's runner: sees each plan when it is made."""
        self.watch_plan(plan)
        if self.best is not None:
            self.watch_best(self.best)
        result = self.runner.run(plan)
        if self.doomed is not None:
            self.cancel(self.doomed)
            self.doomed = None
        return result

    def watch_plan(self, plan: Plan) -> None:
        spans = plan.expanded()
        assert self.budget is None or plan.tokens <= self.budget, "more tokens than the budget"
        assert all(span.tokens for span in spans)
        assert all(span.start + len(span.tokens) < span.sequence.longest for span in spans), "planned past its end"
        entered = {admission.slot for admission in plan.admissions}
        under_way = [span for span in plan.spans if span.slot not in entered]
        best = min(under_way, key=lambda span: by_order(span.sequence), default=None)
        planned = {span.sequence for span in plan.spans}
        sitting_out = [each for each in self.scheduler.current.prefilling if each not in planned]
        if (head := self.scheduler.head()) is not None and self.scheduler._sits_out(head):
            sitting_out.append(head)
        first = min([*(span.sequence for span in under_way), *sitting_out], key=by_order, default=None)
        passing = [span for span in plan.spans if self.target and self.passes(span, first, plan)]
        newcomers = [span for span in plan.spans if span.slot in entered and span not in passing]
        worst = max((span.sequence.order for span in newcomers), default=None)
        waiting = [sequence.order for sequence in self.scheduler.waiting]
        assert worst is None or not waiting or worst < min(waiting), "somebody overtook the head of the queue"
        if self.target and best is not None and best.sequence is first:
            whole, one_more = sum(map(cost, plan.spans)), 1 + (best.start + len(best.tokens)) / EVEN
            assert best.logits or cost(best) + one_more >= whole / 2, "the best prompt has less than half of the step"

    def passes(self, span: Span, best: Sequence | None, plan: Plan) -> bool:
        """Whether a new prompt may pass the best one, which is under way, or waits because it sits the step out: it is
        shorter than the rest, and of the same rank."""
        if best is None or best.order[0] != span.sequence.order[0]:
            return False
        starts = {each.sequence: each.start for each in plan.spans}
        stored = best.known if best.slot < 0 else starts.get(best, self.cache.stored(best.id))
        return len(span.sequence.tokens) - span.start < len(best.tokens) - stored

    def watch_best(self, best: Sequence) -> None:
        """Who was first among those running still runs, has ended, or gave way to a better class."""
        better = [sequence for sequence in self.scheduler.running if sequence.order[0] < best.order[0]]
        assert best.slot >= 0 or best.finish_reason or (better and self.scheduler.policy == "priority"), (
            "the best sequence lost its place"
        )

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            sample = output.request_id, output.index
            assert sample not in self.reasons, "an output after the end"
            self.tokens[sample] += output.tokens
            whole = expected(self.requests[output.request_id], output.index)
            assert self.tokens[sample] == whole[: len(self.tokens[sample])], "a wrong token"
            if output.finish_reason:
                self.reasons[sample] = output.finish_reason
                if output.finish_reason == "length":
                    assert self.tokens[sample] == whole

    def drain(self) -> None:
        """Every sequence ends within as many steps as their work can take; then nothing is left anywhere."""
        left = 20 + 4 * (self.slots + 1) * self.work
        while self.engine.has_work:
            left -= 1
            assert left > 0, "it does not come to an end"
            self.step()
        assert set(self.reasons) == set(self.tokens), "somebody never ended"
        metrics = self.engine.metrics()
        ended = metrics.completed + metrics.cancelled + metrics.failed + metrics.deadline_misses
        assert ended == len(self.tokens), "an ending was not counted once"
        assert metrics.cache.held == 0 and metrics.waiting == metrics.active == 0
        assert not self.scheduler.requests, "a request is remembered for ever"
        assert not self.engine.in_flight, "a step was never waited for"


def by_order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order


def cost(span: Span) -> float:
    return sum(1 + (span.start + number) / EVEN for number in range(len(span.tokens)))


def random_request(name: str, draw: random.Random) -> Request:
    """Short or long, alone or several samples, with a beginning that others share, in a hurry or not."""
    shared = draw.choice(PREFIXES)
    prompt = shared[: draw.randint(0, len(shared))] + [draw.randrange(1000) for _ in range(draw.randint(1, 9))]
    return ask(
        name,
        prompt,
        answer=draw.randint(1, 12),
        n=draw.choice([1, 1, 1, 2, 3]),
        priority=draw.randint(0, 2),
        deadline=draw.choice([None, None, draw.randint(1, 60)]),
        timeout=draw.choice([None, None, None, draw.randint(1, 60)]),
        cache_salt=draw.choice([None, "tenant"]),
    )


def random_world(
    seed: int,
    scheduler: Callable[..., Scheduler] = Scheduler,
    lag: int = 0,
    drafts: int = 0,
    guess: Callable[[int, list[int], int], list[int]] = nothing,
    windows: tuple[int | None, ...] = (None,),
    control: Callable[..., DraftControl] = DraftControl,
    micro_batches: int = 1,
) -> None:
    """A whole life: arrivals, cancellations and steps in random order, then the end. drafts: 0 is no speculation."""
    draw = random.Random(seed)
    world = World(
        pages=draw.randint(4, 24),
        page_size=draw.choice([1, 2, 4]),
        slots=draw.randint(1, 5),
        budget=draw.choice([None, 1, 2, 5, 16]),
        policy=draw.choice(["fcfs", "priority", "deadline"]),
        shared=draw.random() < 0.5,
        scheduler=scheduler,
        lag=lag,
        windows=windows,
        drafting=control(DraftShapes(drafts, 5, padded=seed % 2 > 0), 5, lag=lag, adaptive=False) if drafts else None,
        guess=guess,
        micro_batches=micro_batches,
        target=[None, 1.0, 4.0][seed % 7 % 3],
        row_s=[0.1, 1.0][seed % 2],
        slowdown=[math.inf, 1.2][seed % 5 % 2],
    )
    for number in range(12):
        world.add(random_request(f"r{number}", draw))
        for _ in range(draw.randint(0, 6)):
            world.step()
        if world.requests and draw.random() < 0.3:
            world.cancel(draw.choice(list(world.requests)), draw.choice([None, 0, 1]))
        if world.requests and draw.random() < 0.2:
            world.doomed = draw.choice(list(world.requests))
    world.drain()
