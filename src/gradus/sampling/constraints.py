"""The answers that keep to a grammar, by slot: what each may say next, and why one could not go on. No torch here.

A slot's matcher follows the tokens that its sequence has drawn. It is made anew when the slot changes owners, from the
tokens known by then, so a preemption loses nothing and a slot's next owner inherits nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradus.engine.plan import Admission, Column, upto_missing
from gradus.engine.structured import FAULT
from gradus.errors import RequestError
from gradus.structured import Grammars, Job, MaskThreads, Matcher
from gradus.structured.vocabulary import Row

NOTHING_LEGAL = "no token of the vocabulary continues the answer as its grammar demands"


@dataclass(slots=True)
class Constrained:
    """A masked answer in a step: its first row, and the job of filling its masks; the rows after it verify drafts."""

    row: int
    job: Job


@dataclass(slots=True)
class Constraints:
    """The matchers of all slots that have one. threads: fill the rows of legal tokens."""

    grammars: Grammars
    threads: MaskThreads = field(default_factory=MaskThreads)
    changes: int = 0  # how often slots have changed owners
    _matchers: dict[int, Matcher] = field(default_factory=dict)

    def admit(self, admissions: Iterable[Admission]) -> None:
        """Give slots to new owners, whose matchers take in the tokens that they have drawn before.

        A template that was dropped since the request was validated is compiled again here, in the step. An owner with
        other requests to serve holds it from `Grammars.hold` on, so that no step compiles.

        A constraint that cannot be compiled any more ends its own request: its matcher has a fault.
        """
        for admission in admissions:
            self.changes += 1
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
        """List the masked answers among rows of these slots, by their slots, with their masks in the same order.

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
                found.append(Constrained(row, Job(matcher, 0)))
            elif inputs:
                found[-1].job.drafts = [*found[-1].job.drafts, inputs[row]]
        found.sort(key=lambda each: slots[each.row])
        place = 0
        for each in found:
            each.job.row, place = place, place + 1 + len(each.job.drafts)
        return found

    def matcher(self, slot: int) -> Matcher | None:
        """Return the matcher of the slot's owner; None if it keeps to no grammar."""
        return self._matchers.get(slot)

    def sure(self, slots: Column, most: int) -> Column:
        """Count the tokens that each slot's grammar forces, up to `most`: int64 [B]."""
        forced = np.zeros(len(slots), np.int64)
        if self._matchers:
            for row, slot in enumerate(slots.tolist()):
                if (matcher := self._matchers.get(slot)) is not None:
                    forced[row] = len(matcher.forced(most))
        return forced

    def accept(self, answers: Iterable[Constrained], tokens: Sequence[int]) -> dict[int, str]:
        """Advance the answers by the tokens drawn, one per row, negative from the first that does not count.

        Returns why answers without a token cannot go on, by their first row.
        """
        moves, faults = list[tuple[Matcher, Sequence[int]]](), dict[int, str]()
        for each in answers:
            matcher, drafts = each.job.matcher, each.job.drafts
            if drawn := upto_missing(tokens[each.row : each.row + 1 + len(drafts)]):
                moves.append((matcher, drawn))
            else:
                faults[each.row] = FAULT + (matcher.fault or NOTHING_LEGAL)
        self.threads.accept(moves)
        return faults

    def fill(self, answers: Sequence[Constrained], rows: Row) -> None:
        """Begin to write the answers' legal tokens to `rows`, in their order. `threads.wait` ends it."""
        self.threads.start([each.job for each in answers], rows)
