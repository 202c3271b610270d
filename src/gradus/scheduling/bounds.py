"""Decoding sequences that speculate, in columns: between bounds, since only the device knows how many drafts stood.

A step that verifies k drafts brings a sequence 1 to k + 1 tokens, and how many is known when the step is committed. By
then the next one is planned and launched. So a plan is made from bounds: a sequence has at least one token more for
every step under way, and at most all that these verify. It needs pages up to the upper bound, and decodes as long as
the lower bound is below its end. The device counts exactly (`gradus.speculative`); what it is told is how many
positions each slot may store, beyond which its rows are padding. So a sequence never grows past its end or its pages,
and one that has reached its end while a plan was made runs a step in vain.

At commit the bounds close on what was accepted: that is all that it takes to undo rejected drafts, for what they stored
lies beyond the known length and is written again by the next step. No torch here.
"""

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradus.engine.plan import UNKNOWN, Column, Decodes
from gradus.engine.sequence import Sequence
from gradus.scheduling.columns import NEVER, NO_STEP, RECENT, Cohort, Columns


class UnderWay(NamedTuple):
    """A step that is planned and not committed. rows: of each of its slots; limits, departures: as in `Decodes`."""

    slots: Column
    rows: int
    limits: Column
    departures: int


class BoundedColumns(Columns):
    """As `Columns`, for up to `drafts` drafts per step.

    By slot:
    known: tokens that it has once every committed step is taken in, and its prompt's step too, under way or not.
    least, most: the bounds of that number once every planned step has run; both may be beyond its end.
    end: the number at which it ends. pages: the positions that it has pages for.
    fill: how many of its tokens its list does not have yet; tokens: [slots, RECENT + drafts + 1], these.
    """

    def __init__(self, slots: int, page_size: int, drafts: int) -> None:
        super().__init__(slots, page_size)
        self._known, self._least, self._most, self._end, self._pages, self._fill = np.zeros((6, slots), np.int64)
        self._tokens = np.zeros((slots, RECENT + drafts + 1), np.int64)
        self._under_way: deque[UnderWay] = deque()

    # -- a sequence comes and goes -------------------------------------------------------------------------------------

    def join(self, sequence: Sequence) -> None:
        """It decodes from the next step on; a step that is planned samples the token after those it has."""
        slot, stored = sequence.slot, len(sequence.tokens)
        self._known[slot] = self._least[slot] = self._most[slot] = stored + 1
        self._end[slot], self._pages[slot] = sequence.longest, -(-stored // self.page_size) * self.page_size
        self._last[slot], self._fill[slot] = NEVER, 0
        self._enter(sequence)

    def leave(self, sequence: Sequence) -> None:
        self._depart(sequence)

    def begin(self, sequence: Sequence, token: int) -> None:
        self.told(sequence)

    def take(self, slot: int) -> list[int]:
        count, self._fill[slot] = self._fill[slot], 0
        return self._tokens[slot, :count].tolist() if count else []

    # -- a step is planned ---------------------------------------------------------------------------------------------

    def going(self) -> Cohort:
        """Those that may have a token to run. Its offsets are their positions at least."""
        if self._cohort is None:  # a sequence has come or gone, or a bound has moved
            slots = ((self._last > NO_STEP) & (self._least < self._end)).nonzero()[0]
            positions = self._least[slots] - 1
            self._cohort = Cohort(slots, self.owners[slots], positions)
        return self._cohort

    def at_page_end(self) -> list[Sequence]:
        """Those going that do not have pages for all the positions that their next token may have."""
        going = self.going()
        return going.owners[self._pages[going.slots] < self._reach(going.slots, 0)].tolist()

    def needed(self, sequence: Sequence) -> tuple[int, int]:
        return self._whole_pages(sequence, 0)

    def wanted(self, drafts: int) -> list[tuple[Sequence, tuple[int, int]]]:
        """Those going that need pages for drafts, and as `needed` what for."""
        going = self.going()
        short = going.owners[self._pages[going.slots] < self._reach(going.slots, drafts)]
        return [(sequence, self._whole_pages(sequence, drafts)) for sequence in short.tolist()]

    def _reach(self, slots: Column, drafts: int) -> Column:
        """How many positions the next step may store: a sequence's last token is not stored."""
        return np.minimum(self._most[slots] + drafts, self._end[slots] - 1)

    def _whole_pages(self, sequence: Sequence, drafts: int) -> tuple[int, int]:
        slot = sequence.slot
        reach = int(min(self._most[slot] + drafts, self._end[slot] - 1))
        return -(-reach // self.page_size) * self.page_size, int(self._least[slot]) - 1

    def entered(self, sequence: Sequence, end: int) -> None:
        """It has pages for that many positions now."""
        self._pages[sequence.slot] = end

    def need_one_each(self, sequences: list[Sequence]) -> bool:
        """Whether a page more is enough for the next token of each of these, which do not have enough."""
        slots = np.array([sequence.slot for sequence in sequences])
        return bool((self._reach(slots, 0) <= self._pages[slots] + self.page_size).all())

    def entered_next(self, sequences: list[Sequence]) -> None:
        self._pages[[sequence.slot for sequence in sequences]] += self.page_size

    def advance(self, *, known: bool, drafts: int = 0) -> Decodes:
        """A token and up to so many drafts for each that may have one to run: always of tokens that the device has."""
        slots, owners, starts = self.going()
        if not len(slots):
            return Decodes()
        self.planned += 1
        limits = np.minimum(self._pages[slots], self._end[slots] - 1)
        self._under_way.append(UnderWay(slots, 1 + drafts, limits, self.departures))
        self._least[slots] += 1
        self._raise_most(self._under_way[-1])
        self._cohort = None
        unknown = np.full(len(slots), UNKNOWN)
        return Decodes(slots, starts, unknown, drafts=drafts, limits=limits, owners=owners, departures=self.departures)

    def _raise_most(self, step: UnderWay) -> None:
        """A step's last row is before its limit, so it cannot bring more than one token beyond that."""
        self._most[step.slots] = np.minimum(self._most[step.slots] + step.rows, step.limits + 1)

    # -- a step is done ------------------------------------------------------------------------------------------------

    def exceptions(self, decodes: Decodes, tokens: Column) -> list[int]:
        """The rows of the step that is done that need a decision. tokens: [B, width], as in `Sampled`."""
        slots, there = decodes.slots, tokens >= 0
        found = tokens[:, 0] == UNKNOWN  # no finite logit
        found |= self._known[slots] + there.sum(axis=1) >= self._end[slots]
        for stops in self._stops:
            found |= (tokens == stops[slots][:, None]).any(axis=1)
        if decodes.departures != self.departures:
            found |= self._left[slots] > decodes.departures
        return found.nonzero()[0].tolist()

    def record(self, decodes: Decodes, tokens: Column) -> None:
        """Take in what the step sampled, and close the bounds. Sequences that it ended have left."""
        self.recorded += 1
        self._under_way.popleft()
        slots = decodes.slots
        if decodes.departures != self.departures:
            stay = self._left[slots] <= decodes.departures
            slots, tokens = slots[stay], tokens[stay]
        there = tokens >= 0
        for column, rows in zip(tokens.T, there.T, strict=True):  # those that stand come first
            some = slots[rows]
            self._tokens[some, self._fill[some]] = column[rows]
            self._fill[some] += 1
        self._known[slots] += there.sum(axis=1)
        self._close_bounds()
        for owner in self.owners[self._fill >= RECENT].tolist():
            owner.tokens  # noqa: B018  # makes room

    def _close_bounds(self) -> None:
        self._cohort = None
        self._least[:] = self._most[:] = self._known
        for step in self._under_way:
            if step.departures != self.departures:  # a slot may have another owner since
                mine = self._left[step.slots] <= step.departures
                step = UnderWay(step.slots[mine], step.rows, step.limits[mine], step.departures)
            self._least[step.slots] += 1
            self._raise_most(step)

    # -- the prefix index ----------------------------------------------------------------------------------------------

    def _filled(self, page: int) -> NDArray[np.bool_]:
        return self._known - 1 >= (page + 1) * self.page_size

    # -- what there is, and the invariants -----------------------------------------------------------------------------

    def stored_ahead(self, sequence: Sequence) -> int:
        """How many of its positions may be stored once every step planned so far has run."""
        return int(min(self._most[sequence.slot], self._end[sequence.slot]) - 1)

    def room(self, sequence: Sequence) -> int:
        return int(self._pages[sequence.slot])

    def check(self, under_way: int) -> None:
        """Rows belong to their owners, and bounds hold what is known."""
        there = [slot for slot, owner in enumerate(self.owners) if owner is not None]
        assert (self._last > NO_STEP).nonzero()[0].tolist() == there, "a slot has an owner or a last step, not both"
        assert self.count == len(there), "the columns lost count"
        assert self.planned - self.recorded == len(self._under_way) <= under_way, "a step is lost"
        for slot in there:
            sequence: Sequence = self.owners[slot]
            assert sequence.slot == slot and self.holds(sequence), "a row belongs to a sequence that runs elsewhere"
            known, begun = len(sequence.tokens), self._indexed[slot] < NEVER
            assert self._known[slot] == known + (not begun), "the known length is another"
            mine = [step for step in self._under_way if slot in step.slots and self._left[slot] <= step.departures]
            assert self._least[slot] == self._known[slot] + len(mine), "it decodes in every plan"
            assert min(self._least[slot], self._end[slot]) <= self._most[slot], "bounds cross"
            assert self.stored_ahead(sequence) <= self._pages[slot], "it may store what it has no page for"
            assert begun or not mine or under_way > len(mine), "its prompt's step is lost"
