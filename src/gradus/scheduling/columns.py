"""Decoding sequences, in columns: a row per slot, so that a step of hundreds advances in a few vector operations.

A sequence that decodes does the same in every step: it runs one token, one position further than the last time. As an
object per sequence that costs the host more than the step costs the GPU; as columns of numbers it hardly depends on
how many there are. The columns decide nothing. They advance numbers, and say which sequences need a decision: those at
the end of their pages, and those whose token ends them. No torch here.
"""

import numpy as np
from numpy import count_nonzero  # on short columns far quicker than any()
from numpy.typing import NDArray

from gradus.engine.plan import UNKNOWN, Column, Decodes
from gradus.engine.sequence import Sequence

UNREAD = 64  # tokens that a row holds before its sequence's list takes them over
NO_ROWS: Column = np.empty(0, np.int64)
NO_TOKEN = -2  # pads rows of stop tokens: no token, and not what stands for a missing one


class Columns:
    """The state of up to `slots` decoding sequences. A row without an owner holds nothing meaningful.

    active: the slots that have an owner, ascending.
    planned: the length that the sequence has once every step planned so far has run. room: the positions that its pages
    have room for, all of them reserved. longest: the length at which it ends. seen: how many of its positions committed
    steps have stored. indexed: how many of its pages the prefix index has been told of. newest: the token sampled last.
    stops: the tokens that end it, padded with NO_TOKEN.
    epochs: how often the slot has changed hands, so that a late token is not given to the next owner.
    """

    def __init__(self, slots: int) -> None:
        self.active: Column = np.empty(0, np.int64)
        self._decoding = np.zeros(slots, bool)
        self.owners: NDArray[np.object_] = np.empty(slots, object)
        self.epochs, self.planned, self.room, self.longest = np.zeros((4, slots), np.int64)
        self.seen, self.indexed, self.newest = np.zeros((3, slots), np.int64)
        self.stops = np.full((slots, 1), NO_TOKEN)
        self._unread = np.zeros((slots, UNREAD), np.int64)
        self._filled = np.zeros(slots, np.int64)

    # -- a sequence comes and goes -------------------------------------------------------------------------------------

    def join(self, sequence: Sequence, room: int) -> None:
        """It decodes from the next step on: a step that is planned samples the token after those it has."""
        slot = sequence.slot
        self._set(slot, sequence)
        self.planned[slot], self.room[slot], self.longest[slot] = len(sequence.tokens) + 1, room, sequence.longest
        self.seen[slot] = self.indexed[slot] = self._filled[slot] = 0
        self._stop_at(slot, sequence.stop_ids)
        sequence.unread = self

    def _stop_at(self, slot: int, tokens: frozenset[int]) -> None:
        if len(tokens) > self.stops.shape[1]:
            wider = ((0, 0), (0, len(tokens) - self.stops.shape[1]))
            self.stops = np.pad(self.stops, wider, constant_values=NO_TOKEN)
        self.stops[slot] = NO_TOKEN
        self.stops[slot, : len(tokens)] = list(tokens)

    def leave(self, sequence: Sequence) -> None:
        """It no longer decodes; its list has all its tokens."""
        slot = sequence.slot
        sequence.tokens  # noqa: B018  # reading takes over what is unread
        sequence.unread = None
        self._set(slot, None)
        self.epochs[slot] += 1

    def _set(self, slot: int, owner: Sequence | None) -> None:
        self.owners[slot], self._decoding[slot] = owner, owner is not None
        self.active = self._decoding.nonzero()[0]

    def holds(self, sequence: Sequence) -> bool:
        return sequence.unread is self

    @property
    def count(self) -> int:
        return len(self.active)

    def members(self) -> list[Sequence]:
        return self.owners[self.active].tolist()

    def take(self, slot: int) -> list[int]:
        """The slot's tokens that its sequence has not taken over yet: see `Sequence.tokens`."""
        count, self._filled[slot] = self._filled[slot], 0
        return self._unread[slot, :count].tolist()

    # -- a step is planned ---------------------------------------------------------------------------------------------

    def going(self) -> Column:
        """Slots that have a token to run. A sequence is never planned past the length at which it ends."""
        slots = self.active
        ends = self.planned[slots] >= self.longest[slots]
        return slots[~ends] if count_nonzero(ends) else slots

    def at_page_end(self, going: Column) -> list[Sequence]:
        """Those of these slots' sequences whose next token needs a page that they do not have."""
        full = self.planned[going] > self.room[going]
        return self.owners[going[full]].tolist() if count_nonzero(full) else []

    def extend(self, slots: list[int], positions: int) -> None:
        """These slots have pages for that many more positions."""
        self.room[slots] += positions

    def advance(self, *, known: bool) -> Decodes:
        """A token for each that has one to run. known: no step is under way, so the newest tokens are here."""
        going = self.going()
        planned = self.planned[going]
        tokens = self.newest[going] if known else np.full(len(going), UNKNOWN)
        self.planned[going] = planned + 1
        return Decodes(going, planned - 1, tokens, owners=self.owners[going], epochs=self.epochs[going])

    # -- a step is done ------------------------------------------------------------------------------------------------

    def record(self, decodes: Decodes, tokens: Column) -> tuple[Column, Column]:
        """Take in what a step's decodes sampled, as far as it only makes sequences longer.

        Returns the rows that were taken in, and those that need a decision: the token ends the sequence, there is none,
        or the sequence has left its slot.
        """
        slots, stored = decodes.slots, decodes.starts + 1
        current = self.epochs[slots] == decodes.epochs
        ends = (tokens < 0) | (stored + 1 >= self.longest[slots])
        if count_nonzero(stops := self.stops[slots] == tokens[:, None]):
            ends |= stops.any(axis=1)
        exceptional = ends | ~current
        rows, others = np.arange(len(slots)), NO_ROWS
        if count_nonzero(exceptional):
            rows, others = (~exceptional).nonzero()[0], exceptional.nonzero()[0]
            ending = others[current[others] & (tokens[others] >= 0)]
            self.seen[slots[ending]] = stored[ending]
            slots, stored, tokens = slots[rows], stored[rows], tokens[rows]
        filled = self._filled[slots]
        self._unread[slots, filled] = tokens
        self._filled[slots] = filled + 1
        self.newest[slots] = tokens
        self.seen[slots] = stored
        full = filled == UNREAD - 1
        for owner in self.owners[slots[full]] if count_nonzero(full) else ():
            owner.tokens  # noqa: B018  # makes room
        return rows, others

    def begin(self, sequence: Sequence, token: int, stored: int) -> None:
        """The step that ended its prompt was committed: it sampled `token`, and `stored` positions are there."""
        self.newest[sequence.slot], self.seen[sequence.slot] = token, stored

    def with_untold(self, page: int, page_size: int) -> list[Sequence]:
        """Sequences that have filled their page number `page`, of which the prefix index has not been told."""
        slots = self.active[self.indexed[self.active] <= page]
        return self.owners[slots[self.seen[slots] // page_size > page]].tolist()

    def reserved_ahead(self) -> int:
        """Positions that are reserved and not planned yet: the unfilled ends of last pages."""
        return int((self.room - self.planned + 1)[self.active].sum())

    # -- the invariants ------------------------------------------------------------------------------------------------

    def check(self, under_way: int) -> None:
        """Rows belong to their owners, and no sequence is planned further than its steps and pages go."""
        there = [slot for slot, owner in enumerate(self.owners) if owner is not None]
        assert self.active.tolist() == there, "a slot is active without an owner, or has one and is not"
        for slot in there:
            sequence: Sequence = self.owners[slot]
            known, planned = len(sequence.tokens), int(self.planned[slot])
            assert sequence.slot == slot and self.holds(sequence), "a row belongs to a sequence that runs elsewhere"
            assert known <= planned <= min(sequence.longest, known + under_way), "planned too far"
            assert planned == sequence.longest or (planned == known) == (under_way == 0), "it decodes in every plan"
            assert planned - 1 <= self.room[slot], "a token is planned where it has no page"
            assert self.seen[slot] in (0, known - 1), "it has stored what no committed step has run"
            assert not self.seen[slot] or self.newest[slot] == sequence.tokens[-1], "the newest token is another"
