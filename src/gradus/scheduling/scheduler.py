"""The final engine's scheduler: any mixture of decodes, chunks of prompts and new sequences, within the cache's pages.

Three rounds fill a step, each from what the one before left of the token budget: one token for each decoding sequence,
the next chunk of each prompt under way, then new sequences, best first (Sarathi-Serve, Agrawal et al. 2024).
Pages are taken as sequences grow, never ahead (PagedAttention, Kwon et al. 2023), so they can run out: then the worst
running sequence goes back to the queue and is recomputed later. The best one never does, and `add` refuses what would
not fit an empty cache; so the best always advances, ends, and frees its slot: every sequence has its turn.

A step target (`gradus.scheduling.step_target`) limits the prompts' tokens, in a step that several sequences share, to
what fits into a time that streams can bear. Short prompts then pass long ones (`gradus.scheduling.passing`): prompts
that are shorter than the rest of the best one get up to half of these tokens, and the best one gets the remainder. With
a `slowdown`, long prompts also sit out most steps in which sequences decode.

Plans may be made while earlier ones are still under way. Then the token that a decode starts from is not known: the
plan says UNKNOWN, and the runner, which has the token on the device, fills it in. Planning needs lengths alone.

Steady decodes are columns (`gradus.scheduling.columns`). They pass through here only when something must be decided: at
the end of a page, at their end, and when they have to give way. The teaching twin is phases/p06_chunked_prefill
(and p10 for plans made ahead); this one adds columns, order by priority and deadline, samples that share their prompt,
layer groups with windows, and sequences that end with numbers that are not finite. No torch here.

A pipeline of stages needs several steps at once, and no sequence can be in two of them. So running sequences are
divided among micro-batches (GPipe, Huang et al. 2019), which take turns: each plan advances one. Slots, pages and the
queue belong to all of them, and a sequence of one may have to give way to a sequence of another.
"""

import heapq
import itertools
import math
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from gradus.cache import TableChange
from gradus.cache.paged import PagedCache
from gradus.cache.usage import CacheUsage, Snapshot
from gradus.config.options import Policy
from gradus.engine.outputs import Outputs
from gradus.engine.plan import SCORED, Column, Decodes, Plan, Result, Sampled, Span, admit, scores_of
from gradus.engine.sequence import Output, Sequence, SpanResult
from gradus.engine.time_limits import TimeLimits
from gradus.errors import RequestError
from gradus.scheduling.columns import Columns
from gradus.scheduling.drafting import DraftControl
from gradus.scheduling.passing import Passing
from gradus.scheduling.queue import RANKS, Siblings, WaitingQueue
from gradus.scheduling.step_target import StepTarget

BY_ORDER = attrgetter("order")


def _price(sequence: Sequence) -> int:
    """The number of tokens that each of its rows counts as."""
    return SCORED if sequence.unscored else 1


PATIENCE_S = 0.01  # between two looks at what else has come, while pages come back


class Refusal(NamedTuple):
    """A new sequence that found no room, the positions that it hit, and the pages that it needed to start.

    pages: for its first span, and hit pages that no running sequence held.
    """

    sequence: Sequence
    hit: int
    pages: int

    def outdated_by(self, published: Sequence, page_size: int) -> bool:
        """Whether it may hit more, now that the pages of `published` are in the index: its next page is the same."""
        page = slice(self.hit, self.hit + page_size)
        return published.tokens[page] == self.sequence.tokens[page]


@dataclass(slots=True)
class MicroBatch:
    """Running sequences that advance in the same steps.

    columns: those that decode. prefilling: those with prompts not planned to their end. moved: decoding sequences whose
    block-table changes go into the next plan.
    """

    columns: Columns
    prefilling: list[Sequence] = field(default_factory=list)
    moved: list[Sequence] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.columns.count + len(self.prefilling)

    @property
    def running(self) -> list[Sequence]:
        return [*self.columns.members(), *self.prefilling]


