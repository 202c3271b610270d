"""The answers that keep to a grammar, by slot: what each may say next, and why one could not go on. No torch here.

A slot's matcher follows the tokens that its sequence has drawn. It is made anew when the slot changes owners, from the
tokens known by then, so a preemption loses nothing and a slot's next owner inherits nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradus.engine.plan import Admission, Column
from gradus.errors import RequestError
from gradus.structured import Grammars, Job, MaskThreads, Matcher
from gradus.structured.vocabulary import Row

NOTHING_LEGAL = "no token of the vocabulary continues the answer as its grammar demands"


@dataclass(slots=True)
class Constrained:
    """A masked answer's rows in a step: its matcher, the first row, and the drafts that the rows after it verify."""

    matcher: Matcher
    row: int
    drafts: Sequence[int] = ()


@dataclass(slots=True)
class Constraints:
    """The matchers of all slots that have one. threads: fill the rows of legal tokens."""

    grammars: Grammars
    threads: MaskThreads = field(default_factory=MaskThreads)
    _matchers: dict[int, Matcher] = field(default_factory=dict)

    def admit(self, admissions: Iterable[Admission]) -> None:
        """Give slots to new owners, whose matchers take in the tokens that they have drawn before.

        A constraint that cannot be compiled any more ends its own request: its matcher has a fault.
        """
        for admission in admissions:
            self._matchers.pop(admission.slot, None)
            request = admission.request
            if request.params.structured is not None:
                try:
                    matcher = self.grammars.matcher(request.params.structured, sorted(request.stop_ids))
                except RequestError as error:
                    matcher = self.grammars.broken(str(error))
                matcher.accept(admission.tokens[admission.prompt_length :])
                self._matchers[admission.slot] = matcher

    def of(self, slots: Sequence[int], drafts: Sequence[int] = (), inputs: Sequence[int] = ()) -> list[Constrained]:
        """List the masked answers among rows of these slots.

        drafts: how many drafts each row has before it in its span, and inputs: the token that each row runs; both are
        left out where no row verifies a draft.
        """
        if not self._matchers:
            return []
        found: list[Constrained] = []
        for row, slot in enumerate(slots):
            matcher = self._matchers.get(slot)
            if matcher is None:
                continue
            if not drafts or not drafts[row]:
                found.append(Constrained(matcher, row))
            elif inputs:
                found[-1].drafts = [*found[-1].drafts, inputs[row]]
        return found

    def drafts(self, slot: int, proposed: Sequence[int], most: int) -> Sequence[int]:
        """Choose what a slot verifies: the tokens that its grammar forces, or else the drafts proposed, as far as they
        are legal. Without a grammar, all that are proposed."""
        matcher = self._matchers.get(slot)
        if matcher is None:
            return proposed
        return matcher.forced(most) or matcher.legal(proposed)

    def sure(self, slots: Column, most: int) -> Column:
        """Count the tokens that each slot's grammar forces, up to `most`: int64 [B]."""
        forced = np.zeros(len(slots), np.int64)
        if self._matchers:
            for row, slot in enumerate(slots.tolist()):
                if (matcher := self._matchers.get(slot)) is not None:
                    forced[row] = len(matcher.forced(most))
        return forced

    def fill(self, answers: Sequence[Constrained], rows: Row) -> None:
        """Begin to write the answers' legal tokens, in their order, from row 0 on. `threads.wait` ends it."""
        jobs, row = list[Job](), 0
        for each in answers:
            jobs.append(Job(each.matcher, row, each.drafts))
            row += 1 + len(each.drafts)
        self.threads.start(jobs, rows)


def accept(answers: Iterable[Constrained], tokens: Sequence[int]) -> dict[int, str]:
    """Advance the answers by the tokens drawn, one per row, negative from the first one that does not count.

    Returns why answers without a token cannot go on, by their first row.
    """
    faults = {}
    for each in answers:
        drawn = list[int]()
        for token in tokens[each.row : each.row + 1 + len(each.drafts)]:
            if token < 0:
                break
            drawn.append(token)
        if drawn:
            each.matcher.accept(drawn)
        else:
            faults[each.row] = each.matcher.fault or NOTHING_LEGAL
    return faults
