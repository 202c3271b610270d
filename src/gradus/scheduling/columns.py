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
from numpy.typing import NDArray

from gradus.engine.plan import UNKNOWN, Column, Decodes
from gradus.engine.sequence import Sequence

RECENT = 64  # steps whose tokens are kept before the sequences' lists take them over
NO_TOKEN = -4  # pads rows of stop tokens: no token, and none of what stands for a missing one
NO_STEP = -1
NEVER = sys.maxsize


class Cohort(NamedTuple):
    """Sequences that decode together: the same ones, step after step, until one comes or goes.

    Their slots, ascending; the rest by row, as in `Columns`.
    """

    slots: Column
    owners: NDArray[np.object_]
    offsets: Column


class Columns:
    """The state of up to `slots` decoding sequences, on pages of `page_size` positions.

    planned, recorded: the numbers of the last step that was planned, and of the last that was committed.
    count, departures: how many sequences are here, and how many have left.

    By slot; one without an owner has no last step, and nothing to tell the prefix index:
    owners: the sequences. offset: in step s it runs the token at position s + offset. last: its last step.
    indexed: how many of its pages the prefix index has been told of; NEVER before its prompt is stored to the end.
    unread: the first step whose token its sequence's list does not have. left: `departures` when its last owner left.
    stops: [tokens, slots], the tokens that end it, padded with NO_TOKEN.
    recent: [RECENT, slots], what step s sampled is in row s % RECENT.

    What few sequences do in a step is found without looking at all of them:
    turns: by s % page_size, those whose pages are full before each such step s: slot → (last step, sequence).
    first_end: no last step is before it. all_told: so many pages of each, at least, the prefix index has been told of.
    """

    def __init__(self, slots: int, page_size: int) -> None:
        self.page_size = page_size
        self.planned = self.recorded = self.count = self.departures = 0
        self.owners: NDArray[np.object_] = np.empty(slots, object)
        self._offset, self._left = np.zeros((2, slots), np.int64)
        self._last, self._indexed = np.full(slots, NO_STEP), np.full(slots, NEVER)
        self._unread = [0] * slots
        self._cohort: Cohort | None = None  # as `going` found it, and no sequence has come or gone since
        self._stops = np.full((0, slots), NO_TOKEN)
        self._recent = np.zeros((RECENT, slots), np.int64)
        self._turns: list[dict[int, tuple[int, Sequence]]] = [{} for _ in range(page_size)]
        self._first_end = NEVER
        self._all_told = NEVER

    # -- a sequence comes and goes -------------------------------------------------------------------------------------

    def join(self, sequence: Sequence) -> None:
        """It decodes from the next step on; a step that is planned samples the token after those it has."""
        slot, first = sequence.slot, self.planned + 1
        offset = len(sequence.tokens) - first
        last = sequence.longest - 2 - offset  # the token after the one it runs is its last
        self._offset[slot], self._last[slot], self._unread[slot] = offset, last, first
        self._turns[-offset % self.page_size][slot] = last, sequence
        self._enter(sequence)

    def _enter(self, sequence: Sequence) -> None:
        """What comes with every sequence, wherever it stands."""
        slot, tokens = sequence.slot, sequence.stop_ids
        if missing := max(0, len(tokens) - len(self._stops)):
            self._stops = np.pad(self._stops, ((0, missing), (0, 0)), constant_values=NO_TOKEN)
        if len(self._stops):
            self._stops[:, slot] = [*tokens, *[NO_TOKEN] * (len(self._stops) - len(tokens))]
        self.owners[slot], sequence.unread = sequence, self
        self.count += 1
        self._cohort = None

    def begin(self, sequence: Sequence, token: int) -> None:
        """The step that ended its prompt was committed, and sampled `token`; the prefix index knows its prompt."""
        self._recent[self.recorded % RECENT, sequence.slot] = token
        self.told(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It no longer decodes; its list has all its tokens."""
        self._turns[-int(self._offset[sequence.slot]) % self.page_size].pop(sequence.slot, None)
        self._depart(sequence)

    def _depart(self, sequence: Sequence) -> None:
        """What goes with every sequence."""
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
        if self._cohort is None:
            slots = (self._last > self.planned).nonzero()[0]
            self._cohort = Cohort(slots, self.owners[slots], self._offset[slots])
            self._first_end = int(self._last[self._last > NO_STEP].min(initial=NEVER))
        return self._cohort

    def at_page_end(self) -> list[Sequence]:
        """Those going whose next token needs a page that they do not have."""
        turn = self._turns[(self.planned + 1) % self.page_size]
        return [sequence for last, sequence in turn.values() if last > self.planned]

    def needed(self, sequence: Sequence) -> tuple[int, int]:
        """Of one at its pages' end: how many positions it needs for its next token, and the first that this runs."""
        position = self.stored_ahead(sequence)
        return position + self.page_size, position

    def entered(self, sequence: Sequence, end: int) -> None:
        """It has pages for that many positions now: here that follows from its position."""

    def entered_next(self, sequences: list[Sequence]) -> None:
        """Each has a page more."""

    def advance(self, *, known: bool) -> Decodes:
        """A token for each that has one to run. known: no step is under way, so the newest tokens are here."""
        slots, owners, offsets = self.going()
        if not len(slots):
            return Decodes()
        self.planned += 1
        tokens = self._recent[self.recorded % RECENT][slots] if known else np.full(len(slots), UNKNOWN)
        if self.planned >= self._first_end:
            self._cohort = None
        return Decodes(slots, offsets + self.planned, tokens, owners=owners, departures=self.departures)

    # -- a step is done ------------------------------------------------------------------------------------------------

    def exceptions(self, decodes: Decodes, tokens: Column) -> list[int]:
        """The rows of the step that is done that need a decision.

        The token ends the sequence, there is none, or the sequence has left its slot. tokens: [B, 1].
        """
        tokens, slots = tokens[:, 0], decodes.slots
        found = tokens < 0
        if self._first_end <= self.recorded + 1:
            found |= self._last[slots] <= self.recorded + 1
        for stops in self._stops:
            found |= stops[slots] == tokens
        if decodes.departures != self.departures:
            found |= self._left[slots] > decodes.departures
        return found.nonzero()[0].tolist()

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
        pages = (len(sequence.tokens) - 1) // self.page_size
        self._indexed[sequence.slot] = pages
        self._all_told = min(self._all_told, pages)

    def with_untold(self, page: int) -> list[Sequence]:
        """Sequences that have filled their page number `page`, of which the prefix index has not been told."""
        if page >= self._all_told:
            self._all_told = int(self._indexed.min())  # those with fewer may have left
        if page < self._all_told:
            return []
        return self.owners[(self._indexed <= page) & self._filled(page)].tolist()

    def _filled(self, page: int) -> NDArray[np.bool_]:
        """By slot, whether committed steps have stored its page of that number to the end."""
        return self._offset >= (page + 1) * self.page_size - (self.recorded + 1)

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
        turns = [-self._offset[slot] % self.page_size for slot in there]
        found = sorted((slot, turn) for turn, those in enumerate(self._turns) for slot in those)
        assert found == list(zip(there, turns, strict=True)), "it enters its pages at another step"
        assert self._first_end <= self._last[there].min(initial=NEVER), "the columns lost an end"
        assert self._all_told <= self._indexed.min(), "the index was told of less"
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