class Scheduler:
    """Up to `max_sequences` run, within `token_budget` tokens per step and the pages of `cache`.

    token_budget: None sets no limit; a prompt is then always one span.
    policy: the order of the queue (see queue.RANKS). Under "priority" a new sequence may also preempt a running one
    with a larger number; otherwise it never does. No sequence overtakes the head of the queue, except a short prompt
    that passes a long one in an engine with a step target.
    times: the engine's. It judges whether a deadline can still be met; if not, the engine ends the sequence.
    drafting: chooses how many drafts each sequence verifies, in an engine that speculates.
    micro_batches: how many steps without a sequence in common may be under way, one per stage of a pipeline.
    target: how long a step may last that several sequences share; None: as long as it takes.
    """

    def __init__(
        self,
        cache: PagedCache,
        max_sequences: int,
        token_budget: int | None = None,
        policy: Policy = "fcfs",
        times: TimeLimits | None = None,
        drafting: DraftControl | None = None,
        micro_batches: int = 1,
        target: StepTarget | None = None,
    ) -> None:
        self.cache = cache
        self.max_sequences = max_sequences
        self.token_budget = token_budget
        self.policy = policy
        self.times = TimeLimits() if times is None else times
        self.waiting = WaitingQueue()
        self.siblings = Siblings()
        self.drafting = drafting
        self.target = target
        self.passing = Passing(cache)
        most = 0 if drafting is None else drafting.most
        columns = (Columns(max_sequences, cache.page_size, most) for _ in range(micro_batches))
        self.micro_batches = deque(MicroBatch(each) for each in columns)  # in the order of their turns
        self.current = self.micro_batches[0]  # of the plan being made
        self.homes = [self.current] * max_sequences  # by slot: the micro-batch of the sequence that runs there
        self.under_way: deque[MicroBatch] = deque()  # of the plans issued but not committed
        self.free_slots = list(range(max_sequences))  # a heap: attention may read up to the highest slot in use
        self.requests: dict[str, dict[int, Sequence]] = {}  # request id → its samples that have not ended
        self.plan = Plan()  # the plan being made
        self.left = 0  # tokens that the plan has room for
        self.left_cost = math.inf  # the cost of prompts that it has room for
        self.left_long = math.inf  # that of long prompts alone
        self.issued = self.committed = 0  # counts of plans; those in between are under way
        self._after_prompts = False  # the newest step that was committed read some
        self.preemptions = self.cached_tokens = 0
        self._entered: list[tuple[Sequence, TableChange]] = []  # decoding sequences that this plan gives a page
        self._numbers = itertools.count()
        self._growth = len(cache.windows)  # pages that a sequence takes when it needs some: one per layer group
        self._refusal: Refusal | None = None  # of the head of the queue
        self._looked_up: Sequence | None = None  # the newest that was looked up in the second tier
        self._longest_served = 0  # the longest sequence found to fit; shorter ones fit too
        self._usage = Snapshot(self.measure_usage, self.times.clock)

    # -- a request comes -----------------------------------------------------------------------------------------------

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue the samples of one request, all or none.

        Raises RequestError, keeping nothing, for an id in use and for a request that an empty cache could not hold. A
        request that cannot meet its deadline is given up at once, before it costs anything.
        """
        sequences = list(sequences)
        first = sequences[0]
        self._refuse_impossible(first)
        rank = RANKS[self.policy](first)
        for sequence in sequences:
            sequence.order = rank, next(self._numbers)
        if first.request.scheduling.deadline and self.times.too_late(first, self._steps_ahead(rank)):
            self.times.give_up(sequences)
        self.requests[first.request.id] = {sequence.index: sequence for sequence in sequences}
        at_once = len(sequences) if self.cache.index is None else 1
        self._queue(sequences[:at_once])
        self.siblings.hold(first.request.id, sequences[at_once:])

    def _queue(self, samples: list[Sequence]) -> None:
        """Let samples of one prompt wait. What the cache has of it counts where prompts may pass or sit out."""
        if samples and self.target is not None and not samples[0].unscored:
            indexed, known = self.cache.known(samples[0].tokens, samples[0].request.scheduling.cache_salt)
            for sequence in samples:
                sequence.indexed, sequence.known = indexed, known
        self.waiting.extend(samples)

    def _steps_ahead(self, rank: float) -> float:
        return self.waiting.steps_ahead(rank, self.max_sequences) / self.times.fastest

    def _refuse_impossible(self, sequence: Sequence) -> None:
        request, longest = sequence.request, sequence.longest
        if request.id in self.requests:
            raise RequestError(f"request id {request.id!r} is in use", param="request_id", got=request.id)
        if longest > self._longest_served and not self.cache.fits(longest, min(longest, self._longest_span or longest)):
            raise RequestError(
                f"{longest} tokens are more than the cache can ever hold (prompt {len(request.prompt)}, max_tokens "
                f"{request.max_tokens})",
                param="max_tokens",
                limit=f"at most {self.cache.longest(self._longest_span, longest)} tokens, with the prompt's",
                got=longest,
            )
        self._longest_served = max(self._longest_served, longest)

    @property
    def _longest_span(self) -> int | None:
        """The most positions of one sequence that a step may need at once; None if unbounded."""
        if self.token_budget is None or self.drafting is None:
            return self.token_budget
        return max(self.token_budget, self.drafting.ahead)

    # -- a step is planned ---------------------------------------------------------------------------------------------

    def schedule(self) -> Plan | None:
        """Plan the next step, or return None when there is no work. A micro-batch without work misses its turn."""
        self.cache.settle()
        for _ in range(len(self.micro_batches)):
            self.current = self.micro_batches[0]
            self.micro_batches.rotate(-1)
            if (plan := self._next_of_current()) is not None:
                return plan
        if not self.under_way:
            self.cache.wait_for_pages(PATIENCE_S)  # there is nothing else to do
        return None

    def _next_of_current(self) -> Plan | None:
        self.plan, preempted = Plan(), self.preemptions
        columns = self.current.columns
        if due := columns.at_page_end():
            self.enter_pages(due)
        self.left = (self.token_budget or sys.maxsize) - len(columns.going().slots)
        if self.target is not None:
            self._limit_prompts(self.target)
        if (self.current.prefilling or self.waiting.count) and (best := self._best_prompt()) is not None:
            self.continue_prompts(best)
        if (
            self.waiting.count and self.preemptions == preempted
        ):  # a sequence just sent back for want of pages must not take them again
            self.admit()
        self.plan.decodes = self._advance()
        if self._entered or self.current.moved:
            self.plan.decodes.pages = self._changes()
        if not self.plan.size:
            return None
        for span in self.plan.spans:
            self.begin_decoding(span)
        self.plan.wiped = self.cache.take_wiped()
        self.cache.make_ready(self.active_count * self._growth)
        self.issued += 1
        self.under_way.append(self.current)
        if self.target is not None:
            self.target.began(self.plan)
        return self.plan

    @property
    def columns(self) -> Columns:
        """The columns of the micro-batch that a plan is being made for."""
        return self.current.columns

    def enter_pages(self, sequences: list[Sequence]) -> None:
        """Get each sequence pages for its next tokens: all at once, or one by one at the cost of worse sequences."""
        if self._need_one_each(sequences):
            changes = self.cache.add_pages([sequence.id for sequence in sequences])
            if changes is not None:
                self._entered = list(zip(sequences, changes, strict=True))
                self.columns.entered_next(sequences)
                return
        self.current.moved += [sequence for sequence in sequences if self.enter_page(sequence)]

    def _need_one_each(self, sequences: list[Sequence]) -> bool:
        """Whether one more page per sequence covers the next step and describes the whole change.

        Sliding windows also free pages, at positions that drafts leave uncertain: such sequences take the slow path.
        """
        return self.drafting is None or (not self.cache.sliding and self.columns.need_one_each(sequences))

    def enter_page(self, sequence: Sequence) -> bool:
        """Get one sequence its pages. False if it had to give way, now or to an earlier one."""
        if not self.columns.holds(sequence):
            return False
        end, start = self.columns.needed(sequence)
        if not self.make_room(sequence, end, start):
            return False
        self.columns.entered(sequence, end)
        return True

    def _advance(self) -> Decodes:
        """Plan a token for each decoding sequence, and drafts with what the prompts have left of the budget."""
        columns = self.current.columns
        slots = columns.going().slots
        if self.drafting is None or not len(slots) or (self.plan.spans and not self.drafting.mixes):
            return columns.advance()
        drafts = self.drafting.choose(slots, int(min(self.left, self.left_cost)))
        if len(drafts):
            self.reserve_drafts(columns.wanted(drafts))
        return columns.advance(drafts)

    def reserve_drafts(self, wanted: list[tuple[Sequence, tuple[int, int]]]) -> None:
        """Reserve pages for drafts while some are spare: no sequence gives way for them, or loses a page to grow into.

        A sequence that entered a page already has its change in this plan, and drafts only as far as that page goes.
        """
        entered = {sequence.slot for sequence, _ in self._entered}
        for sequence, (end, start) in wanted:
            if sequence.slot not in entered and self._spare > 0 and self.cache.reserve(sequence.id, end, start):
                self.columns.entered(sequence, end)
                self.current.moved.append(sequence)

    def _limit_prompts(self, target: StepTarget) -> None:
        """Set the cost of prompts that the plan has room for: without limit if only one sequence waits for it."""
        decoding = sum([each.columns.count for each in self.micro_batches])
        starting = min(len(self.waiting), len(self.free_slots))
        self.left_long = target.room_for_long(decoding, self.active_count - decoding + starting)
        alone = self.active_count + len(self.waiting) == 1
        self.left_cost = math.inf if alone else target.room(len(self.columns.going().slots))

    def _sits_out(self, sequence: Sequence) -> bool:
        """Whether it is a long prompt that leaves this step to the others."""
        return self.left_long <= 0 and self.target is not None and self.target.is_long(sequence)

    def _best_prompt(self) -> Sequence | None:
        """Return the best prompt under way, or the head of the queue if it is better and sits the step out: a prompt
        that others may pass. None if there is none."""
        prompts, head = self.current.prefilling, self.waiting.head()
        if head is not None and self._sits_out(head):
            prompts = [*prompts, head]
        return min(prompts, key=BY_ORDER, default=None)

    def continue_prompts(self, best: Sequence) -> None:
        """Plan the next chunks of the prompts under way, best first, after those that pass the best one."""
        under_way = sorted(self.current.prefilling, key=BY_ORDER)
        if self.left_cost < math.inf:
            self.let_pass(best)
        planned = {span.sequence for span in self.plan.spans}
        for sequence in under_way:
            if sequence not in planned:
                self.continue_prompt(sequence)

    def continue_prompt(self, sequence: Sequence) -> None:
        """Plan the next chunk of a prompt under way, as far as the step has room."""
        if self._has_room and sequence.slot >= 0 and not self._sits_out(sequence):  # nor preempted for an earlier one
            self.place(sequence)

    @property
    def _has_room(self) -> bool:
        return self.left > 0 and self.left_cost > 0

    def place(self, sequence: Sequence) -> None:
        """Plan the next span: the known tokens that are not stored yet, as far as the step has room.

        A sequence that had to give way itself to make room gets no span.
        Only the span that reaches the newest token is sampled from: a chunk before it has no logits.
        A row that is scored counts as SCORED tokens.
        """
        tokens, start = sequence.tokens, self.cache.stored(sequence.id)
        end = self._end_of_span(sequence, start)
        if not self.make_room(sequence, end):
            return
        logits = 1 if end == len(tokens) else 0
        pages = self.cache.table_change(sequence.id)
        scores = scores_of(sequence, start, end)
        self.plan.spans.append(Span(sequence, sequence.slot, start, tokens[start:end], logits, pages, scores))
        self.left = max(0, self.left - _price(sequence) * (end - start))
        if self.left_cost < math.inf and self.target is not None:
            cost = _price(sequence) * self.target.cost(start, end)
            self.left_cost = max(0.0, self.left_cost - cost) if logits else 0.0  # a cut prompt has filled the step
            if self.target.is_long(sequence):
                self.left_long -= cost

    def _end_of_span(self, sequence: Sequence, start: int) -> int:
        """Return where a span from `start` on would end: one token is always taken."""
        most = self.left // _price(sequence)
        if self.left_cost < math.inf and self.target is not None:
            left = min(self.left_cost, self.left_long) if self.target.is_long(sequence) else self.left_cost
            most = min(most, self.target.tokens(start, left / _price(sequence)))
        return min(len(sequence.tokens), start + max(1, most))

    # -- short prompts pass a long one ---------------------------------------------------------------------------------

    def let_pass(self, best: Sequence) -> None:
        """Plan chunks of prompts that pass `best`, shortest first. Half of the room is kept for it, or as much as it
        needs: so it never takes more than twice as many steps, whatever passes it."""
        left, left_cost = self.left, self.left_cost
        kept, kept_cost = self._half_for(best)
        self.left, self.left_cost = left - kept, left_cost - kept_cost
        preempted = self.preemptions
        for sequence in self.passing.among(self.current.prefilling, best):
            self.continue_prompt(sequence)
        while self._has_room and self.preemptions == preempted and (newcomer := self._next_to_pass(best)) is not None:
            if self._has_its_share or self.times.too_late(newcomer) or not self.start_next(newcomer):
                break
        self.left, self.left_cost = self.left + kept, self.left_cost + kept_cost

    def _half_for(self, best: Sequence) -> tuple[int, float]:
        """Return the tokens and the cost of half of the step's room, or what the rest of `best` takes, if that is
        less; nothing if it sits the step out."""
        assert self.target is not None
        if self._sits_out(best):
            return 0, 0.0
        end, price = len(best.tokens), _price(best)
        rest = self.target.cost(self.cache.stored(best.id), end)
        return min(price * self.passing.rest(best), -(-self.left // 2)), min(price * rest, self.left_cost / 2)

    def _next_to_pass(self, best: Sequence) -> Sequence | None:
        under_way = [sequence for each in self.micro_batches for sequence in each.prefilling]
        return self.passing.next(best, self.waiting, under_way, self._spare, len(self.free_slots))

    def begin_decoding(self, span: Span) -> None:
        """Move a sequence to the columns, from the next plan on, if its prompt ends with this one."""
        sequence = span.sequence
        assert sequence is not None
        if span.logits:
            stored, size = len(sequence.tokens), self.cache.page_size
            room = -(-stored // size) * size
            fits = self.cache.reserve(sequence.id, room)
            assert fits, "the rest of its last page is its own"
            self.current.prefilling.remove(sequence)
            self.columns.join(sequence)
            if self.drafting is not None:
                self.drafting.begin(sequence.slot)

    def _changes(self) -> list[tuple[int, TableChange]]:
        """Collect the changes of decodes' block tables for the plan. Sequences that have left meanwhile have none."""
        here = self.columns.holds
        changes = [(each.slot, change) for each, change in self._entered if here(each)]
        for each in filter(here, self.current.moved):
            change = self.cache.table_change(each.id)
            if change is not None:
                changes.append((each.slot, change))
        self._entered, self.current.moved = [], []
        return changes

    # -- room ----------------------------------------------------------------------------------------------------------

    def make_room(self, sequence: Sequence, end: int, start: int | None = None) -> bool:
        """Get a running sequence pages for [0, end), at the cost of worse ones. False: it was the worst, and is out.

        The best can take all other sequences' pages, so it always finds room. start: as in `PagedCache.reserve`.
        """
        while not self.cache.reserve(sequence.id, end, start):
            worst = max(self.running, key=BY_ORDER)
            self.preempt(worst)
            if worst is sequence:
                return False
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to its old place in the queue, so that it is among the first to resume.

        It is recomputed from its prompt and output; pages still in the prefix index are reused. Its span leaves the
        plan that is being made. Steps under way go on: their tokens reach it in the queue, and it resumes once it has
        them all.
        """
        self.release(sequence)
        self.waiting.push(sequence)
        self.preemptions += 1
        sequence.resumes = self.issued
        self.plan.spans[:] = [span for span in self.plan.spans if span.sequence is not sequence]

    def release(self, sequence: Sequence, poisoned: bool = False) -> None:
        """Take a sequence out of the running set: its slot and its pages become free."""
        home = self.homes[sequence.slot]
        if not home.columns.holds(sequence):
            home.prefilling.remove(sequence)
        else:
            if not poisoned:
                self.publish(sequence, home.columns.stored(sequence))
            home.columns.leave(sequence)
        self.cache.release(sequence.id, poisoned)
        heapq.heappush(self.free_slots, sequence.slot)
        sequence.slot = -1

    # -- new sequences -------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Start waiting sequences, best first, until one finds no slot, no pages or no tokens left: none overtakes it.

        A sequence that is too late stops the round as well: the engine ends it before the next step. A prompt under way
        that sits the step out has its place in it: it is passed by those that may, and by no others.
        """
        if any(self._sits_out(sequence) for sequence in self.current.prefilling):
            return
        while self._has_room and (sequence := self.waiting.head()) is not None:
            if self._has_its_share or self.times.too_late(sequence) or not self.start_next(sequence):
                return

    @property
    def _has_its_share(self) -> bool:
        """Whether the micro-batch runs its part of all sequences: those that wait are left to the others.

        Parts are equal, except for the remainder, which goes to the micro-batches that take it first.
        """
        each, remainder = divmod(self.active_count + len(self.waiting), len(self.micro_batches))
        larger = sum([other.count > each for other in self.micro_batches if other is not self.current])
        return self.current.count >= each + (larger < remainder)

    def start_next(self, sequence: Sequence) -> bool:
        """Start a waiting sequence, under "priority" if need be in place of worse ones. False: it must wait."""
        if self.committed < sequence.resumes or self._sits_out(sequence) or self.waits_for_pages(sequence):
            return False
        while not self.enter(sequence):
            if self.policy != "priority":
                return False
            worst = max(self.running, key=BY_ORDER, default=sequence)
            if worst.order[0] <= sequence.order[0]:
                return False
            self.preempt(worst)
        return True

    def enter(self, sequence: Sequence) -> bool:
        """Give it a slot, its prefix from the index, and pages for its first span; or nothing, and return False."""
        if not self.free_slots or self._spare < self._wanted(sequence):
            return False
        available = self.cache.available
        hit = sequence.indexed = sequence.known = self.find_prefix(sequence)
        pages = self.cache.pages_for(self._end_of_span(sequence, hit) - hit)
        if self._spare < pages:
            self._refusal = Refusal(sequence, hit, pages + available - self.cache.available)
            self.cache.release(sequence.id)
            return False
        self._refusal = self._looked_up = None
        self.waiting.take(sequence)
        self.plan.admissions.append(admit(sequence, heapq.heappop(self.free_slots)))
        self.homes[sequence.slot] = self.current
        self.place(sequence)
        self.current.prefilling.append(sequence)
        if not sequence.generated:
            sequence.cached_tokens = hit
            self.cached_tokens += hit
        return True

    @property
    def _spare(self) -> int:
        """The pages that new sequences may take: each running sequence keeps one (per group) to grow into."""
        return self.cache.available - self.active_count * self._growth

    def _wanted(self, sequence: Sequence) -> int:
        """Return the spare pages needed for an attempt: one (per group), or what it needed when it was last refused."""
        refusal = self._refusal
        return refusal.pages if refusal is not None and refusal.sequence is sequence else self._growth

    # -- the prefix index ----------------------------------------------------------------------------------------------

    def publish(self, sequence: Sequence, end: int) -> None:
        """Share the full pages of a running sequence. Committed steps have stored its positions [0, end)."""
        home = self.homes[sequence.slot]
        if self.cache.publish(sequence.id, sequence.tokens, end) and home.columns.holds(sequence):
            home.moved.append(sequence)
        if self._refusal is not None and self._refusal.outdated_by(sequence, self.cache.page_size):
            self._refusal = None

    def waits_for_pages(self, sequence: Sequence) -> bool:
        """Whether the next sequence has to wait for pages from the second tier. It is looked up there once.

        No other sequence starts meanwhile: several may begin alike, and then one load serves all of them.
        """
        if not self.cache.loading and self.free_slots and self._looked_up is not sequence:
            self._looked_up = sequence
            if not sequence.unscored:
                self.cache.load(sequence.tokens, sequence.request.scheduling.cache_salt, self._spare)
        return self.cache.loading

    def find_prefix(self, sequence: Sequence) -> int:
        """Begin a new sequence with the pages that others have of its tokens. Returns the positions hit.

        Pages that decodes fill are published only where it matters: a running sequence may have the page after the
        hit, and the index not know it.

        A sequence that reports its prompt's log-probabilities must compute each row that it has not scored yet.
        """
        if sequence.unscored:
            return self.cache.admit(
                sequence.id, sequence.tokens[: len(sequence.scores) + 1], sequence.request.scheduling.cache_salt
            )
        while True:
            hit = self.cache.admit(sequence.id, sequence.tokens, sequence.request.scheduling.cache_salt)
            page = hit // self.cache.page_size
            others = [(each.columns, other) for each in self.micro_batches for other in each.columns.unpublished(page)]
            if self.cache.index is None or not others:
                return hit
            self.cache.release(sequence.id)
            for columns, other in others:
                self.publish(other, columns.stored(other))
                columns.publish(other)

    # -- a step is done ------------------------------------------------------------------------------------------------

    def commit(self, plan: Plan, result: Result) -> Outputs:
        """Wait for the step, append its tokens, and free the sequences that ended."""
        sampled = result.get()
        outputs = self._commit_decodes(self.under_way.popleft().columns, plan, sampled)
        if plan.spans:
            self._commit_spans(plan.spans, sampled, outputs)
        self.committed += 1
        self._after_prompts = bool(plan.spans)
        if self.target is not None:
            self.target.took(plan, sampled.seconds)
        return outputs

    def _commit_spans(self, spans: list[Span], sampled: Sampled, outputs: Outputs) -> None:
        scores = iter(sampled.scores)
        for span, one in zip(spans, sampled, strict=True):
            if span.scores is not None and span.sequence is not None:
                span.sequence.score(span.start, next(scores))
            outputs.others += self.commit_span(span, one)

    def _commit_decodes(self, columns: Columns, plan: Plan, sampled: Sampled) -> Outputs:
        """Decide exceptions one by one; record the plain tokens of all others in the columns."""
        decodes, tokens = plan.decodes, sampled.decoded
        if not len(tokens):
            return Outputs()
        assert decodes.owners is not None
        exceptional = columns.exceptions(decodes, tokens)
        if self.drafting is not None:
            self._learn(plan, sampled, tokens, exceptional)
        outputs = Outputs(decodes.owners, tokens, exceptional, sampled.logprobs)
        for row in exceptional:
            outputs.others += self.commit_exception(decodes.owners[row], sampled.decode(row))
        columns.record(decodes, tokens)
        return outputs

    def _learn(self, plan: Plan, sampled: Sampled, tokens: Column, ended: list[int]) -> None:
        """Learn what drafts cost and gain. The step after one with prompts counts as not timed: they give the host more
        work than decodes do, and before them it may have had none."""
        assert self.drafting is not None
        seconds = 0.0 if plan.spans or self._after_prompts else sampled.seconds
        self.drafting.learn(plan.decodes, tokens, ended, seconds, usual=sampled.usual)

    def commit_exception(self, sequence: Sequence, sampled: SpanResult) -> list[Output]:
        """Commit a decode that ends with this step, or that lost its slot while the step was under way."""
        if sequence.finish_reason is not None:
            return []
        output = sequence.accept(sampled)
        if sequence.slot < 0:
            self.waiting.learn(sequence, len(output.tokens))
        if sequence.finish_reason is not None:
            self.retire(sequence, poisoned=sampled.error is not None)
        return [output]

    def commit_span(self, span: Span, sampled: SpanResult) -> list[Output]:
        """Commit a stored chunk, or the end of a prompt with its first token."""
        sequence, end = span.sequence, span.start + len(span.tokens)
        assert sequence is not None
        if sequence.finish_reason is not None:  # it ended while its step was under way
            return []
        outputs = [sequence.accept(sampled)] if span.logits else []
        if sequence.slot < 0:  # it was preempted while its step was under way
            self.waiting.learn(sequence, len(sampled.tokens))
        elif sampled.error is None:
            self.publish(sequence, end)
            if span.logits:
                self.homes[sequence.slot].columns.publish(sequence)
        if sampled.error is None and span.logits:
            self._queue(self.siblings.take(sequence.request_id, sys.maxsize))
        if sequence.finish_reason is not None:
            self.retire(sequence, poisoned=sampled.error is not None)
        return outputs

    # -- endings -------------------------------------------------------------------------------------------------------

    def cancel(self, request_id: str, index: int | None, reason: str) -> list[Output]:
        """End the request's samples (or one of them) in whatever state they are; [] if they ended before.

        Their results from steps under way are ignored.
        """
        samples = self.requests.get(request_id, {}).values()
        outputs = []
        for sequence in [sequence for sequence in samples if index in (None, sequence.index)]:
            outputs.append(sequence.end(reason))
            self.retire(sequence)
        return outputs

    def retire(self, sequence: Sequence, poisoned: bool = False) -> None:
        """Forget a sequence that has ended: it leaves its slot, or the queue in which it waits.

        If its siblings were waiting for its prompt, the next one computes it.
        """
        if sequence.slot >= 0:
            self.release(sequence, poisoned)
        elif not self.siblings.remove(sequence):
            self.waiting.remove(sequence)
        samples = self.requests[sequence.request_id]
        del samples[sequence.index]
        if not samples:
            del self.requests[sequence.request_id]
        elif len(samples) == self.siblings.held(sequence.request_id):
            self._queue(self.siblings.take(sequence.request_id, 1))

    # -- state and invariants ------------------------------------------------------------------------------------------

    def head(self) -> Sequence | None:
        """Return the sequence that would start next; None when none waits."""
        return self.waiting.head()

    @property
    def running(self) -> list[Sequence]:
        return [sequence for each in self.micro_batches for sequence in each.running]

    @property
    def active_count(self) -> int:
        count = 0  # asked at every step: a loop is one call
        for each in self.micro_batches:
            count += each.columns.count + len(each.prefilling)
        return count

    @property
    def waiting_count(self) -> int:
        return self.waiting.count + self.siblings.count

    def progress(self, sequence: Sequence) -> tuple[int, bool]:
        """Return the positions of a running sequence that are stored once every planned step has run, and whether it
        decodes. For watchers: drafts under way count as accepted."""
        columns = self.homes[sequence.slot].columns
        if columns.holds(sequence):
            return columns.stored_ahead(sequence), True
        return self.cache.stored(sequence.id), False

    def usage(self) -> CacheUsage:
        """Report how full the cache is: now, if nothing runs; otherwise a short while ago."""
        return self._usage.look(now=not self.active_count)

    def measure_usage(self) -> CacheUsage:
        """Measure how full the cache is now. The time grows with the number of pages."""
        return self.cache.usage(sum(each.columns.reserved_ahead() for each in self.micro_batches))

    def check(self) -> None:
        """Assert the invariants of queue, slots, pages and columns. Every live sample is in exactly one place."""
        self.cache.check()
        self.waiting.check()
        running = self.running
        slots = sorted([sequence.slot for sequence in running] + self.free_slots)
        assert slots == list(range(self.max_sequences)), "a slot is lost, or taken twice"
        places = [*running, *self.waiting, *self.siblings]
        live = [sequence for samples in self.requests.values() for sequence in samples.values()]
        assert len(places) == len(live) == self.active_count + self.waiting_count
        assert set(places) == set(live), "a sample is nowhere, or lives on after its end"
        assert all(sequence.slot == -1 and sequence.unread is None for sequence in (*self.waiting, *self.siblings))
        assert set(self.cache.residents) == {sequence.id for sequence in running}, "pages of a sequence not running"
        assert self.issued - self.committed == len(self.under_way) >= 0
        for each in self.micro_batches:
            each.columns.check(len([one for one in self.under_way if one is each]))
            assert all(self.homes[sequence.slot] is each for sequence in each.running), "it runs in two micro-batches"
        for sequence in running:
            stored, columns = self.cache.stored(sequence.id), self.homes[sequence.slot].columns
            if columns.holds(sequence):
                assert stored == columns.room(sequence), "cache and columns disagree on the room"
            else:
                assert 1 <= stored < len(sequence.tokens), "its prompt is not stored to the end, and it does not run"
