"""Decoding sequences, in columns: a row per slot, so that a step of hundreds advances in a few vector operations.

A sequence that decodes does the same in every step: it runs its newest token, and any drafts after it.
An object per sequence would cost the host more than the step costs the GPU; the cost of columns of numbers hardly
depends on the number of sequences. The columns decide nothing. They advance numbers, and find the sequences that need
a decision: those at the end of their pages, and those whose token ends them. No torch here.

Steps are counted, and every sequence here decodes in every step until its last. So a row is written when a sequence
comes and when it goes, and never in between: its position follows from its row and the step's number.

**Drafts.** A step that verifies k drafts gives a sequence 1 to k + 1 tokens. The commit learns how many; by then the
next step is planned and launched. So plans are made from bounds. The lower bound is one token per step, as
without drafts; accepted drafts raise it once, when their step is committed. The upper bound counts every draft of the
steps under way as accepted, and matters only during such steps. A sequence needs pages up to the upper bound
and decodes as long as the lower bound is below its end. The device counts exactly (`gradus.speculative`). It receives
the positions that each slot may store (`limits`), and skips rows beyond them: so no sequence grows past its end or its
pages, and one that ended after a step was planned runs that step in vain. Rejected drafts need no undoing: what they
stored lies beyond the known length, and the next step writes over it.
"""

import sys
from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradus.engine.plan import NO_DRAFTS, REJECTED, UNKNOWN, Column, Decodes
from gradus.engine.sequence import Sequence

RECENT = 64  # steps whose tokens are kept before the sequences' lists take them over
NO_TOKEN = -4  # pads rows of stop tokens: no token, and none of the marks for a missing one
NO_STEP = -1
NEVER = sys.maxsize


class Cohort(NamedTuple):
    """Sequences that decode together: the same ones, step after step, until one comes or goes.

    Their slots, ascending; the rest by row, as in `Columns`. limits: as in `Decodes`, while no drafts are under way.
    """

    slots: Column
    owners: NDArray[np.object_]
    offsets: Column
    limits: Column


