"""Decoding sequences that speculate, in columns: between bounds, since only the device knows how many drafts stood.

A step that verifies k drafts brings a sequence 1 to k + 1 tokens, and how many is known when the step is committed. By
then the next one is planned and launched. So a plan is made from bounds: a sequence has at least one token more for
every step under way, and at most all that these verify. It needs pages up to the upper bound, and decodes as long as
the lower bound is below its end. The device counts exactly (`gradus.speculative`); what it is told is how many
positions each slot may store, beyond which its rows are padding. So a sequence never grows past its end or its pages,
and one that has reached its end while a plan was made runs a step in vain.

At commit the bounds close on what was accepted: that is all that it takes to undo rejected drafts, for what they stored
lies beyond the known length and is written again by the next step.

The lower bound needs no writing in most steps: it is where the sequence stands at a token per step, as in `Columns`.
Drafts that were accepted move a sequence on, once, when their step is committed. The upper bound differs only while
drafts are under way. So where drafts do not pay, a step costs little more than without speculation. No torch here.
"""

from collections import deque

import numpy as np

from gradus.engine.plan import REJECTED, UNKNOWN, Column, Decodes
from gradus.engine.sequence import Sequence
from gradus.scheduling.columns import NEVER, NO_STEP, RECENT, Cohort, Columns


