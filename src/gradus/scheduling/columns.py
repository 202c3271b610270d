"""Decoding sequences, in columns: a row per slot, so that a step of hundreds advances in a few vector operations.

A sequence that decodes does the same in every step: it runs one token, one position further than the last time. As an
object per sequence that costs the host more than the step costs the GPU; as columns of numbers it hardly depends on
how many there are. The columns decide nothing. They advance numbers, and say which sequences need a decision: those at
the end of their pages, and those whose token ends them. No torch here.

Steps are counted, and every sequence here decodes in every step until its last. So a row is written when a sequence
comes and when it goes, and never in between: where it stands follows from its row and the number of the step.
"""

import sys
from typing import NamedTuple

import numpy as np
from numpy import count_nonzero  # on short columns far quicker than any()
from numpy.typing import NDArray

from gradus.engine.plan import UNKNOWN, Column, Decodes
from gradus.engine.sequence import Sequence

RECENT = 64  # steps whose tokens are kept before the sequences' lists take them over
NO_TOKEN = -4  # pads rows of stop tokens: no token, and none of what stands for a missing one
NO_STEP = -1
NEVER = sys.maxsize


class Cohort(NamedTuple):
    """Sequences that decode together: the same ones, step after step, until one comes or goes.

    Their slots, ascending; the rest by row, as in `Columns`. until: the first step that is the last of one of them.
    """

    slots: Column
    owners: NDArray[np.object_]
    offsets: Column
    turns: Column
    until: int


