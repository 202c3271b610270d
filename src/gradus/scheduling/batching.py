"""The scheduler that survives: any mixture of decodes, chunks of prompts and newcomers, in as many pages as there are.

A step is filled in three rounds, each with what the one before left of the token budget: one token for everybody who
decodes, the next chunk of every prompt under way, then newcomers, best first (Sarathi-Serve, Agrawal et al. 2024).
Pages are taken as sequences grow, never ahead (PagedAttention, Kwon et al. 2023), so they can run out: then the worst
of those who run goes back to the queue and will be computed again. The best one never does, and `add` refuses what
would not fit an empty cache; so the best always advances, ends, and leaves its place: everybody's turn comes.

Plans may be made ahead, while earlier ones are still under way. Then the token that a decode starts from is not known:
its place in the plan is taken by UNKNOWN, and the runner, which has it on the device, fills it in. All that planning
needs is a length, and that is known: `sequence.planned`. No torch here.
"""

import heapq
import itertools
import sys
import time
from collections.abc import Callable, Iterable
from operator import attrgetter

from gradus.cache.paged import PagedCache
from gradus.cache.usage import CacheUsage, Snapshot
from gradus.config.options import Policy
from gradus.engine.plan import UNKNOWN, Plan, Result, Span
from gradus.engine.scheduler import Scheduler
from gradus.engine.sequence import Output, Sequence, SpanResult
from gradus.errors import RequestError
from gradus.scheduling.books import check_books
from gradus.scheduling.deadlines import Deadlines
from gradus.scheduling.queue import RANKS, Siblings, WaitingQueue

BY_ORDER = attrgetter("order")