class BoundedColumns(Columns):
    """As `Columns`, for up to `drafts` drafts per step.

    By slot, beside what `Columns` has (offset and last change when drafts were accepted):
    end: the number of tokens at which it ends. pages: the positions that it has pages for. Kept while drafts are under
    way; after that the number may be out of date, and only tells whether drafts left it more pages than it needs.
    more: how many tokens it may have, beyond a token per step, once every planned step has run. Kept only while drafts
    are under way.
    said: [lines, slots], a line for each token that a step could bring; REJECTED where it did not. unread: the first
    line with tokens that its sequence's list does not have.
    """

    def __init__(self, slots: int, page_size: int, drafts: int) -> None:
        super().__init__(slots, page_size)
        self._end, self._pages, self._more = np.zeros((3, slots), np.int64)
        self._said = np.full((RECENT * (1 + drafts), slots), REJECTED)
        self._lines = 0  # of it that are written
        self._under_way: deque[Decodes] = deque()  # steps that are planned and not committed
        self._drafting = 0  # how many of these verify drafts
        self._moved = False  # whether drafts were accepted since turns were laid out
        self._settled = 0  # from this step on, none has more pages than it needs
        self._ones = np.ones(slots, np.int64)
        self._brought: Column = self._ones  # how many tokens each decode of the newest step sampled

    # -- a sequence comes and goes -------------------------------------------------------------------------------------

    def join(self, sequence: Sequence) -> None:
        """It decodes from the next step on; a step that is planned samples the token after those it has."""
        slot, stored = sequence.slot, len(sequence.tokens)
        super().join(sequence)
        self._end[slot], self._pages[slot] = sequence.longest, -(-stored // self.page_size) * self.page_size
        self._more[slot], self._unread[slot] = 0, self._lines

    def begin(self, sequence: Sequence, token: int) -> None:
        self.told(sequence)

    def take(self, slot: int) -> list[int]:
        first, self._unread[slot] = self._unread[slot], self._lines
        if first == self._lines:
            return []
        said = self._said[first : self._lines, slot]
        return said[said >= 0].tolist()

    # -- a step is planned ---------------------------------------------------------------------------------------------

    def at_page_end(self) -> list[Sequence]:
        """Those going that do not have pages for all the positions that their next token may have."""
        if self._drafting:
            return self._short(self.going(), 0)
        if self._moved:
            self._lay_out_turns()
        turn = super().at_page_end()
        if self.planned + 1 >= self._settled:
            return turn
        return [sequence for sequence in turn if self.room(sequence) <= self.stored_ahead(sequence)]

    def _lay_out_turns(self) -> None:
        """By where the sequences are, now that no draft is under way."""
        self._moved, self._turns = False, [{} for _ in range(self.page_size)]
        slots = (self._last > NO_STEP).nonzero()[0]
        offsets = self._offset[slots]
        columns = slots, -offsets % self.page_size, self._last[slots], self.owners[slots]
        for slot, turn, last, owner in zip(*(column.tolist() for column in columns), strict=True):
            self._turns[turn][slot] = last, owner
        self._settled = int((self._pages[slots] - offsets).max(initial=0))

    def needed(self, sequence: Sequence) -> tuple[int, int]:
        return self._whole_pages(sequence, 0)

    def wanted(self, drafts: int) -> list[tuple[Sequence, tuple[int, int]]]:
        """Those going that need pages for drafts, and as `needed` what for."""
        self._count_pages()
        return [(sequence, self._whole_pages(sequence, drafts)) for sequence in self._short(self.going(), drafts)]

    def _short(self, going: Cohort, drafts: int) -> list[Sequence]:
        """Those without pages for all that the next step may store."""
        short = self._pages[going.slots] < self._reach(going.slots, going.offsets, drafts)
        return going.owners[short].tolist() if short.any() else []

    def _count_pages(self) -> None:
        """Bring `pages` up to date after steps without drafts: each sequence has those for its next token."""
        if not self._drafting:
            stored = np.minimum(self.planned + 2 + self._offset, self._end - 1)
            self._pages = np.maximum(self._pages, -(-stored // self.page_size) * self.page_size)

    def _reach(self, slots: Column, offsets: Column, drafts: int) -> Column:
        """How many positions the next step may store: a sequence's last token is not stored."""
        most = offsets + (self.planned + 2 + drafts)
        if self._drafting:
            most += self._more[slots]
        return np.minimum(most, self._end[slots] - 1)

    def _whole_pages(self, sequence: Sequence, drafts: int) -> tuple[int, int]:
        slot = sequence.slot
        first = self.planned + 1 + int(self._offset[slot])
        most = first + 1 + drafts + (int(self._more[slot]) if self._drafting else 0)
        reach = min(most, sequence.longest - 1)
        return -(-reach // self.page_size) * self.page_size, first

    def entered(self, sequence: Sequence, end: int) -> None:
        """It has pages for that many positions now."""
        self._pages[sequence.slot] = end

    def need_one_each(self, sequences: list[Sequence]) -> bool:
        """Whether a page more is enough for the next token of each of these, which do not have enough."""
        if not self._drafting:
            return True
        slots = np.array([sequence.slot for sequence in sequences])
        return bool((self._reach(slots, self._offset[slots], 0) <= self._pages[slots] + self.page_size).all())

    def entered_next(self, sequences: list[Sequence]) -> None:
        if self._drafting:
            self._pages[[sequence.slot for sequence in sequences]] += self.page_size

    def advance(self, *, known: bool, drafts: int = 0) -> Decodes:
        """A token and up to so many drafts for each that may have one to run: always of tokens that the device has."""
        step = super().advance(known=False)
        if not len(step):
            return step
        step.drafts, slots = drafts, step.slots
        self._under_way.append(step)
        if not (drafts or self._drafting):
            step.limits = step.starts + 1
            return step
        step.limits = np.minimum(self._pages[slots], self._end[slots] - 1)  # `wanted` has counted pages
        if not self._drafting:
            self._more[:] = 0
        self._drafting += drafts > 0
        self._raise_bounds(step, self.planned)
        return step

    def _raise_bounds(self, step: Decodes, number: int) -> None:
        """Count in what a step's drafts may bring. Its last row is before its limit, so that is no more than one token
        beyond."""
        slots, limits = step.slots, step.limits
        assert limits is not None
        if step.departures != self.departures:  # a slot may have another owner since
            mine = self._left[slots] <= step.departures
            slots, limits = slots[mine], limits[mine]
        beyond = limits - self._offset[slots] - (number + 1)
        self._more[slots] = np.minimum(self._more[slots] + step.drafts, beyond)

    # -- a step is done ------------------------------------------------------------------------------------------------

    def exceptions(self, decodes: Decodes, tokens: Column) -> list[int]:
        """The rows of the step that is done that need a decision. tokens: [B, width], as in `Sampled`."""
        slots = decodes.slots
        self._brought = self._ones[: len(slots)] if tokens.shape[1] == 1 else np.count_nonzero(tokens >= 0, axis=1)
        if tokens.shape[1] == 1:
            return super().exceptions(decodes, tokens)
        found = tokens[:, 0] == UNKNOWN  # no finite logit
        if self._first_end <= self.recorded + tokens.shape[1]:
            found |= self._last[slots] <= self.recorded + self._brought
        for stops in self._stops:
            found |= (tokens == stops[slots][:, None]).any(axis=1)
        if decodes.departures != self.departures:
            found |= self._left[slots] > decodes.departures
        return found.nonzero()[0].tolist()

    def record(self, decodes: Decodes, tokens: Column) -> None:
        """Take in what the step sampled, and close the bounds. Sequences that it ended have left."""
        self.recorded += 1
        self._under_way.popleft()
        slots, accepted = decodes.slots, self._brought - 1
        if decodes.departures != self.departures:
            stay = self._left[slots] <= decodes.departures
            slots, tokens, accepted = slots[stay], tokens[stay], accepted[stay]
        self._keep(slots, tokens)
        if decodes.drafts:
            self._drafting -= 1
            self._move_on(slots, accepted)
            if self._drafting:
                self._close_bounds()

    def _close_bounds(self) -> None:
        """On what was accepted: what is left is what the drafts of steps under way may bring."""
        self._more[:] = 0
        for number, step in enumerate(self._under_way, self.recorded + 1):
            self._raise_bounds(step, number)

    def _keep(self, slots: Column, tokens: Column) -> None:
        """A line per column, until the sequences' lists take them over."""
        if self._lines + tokens.shape[1] > len(self._said):
            for owner in self.members():
                owner.tokens  # noqa: B018  # makes room
            self._lines, self._unread = 0, [0] * len(self._unread)
        lines = self._said[self._lines : self._lines + tokens.shape[1]]
        lines.fill(REJECTED)
        lines[:, slots] = tokens.T
        self._lines += tokens.shape[1]

    def _move_on(self, slots: Column, accepted: Column) -> None:
        """Each is so many tokens further than at a token per step, and as many steps nearer to its end."""
        self._offset[slots] += accepted
        last = self._last[slots] = self._last[slots] - accepted
        self._first_end = min(self._first_end, int(last.min(initial=NEVER)))
        cohort, self._moved = self._cohort, True
        if cohort is not None:  # the same ones go on, if none of them has been planned to its end
            goes_on = self._first_end > self.planned
            self._cohort = cohort._replace(offsets=self._offset[cohort.slots]) if goes_on else None

    # -- what there is, and the invariants -----------------------------------------------------------------------------

    def stored_ahead(self, sequence: Sequence) -> int:
        """How many of its positions may be stored once every step planned so far has run."""
        ahead = int(self._offset[sequence.slot]) + self.planned + 1
        if self._drafting:
            ahead += int(self._more[sequence.slot])
        return min(ahead, sequence.longest - 1)

    def room(self, sequence: Sequence) -> int:
        return max(super().room(sequence), int(self._pages[sequence.slot]))

    def check(self, under_way: int) -> None:
        """Rows belong to their owners, and bounds hold what is known."""
        there = [slot for slot, owner in enumerate(self.owners) if owner is not None]
        assert (self._last > NO_STEP).nonzero()[0].tolist() == there, "a slot has an owner or a last step, not both"
        assert self.count == len(there), "the columns lost count"
        going = (self._last > self.planned).nonzero()[0]
        assert self.going().slots.tolist() == going.tolist(), "others decode together than are known to"
        assert self._first_end <= self._last[there].min(initial=NEVER), "the columns lost an end"
        assert self.planned - self.recorded == len(self._under_way) <= under_way, "a step is lost"
        assert self._drafting == sum(step.drafts > 0 for step in self._under_way), "the columns lost drafts"
        turns = {slot: turn for turn, those in enumerate(self._turns) for slot in those}
        expected = {slot: -self._offset[slot] % self.page_size for slot in there}
        assert self._moved or turns == expected, "it enters its pages at another step"
        for slot in there:
            sequence: Sequence = self.owners[slot]
            assert sequence.slot == slot and self.holds(sequence), "a row belongs to a sequence that runs elsewhere"
            begun, end = self._indexed[slot] < NEVER, sequence.longest
            known = len(sequence.tokens) + (not begun)
            mine = [step for step in self._under_way if slot in step.slots and self._left[slot] <= step.departures]
            least = self.planned + 2 + self._offset[slot]
            assert min(least, end) == min(known + len(mine), end), "it decodes in every plan"
            assert self._last[slot] == end - 2 - self._offset[slot], "it ends at another step"
            most = known + sum(1 + step.drafts for step in mine)
            assert min(least, end) - 1 <= self.stored_ahead(sequence) <= min(most, end) - 1, "bounds cross"
            room = self._pages[slot] if self._drafting else self.room(sequence)
            assert self.stored_ahead(sequence) <= room, "it may store what it has no page for"
            due = -(-self.stored_ahead(sequence) // self.page_size) * self.page_size
            known = self._drafting or self._moved or self.planned + 1 < self._settled
            assert known or room == due, "it has more pages than it is known for"
            assert begun or not mine or under_way > len(mine), "its prompt's step is lost"