class Columns:
    """The state of up to `slots` decoding sequences, on pages of `page_size` positions, with up to `drafts` per step.

    planned, recorded: the numbers of the last step that was planned, and of the last that was committed.
    count, departures: how many sequences are here, and how many have left.

    Rows by slot; a slot without an owner has no last step and no published pages:
    owners: the sequences. offset: without further drafts, step s runs its token at position s + offset. last: its last
    step. end: the number of tokens at which it ends. left: `departures` when its last owner left.
    published: how many of its pages are in the prefix index; NEVER until its whole prompt is stored.
    stops: [tokens, slots], the tokens that end it, padded with NO_TOKEN.
    sampled: [slots, lines], a line for each token that a step may give a sequence; REJECTED where it did not. unread:
    the first line with tokens that the sequence's list does not have.
    pages: the positions that it has pages for. more: how many tokens beyond one per step it may have, once every
    planned step has run. Both are kept up to date only while drafts are under way.

    Shortcuts to the few sequences that a step concerns, without a look at all of them:
    turns: by s % page_size, the sequences whose pages are full before each such step s: slot → (last step, sequence).
    first_end: a lower bound of all last steps. all_published: a lower bound of all `published`.
    """

    def __init__(self, slots: int, page_size: int, drafts: int = 0) -> None:
        self.page_size = page_size
        self.planned = self.recorded = self.count = self.departures = 0
        self.owners: NDArray[np.object_] = np.empty(slots, object)
        self._offset, self._left, self._end, self._pages, self._more = np.zeros((5, slots), np.int64)
        self._last, self._published = np.full(slots, NO_STEP), np.full(slots, NEVER)
        self._stops = np.full((0, slots), NO_TOKEN)
        self._sampled = np.full((slots, RECENT * (1 + drafts)), REJECTED)
        self._lines = 0  # lines of `_sampled` that are written
        self._unread = [0] * slots
        self._cohort: Cohort | None = None  # as `going` found it, if no sequence has come or gone since
        self._turns: list[dict[int, tuple[int, Sequence]]] = [{} for _ in range(page_size)]
        self._first_end = self._all_published = NEVER
        self._under_way: deque[Decodes] = deque()  # steps planned but not committed
        self._drafting = 0  # how many steps under way verify drafts
        self._moved = False  # whether drafts were accepted since turns were laid out
        self._settled = 0  # from this step on, no sequence has more pages than it needs
        self._ones = np.ones(slots, np.int64)
        self._gained: Column = self._ones  # how many tokens each decode of the newest step sampled

    # -- a sequence comes and goes -------------------------------------------------------------------------------------

    def join(self, sequence: Sequence) -> None:
        """Let it decode from the next step on; a step that is already planned samples the token after those it has."""
        slot, stored, first = sequence.slot, len(sequence.tokens), self.planned + 1
        offset = stored - first
        last = sequence.longest - 2 - offset  # the token after the one it runs is its last
        self._offset[slot], self._last[slot], self._end[slot] = offset, last, sequence.longest
        self._pages[slot], self._more[slot] = self._whole_pages(stored), 0
        self._unread[slot] = self._lines
        self._turns[-offset % self.page_size][slot] = last, sequence
        self._set_stops(slot, sequence.stop_ids)
        self.owners[slot], sequence.unread = sequence, self
        self.count += 1
        self._cohort = None

    def _set_stops(self, slot: int, tokens: frozenset[int]) -> None:
        if missing := max(0, len(tokens) - len(self._stops)):
            self._stops = np.pad(self._stops, ((0, missing), (0, 0)), constant_values=NO_TOKEN)
        if len(self._stops):
            self._stops[:, slot] = [*tokens, *[NO_TOKEN] * (len(self._stops) - len(tokens))]

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence that no longer decodes; its list then has all its tokens."""
        slot = sequence.slot
        self._turns[-int(self._offset[slot]) % self.page_size].pop(slot, None)
        sequence.take_over()
        self.owners[slot] = sequence.unread = None
        self._last[slot], self._published[slot] = NO_STEP, NEVER
        self.count -= 1
        self._cohort = None
        self.departures += 1
        self._left[slot] = self.departures

    def holds(self, sequence: Sequence) -> bool:
        return sequence.unread is self

    def members(self) -> list[Sequence]:
        return self.owners[self._last > NO_STEP].tolist()

    def take(self, slot: int) -> list[int]:
        """Return the slot's tokens that its sequence has not taken over yet: see `Sequence.tokens`."""
        first, self._unread[slot] = self._unread[slot], self._lines
        if first == self._lines:
            return []
        sampled = self._sampled[slot, first : self._lines]
        return sampled[sampled >= 0].tolist()

    # -- a step is planned ---------------------------------------------------------------------------------------------

    def going(self) -> Cohort:
        """Find the sequences with a token to run. None is planned past the length at which it ends."""
        if self._cohort is None:
            slots = (self._last > self.planned).nonzero()[0]
            self._cohort = Cohort(slots, self.owners[slots], self._offset[slots], self._end[slots] - 1)
            self._first_end = int(self._last[self._last > NO_STEP].min(initial=NEVER))
        return self._cohort

    def at_page_end(self) -> list[Sequence]:
        """List the sequences of `going` that lack a page for some position that their next token may have."""
        if self._drafting:
            return self._short(self.going(), NO_DRAFTS)
        if self._moved:
            self._lay_out_turns()
        turn = self._turns[(self.planned + 1) % self.page_size].values()
        due = [sequence for last, sequence in turn if last > self.planned]
        if self.planned + 1 >= self._settled:
            return due
        return [sequence for sequence in due if self.room(sequence) <= self.stored_ahead(sequence)]

    def _lay_out_turns(self) -> None:
        """Lay out `turns` anew from exact positions, now that no draft is under way."""
        self._moved, self._turns = False, [{} for _ in range(self.page_size)]
        slots = (self._last > NO_STEP).nonzero()[0]
        offsets = self._offset[slots]
        columns = slots, -offsets % self.page_size, self._last[slots], self.owners[slots]
        for slot, turn, last, owner in zip(*(column.tolist() for column in columns), strict=True):
            self._turns[turn][slot] = last, owner
        self._settled = int((self._pages[slots] - offsets).max(initial=0))

    def needed(self, sequence: Sequence, drafts: int = 0) -> tuple[int, int]:
        """Return the positions needed for its next token and drafts, in whole pages, and the first that may run."""
        slot = sequence.slot
        first = self.planned + 1 + int(self._offset[slot])
        most = first + 1 + drafts + (int(self._more[slot]) if self._drafting else 0)
        return self._whole_pages(min(most, sequence.longest - 1)), first

    def wanted(self, drafts: Column) -> list[tuple[Sequence, tuple[int, int]]]:
        """List the sequences of `going` that lack pages for their `drafts`, each with its `needed`."""
        self._count_pages()
        slots = self.going().slots
        asked = dict(zip(slots.tolist(), drafts.tolist(), strict=True))
        short = self._short(self.going(), drafts)
        return [(sequence, self.needed(sequence, asked[sequence.slot])) for sequence in short]

    def _short(self, going: Cohort, drafts: Column) -> list[Sequence]:
        """List the sequences whose pages do not hold everything that the next step may store."""
        short = self._pages[going.slots] < self._reach(going.slots, going.offsets, drafts)
        return going.owners[short].tolist() if short.any() else []

    def _count_pages(self) -> None:
        """Bring `pages` up to date after steps without drafts: each sequence has pages for its next token."""
        if not self._drafting:
            stored = np.minimum(self.planned + 2 + self._offset, self._end - 1)
            self._pages = np.maximum(self._pages, self._whole_pages(stored))

    def _reach(self, slots: Column, offsets: Column, drafts: Column) -> Column:
        """Return how many positions the next step may store; a sequence's last token is not stored."""
        most = offsets + (self.planned + 2)
        if len(drafts):
            most += drafts
        if self._drafting:
            most += self._more[slots]
        return np.minimum(most, self._end[slots] - 1)

    def _whole_pages(self, positions: Any) -> Any:
        """Round `positions`, a number or a column, up to whole pages."""
        return -(-positions // self.page_size) * self.page_size

    def entered(self, sequence: Sequence, end: int) -> None:
        """Record that the sequence now has pages for positions [0, end)."""
        self._pages[sequence.slot] = end

    def need_one_each(self, sequences: list[Sequence]) -> bool:
        """Whether one more page each is enough for the next token of these sequences. They all lack pages for it."""
        if not self._drafting:
            return True
        slots = np.array([sequence.slot for sequence in sequences])
        reach = self._reach(slots, self._offset[slots], NO_DRAFTS)
        return bool((reach <= self._pages[slots] + self.page_size).all())

    def entered_next(self, sequences: list[Sequence]) -> None:
        """Record one more page for each sequence."""
        if self._drafting:
            self._pages[[sequence.slot for sequence in sequences]] += self.page_size

    def advance(self, drafts: Column = NO_DRAFTS) -> Decodes:
        """Plan one token plus `drafts` for every sequence of `going`. The tokens themselves are on the device."""
        slots, owners, offsets, limits = self.going()
        if not len(slots):
            return Decodes()
        self.planned += 1
        if self.planned >= self._first_end:
            self._cohort = None
        starts = offsets + self.planned
        # without drafts, each has a page for its next token: so the limits are the same arrays in every step, which
        # need not be sent again
        step = Decodes(slots, starts, limits, drafts=NO_DRAFTS, owners=owners, departures=self.departures)
        self._under_way.append(step)
        if not (len(drafts) or self._drafting):
            return step
        step.drafts = drafts
        step.limits = np.minimum(self._pages[slots], self._end[slots] - 1)  # `wanted` has counted pages
        if not self._drafting:
            self._more[:] = 0
        self._drafting += len(drafts) > 0
        self._raise_bounds(step, self.planned)
        return step

    def _raise_bounds(self, step: Decodes, number: int) -> None:
        """Add a step's drafts to the upper bounds. Its last row is below the limit, and samples the token after it."""
        slots, limits, drafts = step.slots, step.limits, step.drafts if len(step.drafts) else 0 * step.slots
        if step.departures != self.departures:  # a slot may have another owner since
            mine = self._left[slots] <= step.departures
            slots, limits, drafts = slots[mine], limits[mine], drafts[mine]
        beyond = limits - self._offset[slots] - (number + 1)
        self._more[slots] = np.minimum(self._more[slots] + drafts, beyond)

    # -- a step is done ------------------------------------------------------------------------------------------------

    def exceptions(self, decodes: Decodes, tokens: Column) -> list[int]:
        """Find the rows of a finished step that need a decision. tokens: [B, width], as in `Sampled.decoded`.

        A row needs one if a token ends the sequence, if no token was sampled, or if the sequence has left its slot.
        """
        slots, one = decodes.slots, tokens.shape[1] == 1
        self._gained = self._ones[: len(slots)] if one else np.count_nonzero(tokens >= 0, axis=1)
        first = tokens[:, 0]
        found = first < 0 if one else first == UNKNOWN  # no finite logit
        if self._first_end <= self.recorded + tokens.shape[1]:
            found |= self._last[slots] <= self.recorded + self._gained
        for stops in self._stops:
            found |= (tokens == stops[slots][:, None]).any(axis=1)
        if decodes.departures != self.departures:
            found |= self._left[slots] > decodes.departures
        return found.nonzero()[0].tolist()

    def record(self, decodes: Decodes, tokens: Column) -> None:
        """Record what the step sampled, and tighten the bounds. Sequences that it ended have left by now."""
        self.recorded += 1
        self._under_way.popleft()
        slots, accepted = decodes.slots, self._gained - 1
        if decodes.departures != self.departures:
            stay = self._left[slots] <= decodes.departures
            slots, tokens, accepted = slots[stay], tokens[stay], accepted[stay]
        self._keep(slots, tokens)
        if len(decodes.drafts):
            self._drafting -= 1
            self._move_on(slots, accepted)
            if self._drafting:
                self._close_bounds()

    def _keep(self, slots: Column, tokens: Column) -> None:
        """Write one line per column of `tokens`; a full buffer is first taken over by the sequences' lists."""
        end = self._lines + tokens.shape[1]
        if end > self._sampled.shape[1]:
            for owner in self.members():
                owner.take_over()
            self._sampled.fill(REJECTED)
            self._lines, self._unread, end = 0, [0] * len(self._unread), tokens.shape[1]
        self._sampled[slots, self._lines : end] = tokens
        self._lines = end

    def _move_on(self, slots: Column, accepted: Column) -> None:
        """Advance each sequence by its accepted drafts, and move its last step forward by as many."""
        self._offset[slots] += accepted
        last = self._last[slots] = self._last[slots] - accepted
        self._first_end = min(self._first_end, int(last.min(initial=NEVER)))
        cohort, self._moved = self._cohort, True
        if cohort is not None:  # the same sequences go on, if none is planned to its end
            goes_on = self._first_end > self.planned
            self._cohort = cohort._replace(offsets=self._offset[cohort.slots]) if goes_on else None

    def _close_bounds(self) -> None:
        """Recompute the upper bounds from the steps still under way, now that one step's acceptance is known."""
        self._more[:] = 0
        for number, step in enumerate(self._under_way, self.recorded + 1):
            self._raise_bounds(step, number)

    # -- the prefix index ----------------------------------------------------------------------------------------------

    def stored(self, sequence: Sequence) -> int:
        """Count its positions stored by committed steps; 0 until its whole prompt is stored."""
        return 0 if self._published[sequence.slot] == NEVER else len(sequence.tokens) - 1

    def publish(self, sequence: Sequence) -> None:
        """Record that all its full pages are in the prefix index. Its whole prompt is stored."""
        pages = (len(sequence.tokens) - 1) // self.page_size
        self._published[sequence.slot] = pages
        self._all_published = min(self._all_published, pages)

    def unpublished(self, page: int) -> list[Sequence]:
        """List the sequences that have filled their page number `page` without publishing it."""
        if page >= self._all_published:
            self._all_published = int(self._published.min())  # sequences with fewer may have left
        if page < self._all_published:
            return []
        filled = self._offset >= (page + 1) * self.page_size - (self.recorded + 1)  # by committed steps
        return self.owners[(self._published <= page) & filled].tolist()

    # -- what there is, and the invariants -----------------------------------------------------------------------------

    def stored_ahead(self, sequence: Sequence) -> int:
        """Return the most positions that may be stored once every step planned so far has run."""
        ahead = int(self._offset[sequence.slot]) + self.planned + 1
        if self._drafting:
            ahead += int(self._more[sequence.slot])
        return min(ahead, sequence.longest - 1)

    def room(self, sequence: Sequence) -> int:
        """Count the positions that it has pages for."""
        return max(self._whole_pages(self.stored_ahead(sequence)), int(self._pages[sequence.slot]))

    def reserved_ahead(self) -> int:
        """Count the positions that are reserved but not planned yet: the unfilled ends of last pages."""
        return sum(self.room(sequence) - self.stored_ahead(sequence) for sequence in self.members())

    def check(self, under_way: int) -> None:
        """Assert that rows belong to their owners, and that the bounds include the known lengths."""
        there = [slot for slot, owner in enumerate(self.owners) if owner is not None]
        assert (self._last > NO_STEP).nonzero()[0].tolist() == there, "a slot has an owner or a last step, not both"
        assert self.count == len(there), "the columns lost count"
        going = (self._last > self.planned).nonzero()[0]
        assert self.going().slots.tolist() == going.tolist(), "others decode together than are known to"
        assert self._first_end <= self._last[there].min(initial=NEVER), "the columns lost an end"
        assert self._all_published <= self._published.min(), "fewer pages were published"
        assert self.planned - self.recorded == len(self._under_way) <= under_way, "a step is lost"
        assert self._drafting == sum(len(step.drafts) > 0 for step in self._under_way), "the columns lost drafts"
        turns = {slot: turn for turn, those in enumerate(self._turns) for slot in those}
        expected = {slot: -self._offset[slot] % self.page_size for slot in there}
        assert self._moved or turns == expected, "it enters its pages at another step"
        for slot in there:
            self._check_row(slot)

    def _check_row(self, slot: int) -> None:
        sequence: Sequence = self.owners[slot]
        assert sequence.slot == slot and self.holds(sequence), "a row belongs to a sequence that runs elsewhere"
        begun, end = self._published[slot] < NEVER, sequence.longest
        known = len(sequence.tokens) + (not begun)
        mine = [step for step in self._under_way if slot in step.slots and self._left[slot] <= step.departures]
        least = self.planned + 2 + self._offset[slot]
        assert min(least, end) == min(known + len(mine), end), "it decodes in every plan"
        assert self._last[slot] == end - 2 - self._offset[slot], "it ends at another step"
        drafts = sum(int(step.drafts[step.slots == slot].sum()) for step in mine if len(step.drafts))
        most = known + len(mine) + drafts
        assert min(least, end) - 1 <= self.stored_ahead(sequence) <= min(most, end) - 1, "bounds cross"
        if stored := self.stored(sequence):
            assert stored == self.recorded + 1 + self._offset[slot], "it has stored what no committed step has run"
        room = self._pages[slot] if self._drafting else self.room(sequence)
        assert self.stored_ahead(sequence) <= room, "it may store what it has no page for"