class Columns:
    """The state of up to `slots` decoding sequences, on pages of `page_size` positions.

    planned, recorded: the numbers of the last step that was planned, and of the last that was committed.
    count, departures: how many sequences are here, and how many have left.

    By slot; one without an owner has no last step, and nothing to tell the prefix index:
    owners: the sequences. offset: in step s it runs the token at position s + offset. last: its last step.
    turn: its pages are full before each step s with s % page_size == turn.
    indexed: how many of its pages the prefix index has been told of; NEVER before its prompt is stored to the end.
    unread: the first step whose token its sequence's list does not have. left: `departures` when its last owner left.
    stops: [tokens, slots], the tokens that end it, padded with NO_TOKEN.
    recent: [RECENT, slots], what step s sampled is in row s % RECENT.
    """

    def __init__(self, slots: int, page_size: int) -> None:
        self.page_size = page_size
        self.planned = self.recorded = self.count = self.departures = 0
        self.owners: NDArray[np.object_] = np.empty(slots, object)
        self._offset, self._turn, self._left = np.zeros((3, slots), np.int64)
        self._last, self._indexed = np.full(slots, NO_STEP), np.full(slots, NEVER)
        self._unread = [0] * slots
        self._cohort: Cohort | None = None  # as `going` found it, and no sequence has come or gone since
        self._stops = np.full((0, slots), NO_TOKEN)
        self._recent = np.zeros((RECENT, slots), np.int64)

    # -- a sequence comes and goes -------------------------------------------------------------------------------------

    def join(self, sequence: Sequence) -> None:
        """It decodes from the next step on; a step that is planned samples the token after those it has."""
        slot, first = sequence.slot, self.planned + 1
        offset = len(sequence.tokens) - first
        self._offset[slot], self._turn[slot] = offset, -offset % self.page_size
        self._last[slot] = sequence.longest - 2 - offset  # the token after the one it runs is its last
        self._stop_at(slot, sequence.stop_ids)
        self.owners[slot], self._unread[slot], sequence.unread = sequence, first, self
        self.count += 1
        self._cohort = None

    def _stop_at(self, slot: int, tokens: frozenset[int]) -> None:
        if missing := max(0, len(tokens) - len(self._stops)):
            self._stops = np.pad(self._stops, ((0, missing), (0, 0)), constant_values=NO_TOKEN)
        self._stops[:, slot] = [*tokens, *[NO_TOKEN] * (len(self._stops) - len(tokens))]

    def begin(self, sequence: Sequence, token: int) -> None:
        """The step that ended its prompt was committed, and sampled `token`; the prefix index knows its prompt."""
        self._recent[self.recorded % RECENT, sequence.slot] = token
        self.told(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It no longer decodes; its list has all its tokens."""
        slot = sequence.slot
        sequence.tokens  # noqa: B018  # reading takes over what is unread
        self.owners[slot] = sequence.unread = None
        self._last[slot], self._indexed[slot] = NO_STEP, NEVER
        self.count -= 1
        self._cohort = None
        self.departures += 1
        self._left[slot] = self.departures

    def holds(self, sequence: Sequence) -> bool:
        return sequence.unread is self

    def members(self) -> list[Sequence]:
        return self.owners[self._last > NO_STEP].tolist()

    def take(self, slot: int) -> list[int]:
        """The slot's tokens that its sequence has not taken over yet: see `Sequence.tokens`."""
        first, last = self._unread[slot], self.recorded
        if first > last:
            return []
        self._unread[slot] = last + 1
        return self._recent[first % RECENT : last % RECENT + 1, slot].tolist()

    # -- a step is planned ---------------------------------------------------------------------------------------------

    def going(self) -> Cohort:
        """Those that have a token to run. A sequence is never planned past the length at which it ends."""
        if self._cohort is None or self._cohort.until <= self.planned:
            slots = (self._last > self.planned).nonzero()[0]
            until = int(self._last[slots].min(initial=NEVER))
            self._cohort = Cohort(slots, self.owners[slots], self._offset[slots], self._turn[slots], until)
        return self._cohort

    def at_page_end(self) -> list[Sequence]:
        """Those going whose next token needs a page that they do not have."""
        going = self.going()
        full = going.turns == (self.planned + 1) % self.page_size
        return going.owners[full].tolist() if count_nonzero(full) else []

    def needed(self, sequence: Sequence) -> tuple[int, int]:
        """Of one at its pages' end: how many positions it needs for its next token, and the first that this runs."""
        position = self.stored_ahead(sequence)
        return position + self.page_size, position

    def entered(self, sequence: Sequence, end: int) -> None:
        """It has pages for that many positions now: here that follows from its position."""

    def advance(self, *, known: bool) -> Decodes:
        """A token for each that has one to run. known: no step is under way, so the newest tokens are here."""
        slots, owners, offsets, _, until = self.going()
        if not len(slots):
            return Decodes()
        self.planned += 1
        tokens = self._recent[self.recorded % RECENT][slots] if known else np.full(len(slots), UNKNOWN)
        last = until == self.planned
        return Decodes(slots, offsets + self.planned, tokens, owners=owners, departures=self.departures, last=last)

    # -- a step is done ------------------------------------------------------------------------------------------------

    def exceptions(self, decodes: Decodes, tokens: Column) -> list[int]:
        """The rows of the step that is done that need a decision.

        The token ends the sequence, there is none, or the sequence has left its slot. tokens: [B, 1].
        """
        tokens, slots = tokens[:, 0], decodes.slots
        found = tokens < 0
        if decodes.last:
            found |= self._last[slots] == self.recorded + 1
        for stops in self._stops:
            found |= stops[slots] == tokens
        if decodes.departures != self.departures:
            found |= self._left[slots] > decodes.departures
        return found.nonzero()[0].tolist() if count_nonzero(found) else []

    def record(self, decodes: Decodes, tokens: Column) -> None:
        """Take in what the step sampled. Sequences that it ended have left; in their slots nothing is read of it."""
        self.recorded += 1
        self._recent[self.recorded % RECENT][decodes.slots] = tokens[:, 0]  # quicker than with two indices
        if self.recorded % RECENT == RECENT - 1:
            for owner in self.members():
                owner.tokens  # noqa: B018  # makes room

    # -- the prefix index ----------------------------------------------------------------------------------------------

    def stored(self, sequence: Sequence) -> int:
        """How many of its positions committed steps have stored; 0 before its prompt is stored to the end."""
        return 0 if self._indexed[sequence.slot] == NEVER else len(sequence.tokens) - 1

    def told(self, sequence: Sequence) -> None:
        """The prefix index has been told of all its full pages."""
        self._indexed[sequence.slot] = (len(sequence.tokens) - 1) // self.page_size

    def with_untold(self, page: int) -> list[Sequence]:
        """Sequences that have filled their page number `page`, of which the prefix index has not been told."""
        filled = self._offset >= (page + 1) * self.page_size - (self.recorded + 1)
        untold = (self._indexed <= page) & filled
        return self.owners[untold].tolist() if count_nonzero(untold) else []

    # -- what there is, and the invariants -----------------------------------------------------------------------------

    def stored_ahead(self, sequence: Sequence) -> int:
        """How many of its positions are stored once every step planned so far has run."""
        return min(int(self._offset[sequence.slot]) + self.planned + 1, sequence.longest - 1)

    def room(self, sequence: Sequence) -> int:
        """Positions that it has pages for."""
        return -(-self.stored_ahead(sequence) // self.page_size) * self.page_size

    def reserved_ahead(self) -> int:
        """Positions that are reserved and not planned yet: the unfilled ends of last pages."""
        return sum(self.room(sequence) - self.stored_ahead(sequence) for sequence in self.members())

    def check(self, under_way: int) -> None:
        """Rows belong to their owners, and no sequence is planned further than its steps go."""
        there = [slot for slot, owner in enumerate(self.owners) if owner is not None]
        assert (self._last > NO_STEP).nonzero()[0].tolist() == there, "a slot has an owner or a last step, not both"
        assert self.count == len(there), "the columns lost count"
        going = (self._last > self.planned).nonzero()[0]
        assert self.going().slots.tolist() == going.tolist(), "others decode together than are known to"
        assert 0 <= self.planned - self.recorded <= under_way, "a step is lost"
        for slot in there:
            sequence: Sequence = self.owners[slot]
            known, planned = len(sequence.tokens), self.stored_ahead(sequence) + 1
            assert sequence.slot == slot and self.holds(sequence), "a row belongs to a sequence that runs elsewhere"
            assert known <= planned <= min(sequence.longest, known + under_way), "planned too far"
            assert planned == sequence.longest or (planned == known) == (under_way == 0), "it decodes in every plan"
            if stored := self.stored(sequence):
                assert stored == self.recorded + 1 + self._offset[slot], "it has stored what no committed step has run"
                newest = self._recent[self.recorded % RECENT, slot]
                assert newest == sequence.tokens[-1], "the newest token is another"