class PagedBatching(Scheduler):
    """Up to `max_sequences` run, within `token_budget` tokens a step and the pages of `cache`.

    token_budget: None sets no limit; a prompt is then always one span.
    policy: who goes first (see queue.RANKS). Under "priority" a newcomer may also take the place of who runs with a
    larger number; otherwise a newcomer never costs anybody else's place, and nobody overtakes the head of the queue.
    clock: seconds, never going back.

    Deadlines and timeouts hold under every policy. Whom the scheduler ends for them comes out of `take_ended`.
    """

    def __init__(
        self,
        cache: PagedCache,
        max_sequences: int,
        token_budget: int | None = None,
        policy: Policy = "fcfs",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(cache, clock)
        self.cache: PagedCache = cache
        self.waiting: WaitingQueue = WaitingQueue()
        self.siblings = Siblings()
        self.deadlines = Deadlines(clock)
        self.max_sequences = max_sequences
        self.token_budget = token_budget
        self.policy = policy
        self.free_slots = list(range(max_sequences))  # a heap: attention may read up to the highest slot in use
        self.requests: dict[str, dict[int, Sequence]] = {}  # request id → its samples that have not ended
        self.plan = Plan([])  # being made
        self.left = 0  # tokens that it has room for
        self.issued = self.committed = 0  # plans; they are under way in between
        self._numbers = itertools.count()
        self._growth = len(cache.windows)  # pages that a sequence takes when it needs some: one a layer group
        self._publish_every = cache.page_size if cache.index is not None else sys.maxsize  # positions; or never
        self._refused: tuple[Sequence | None, int] = (None, 0)  # who found no room, and the spare pages there were
        self._usage = Snapshot(cache.usage, clock)

    # -- a request comes -----------------------------------------------------------------------------------------------

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue the samples of one request, all or none.

        Raises RequestError, keeping nothing, for an id that is in use and for what an empty cache could not hold. A
        request that cannot meet its deadline ends here, before it cost anything.
        """
        sequences = list(sequences)
        first = sequences[0]
        self._refuse_impossible(first)
        rank = RANKS[self.policy](first)
        for sequence in sequences:
            sequence.order = rank, next(self._numbers)
        ahead = self.waiting.steps_ahead(rank, self.max_sequences) if first.request.scheduling.deadline else 0.0
        if self.deadlines.too_late(first, self.clock(), ahead):
            self.ended += [sequence.end("deadline") for sequence in sequences]
            return
        self.requests[first.request.id] = {sequence.index: sequence for sequence in sequences}
        for sequence in sequences:
            self.deadlines.watch(sequence)
        at_once = len(sequences) if self.cache.index is None else 1
        self.waiting.extend(sequences[:at_once])
        self.siblings.hold(first.request.id, sequences[at_once:])

    def _refuse_impossible(self, sequence: Sequence) -> None:
        request, longest = sequence.request, sequence.longest
        if request.id in self.requests:
            raise RequestError(f"request id {request.id!r} is in use", param="request_id", got=request.id)
        if not self.cache.fits(longest, min(longest, self.token_budget or longest)):
            raise RequestError(
                f"{longest} tokens are more than the cache can ever hold (prompt {len(request.prompt)}, max_tokens "
                f"{request.max_tokens})",
                param="max_tokens",
                limit=f"at most {self.cache.longest(self.token_budget, longest)} tokens, with the prompt's",
                got=longest,
            )

    # -- a step is planned ---------------------------------------------------------------------------------------------

    def schedule(self) -> Plan | None:
        """The next step's work, or None when there is none."""
        self.expire()
        self.plan, self.left = Plan([]), self.token_budget or sys.maxsize
        before = self.preemptions
        self.decode()
        for sequence in self.ready():
            if self.left and sequence.slot >= 0:  # not sent back for the sake of one before it
                self.place(sequence, self.make_room)
        if self.preemptions == before:  # who was just sent back for want of pages must not take them again
            self.admit()
        if not self.plan.spans:
            return None
        self.plan.wiped = self.cache.take_wiped()
        self.issued += 1
        return self.plan

    def expire(self) -> None:
        """End whose time is up, and who runs but cannot be done by its deadline any more."""
        now = self.clock()
        self.deadlines.step_started(now)
        for sequence, reason in self.deadlines.expired(now):
            self.ended.append(self.end(sequence, reason))
        for sequence in self.deadlines.hopeless(self.running, now):
            self.ended.append(self.end(sequence, "deadline"))

    def decode(self) -> None:
        """A token for everybody who decodes: what `place` does, made short for the case that most spans are.

        The cache is asked when a sequence enters a page, which is once in `page_size` steps. The budget is never too
        small: each of them was sampled from in the last step, within that step's budget.
        """
        spans = self.plan.spans
        new = object.__new__  # without Span's __init__ here, and Output's in `commit`, a step takes a tenth less
        unknown = None if self.issued == self.committed else (UNKNOWN,)  # who decodes is in every plan under way
        for sequence in tuple(self.running):
            slot, end, resident, pages = sequence.slot, sequence.planned, sequence.resident, None
            if slot < 0:
                continue  # sent back for the sake of one before it
            start = resident.stored
            if end <= sequence.room:
                resident.stored = end
            elif self.enter_page(sequence, end):
                pages = resident.change()
            else:
                continue
            span = new(Span)
            span.sequence = sequence
            span.slot = slot
            span.start = start
            span.tokens = unknown or sequence.newest
            span.logits = 1
            span.pages = pages
            spans.append(span)
            sequence.planned = end + 1
        self.left -= len(spans)

    def enter_page(self, sequence: Sequence, end: int) -> bool:
        """Have [0, end) stored for a sequence, if it decodes, and see how far it can go before it must ask again.

        Nobody is planned past the length at which it ends, whatever the steps under way will sample.
        """
        may = sequence.decoding and end < sequence.longest
        if may and (self.cache.next_page(sequence.resident, end) or self.make_room(sequence, end)):
            sequence.room = min(sequence.resident.room, sequence.longest - 1)
            return True
        return False

    def ready(self) -> list[Sequence]:
        """The prompts under way, best first."""
        if len(self.plan.spans) == len(self.running):
            return []  # everybody decodes, and nobody needs to be looked at again
        return sorted([sequence for sequence in self.running if not sequence.decoding], key=BY_ORDER)

    def place(self, sequence: Sequence, find_room: Callable[[Sequence, int], bool]) -> bool:
        """Plan the next span: what the sequence knows and has not stored, as far as the step's budget goes.

        find_room(sequence, end) has positions [0, end) stored after this step, or returns False; then so does this.
        Only the span that reaches the newest token is sampled from: a chunk before it has no logits. After that one the
        sequence decodes.
        """
        tokens, start = sequence.tokens, self.cache.stored(sequence.id)
        end = min(len(tokens), start + self.left)
        if not find_room(sequence, end):
            return False
        logits = 1 if end == len(tokens) else 0
        pages = self.cache.table_change(sequence.id)
        self.plan.spans.append(Span(sequence, sequence.slot, start, tokens[start:end], logits, pages))
        sequence.decoding = bool(logits)
        sequence.planned += logits
        self.left -= end - start
        return True

    def make_room(self, sequence: Sequence, end: int) -> bool:
        """Have [0, end) of a running sequence stored, at the cost of worse ones. False: it was the worst, and is out.

        The best can take all other sequences' pages, so it always finds room.
        """
        while not self.cache.reserve(sequence.id, end):
            worst = max(self.running, key=BY_ORDER)
            self.preempt(worst)
            if worst is sequence:
                return False
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Back into the queue, where it was before it started: so it is among the first to resume.

        It will be computed again from what it knows, prompt and output, but for what the prefix index still has. If
        this step was to advance it, that is off. Steps under way go on: their tokens reach it in the queue, and it
        resumes when it has them all.
        """
        self.release(sequence)
        self.waiting.push(sequence)
        self.preemptions += 1
        sequence.planned -= sum(span.logits for span in self.plan.spans if span.sequence is sequence)
        sequence.resumes = self.issued
        self.plan.spans[:] = [span for span in self.plan.spans if span.sequence is not sequence]

    # -- newcomers -----------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Start who waits, best first, until one finds no slot, no pages or no tokens left: nobody overtakes it."""
        now = self.clock()
        while self.left and (sequence := self.waiting.head()) is not None:
            if self.deadlines.too_late(sequence, now):
                self.ended.append(self.end(sequence, "deadline"))
            elif not self.start_next(sequence):
                return

    def start_next(self, sequence: Sequence) -> bool:
        """Start the head of the queue, under "priority" in the place of worse ones if need be. False: it must wait."""
        if self.committed < sequence.resumes:
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
        """Give it a slot, what the prefix index has of it, and pages for its first span; or nothing, and False."""
        spare = self.cache.available - len(self.running) * self._growth
        if not self.free_slots or (self.running and not self._may_suffice(sequence, spare)):
            return False
        hit = self.cache.admit(sequence.id, sequence.tokens, sequence.request.scheduling.cache_salt)
        sequence.resident, sequence.slot = self.cache.residents[sequence.id], self.free_slots[0]
        if not self.place(sequence, self.squeeze_in):
            self.cache.release(sequence.id)
            sequence.slot = -1
            self._refused = sequence, spare
            return False
        if sequence.scheduled is None:
            sequence.cached_tokens = hit
            self.cached_tokens += hit
        self.plan.admissions.append(self.start(heapq.heappop(self.free_slots)))
        return True

    def _may_suffice(self, sequence: Sequence, spare: int) -> bool:
        """Whether it is worth looking: a newcomer needs a page at least, and more than what was too little before."""
        refused, too_little = self._refused
        return spare >= self._growth and (sequence is not refused or spare > too_little)

    def squeeze_in(self, sequence: Sequence, end: int) -> bool:
        """Have [0, end) of a newcomer stored, if that leaves everybody who runs a page (of each group) to grow into."""
        if not self.cache.reserve(sequence.id, end):
            return False
        return not self.running or self.cache.available >= len(self.running) * self._growth

    # -- a step is done ------------------------------------------------------------------------------------------------

    def commit(self, plan: Plan, result: Result) -> list[Output]:
        """Wait for the step, append its tokens, publish pages that are full, finish and free what ended."""
        outputs, publish_every = [], self._publish_every
        new = object.__new__  # as in `decode`
        for span, sampled in zip(plan.spans, result.get(), strict=True):
            sequence, tokens, start = span.sequence, sampled.tokens, span.start
            assert sequence is not None
            if start < sequence.quiet and len(tokens) == 1 and (token := tokens[0]) not in sequence.stop_ids:  # usual
                sequence.tokens.append(token)
                sequence.newest = tokens
                output = new(Output)
                output.request_id = sequence.request_id
                output.index = sequence.index
                output.tokens = tokens
                output.logprobs = sampled.logprobs
                output.finish_reason = output.stop_reason = output.error = output.timings = None
                output.cached_tokens = 0
                outputs.append(output)
                if start >= sequence.full:
                    self.publish(sequence, start + 1)
                continue

            if sequence.finish_reason is not None:  # it ended while its step was under way
                continue
            decoded = sequence.decoding and sequence.first_token is not None and len(span.tokens) == 1
            if span.logits:
                outputs.append(sequence.accept(sampled))
            if not decoded or sequence.finish_reason is not None or (span.start + 1) % publish_every == 0:
                self.settle(sequence, span, sampled, decoded)
        self.committed += 1
        self.deadlines.step_ended()
        return outputs

    def settle(self, sequence: Sequence, span: Span, sampled: SpanResult, decoded: bool) -> None:
        """What a step did beside a token: it stored a chunk, filled a page, finished a prompt or a whole sequence."""
        if sequence.slot < 0:  # preempted while the step was under way
            self.waiting.learn(sequence, span.logits if sampled.error is None else 0)
        if sampled.error is None:
            self.publish(sequence, span.start + len(span.tokens))
            if not decoded:
                self._refused = None, 0  # who found no room may find a part of its prompt now
                if span.logits:
                    self.waiting.extend(self.siblings.take(sequence.request.id, sys.maxsize))
        if sequence.finish_reason is not None:
            if sequence.slot < 0:
                self.waiting.remove(sequence)
            else:
                self.release(sequence, poisoned=sampled.poisoned)
            self.forget(sequence)
        elif span.logits and sequence.decoding:
            sequence.quiet = sequence.longest - 2

    def publish(self, sequence: Sequence, end: int) -> None:
        """Positions [0, end) of it are stored: others may share the pages that they fill, if it still has them."""
        if sequence.slot < 0:
            return  # preempted while the step was under way
        self.cache.index_pages(sequence.resident, sequence.tokens, end)
        sequence.full = (end // self._publish_every + 1) * self._publish_every - 1
        if sequence.resident.changed:
            sequence.room = 0  # a page was swapped: its next plan tells

    # -- endings -------------------------------------------------------------------------------------------------------

    def cancel(self, request_id: str, index: int | None, reason: str) -> list[Output]:
        """End the request's samples (or one of them) wherever they are; [] if they ended, and were told, before."""
        untold = [output for output in self.ended if output.request_id == request_id and index in (None, output.index)]
        self.ended = [output for output in self.ended if output not in untold]
        samples = self.requests.get(request_id, {}).values()
        meant = [sequence for sequence in samples if index in (None, sequence.index)]
        return untold + [self.end(sequence, reason) for sequence in meant]

    def end(self, sequence: Sequence, reason: str) -> Output:
        """Finish a sequence from outside, in whatever state it is. A step of it that is under way will be ignored."""
        if sequence.slot >= 0:
            self.release(sequence)
        elif not self.siblings.remove(sequence):
            self.waiting.remove(sequence)
        output = sequence.end(reason)
        self.forget(sequence)
        return output

    def release(self, sequence: Sequence, poisoned: bool = False) -> None:
        """It runs no more: its slot and its pages are free for the next."""
        self.running.remove(sequence)
        self.cache.release(sequence.id, poisoned)
        heapq.heappush(self.free_slots, sequence.slot)
        sequence.slot, sequence.decoding = -1, False
        sequence.room = sequence.quiet = 0

    def forget(self, sequence: Sequence) -> None:
        """It has ended. If its siblings were waiting for its prompt, the next of them computes it."""
        request_id = sequence.request.id
        samples = self.requests[request_id]
        del samples[sequence.index]
        if not samples:
            del self.requests[request_id]
        elif len(samples) == self.siblings.held(request_id):
            self.waiting.extend(self.siblings.take(request_id, 1))

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def waiting_count(self) -> int:
        return len(self.waiting) + len(self.siblings)

    def usage(self) -> CacheUsage:
        """How full the cache is: now, if nothing runs; else not long ago."""
        return self._usage.look(now=not self.running)

    def check(self) -> None:
        """Assert the invariants of queue, slots, pages and books. Every live sample is in exactly one place."""
        super().check()
        check_books(self)
