"""The answers that keep to a grammar, by slot: what each may say next, and why one could not go on. No torch here.

A slot's matcher follows the tokens that its sequence has drawn. It is made anew when the slot changes owners, from the
tokens known by then, so a preemption loses nothing and a slot's next owner inherits nothing.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradus.engine.plan import REJECTED, Admission, Column, upto_missing
from gradus.engine.structured import FAULT
from gradus.errors import RequestError
from gradus.structured import Grammars, Job, MaskThreads, Matcher
from gradus.structured.vocabulary import Row

NOTHING_LEGAL = "no token of the vocabulary continues the answer as its grammar demands"


@dataclass(slots=True)
class Constrained:
    """An answer in a step: its slot, its first row, and the job of filling its masks. Further rows verify drafts."""

    row: int
    slot: int
    job: Job


@dataclass(slots=True)
class Constraints:
    """The matchers of all slots that have one. threads: fill the rows of legal tokens.

    turned: slots whose draws need masks from now on, or need none any more, until `SlotTable.turn` has taken them.
    begun: by slot, the token behind which an answer drawn without masks began to need them, and how many tokens its
    step had drawn behind that one; until the next step has taken them.
    """

    grammars: Grammars
    threads: MaskThreads = field(default_factory=MaskThreads)
    changes: int = 0  # how often slots have changed owners
    turned: dict[int, bool] = field(default_factory=dict)
    begun: dict[int, tuple[int, int]] = field(default_factory=dict)
    _matchers: dict[int, Matcher] = field(default_factory=dict)

    def admit(self, admissions: Iterable[Admission]) -> None:
        """Give slots to new owners, whose matchers take in the tokens that they have drawn before.

        A template that was dropped since the request was validated is compiled again here, in the step. An owner with
        other requests to serve holds it from `Grammars.hold` on, so that no step compiles.

        A constraint that cannot be compiled any more ends its own request: its matcher has a fault.
        """
        for admission in admissions:
            self.changes += 1
            slot, request = admission.slot, admission.request
            self._matchers.pop(slot, None)
            self.turned.pop(slot, None)
            self.begun.pop(slot, None)
            if request.params.structured is not None:
                try:
                    matcher = self.grammars.matcher(request.params.structured, sorted(request.stop_ids))
                except RequestError as error:
                    matcher = self.grammars.broken(str(error))
                matcher.accept(admission.tokens[admission.prompt_length :])
                self._matchers[slot], self.turned[slot] = matcher, matcher.masks

    def of(self, slots: Sequence[int], drafts: Sequence[int] = (), inputs: Sequence[int] = ()) -> list[Constrained]:
        """List the answers with a matcher among rows of these slots, by their slots.

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
                found.append(Constrained(row, slot, Job(matcher, 0)))
            elif inputs:
                found[-1].job.drafts = [*found[-1].job.drafts, inputs[row]]
        return sorted(found, key=lambda each: each.slot)

    @property
    def any(self) -> bool:
        """Whether any slot has a matcher."""
        return bool(self._matchers)

    def matcher(self, slot: int) -> Matcher | None:
        """Return the matcher of the slot's owner; None if it keeps to no grammar."""
        return self._matchers.get(slot)

    def owns(self, answer: Constrained) -> bool:
        """Whether the answer still has its slot."""
        return self._matchers.get(answer.slot) is answer.job.matcher

    def sure(self, slots: Column, most: int) -> Column:
        """Count the tokens that each slot's grammar forces, up to `most`: int64 [B]."""
        forced = np.zeros(len(slots), np.int64)
        if self._matchers:
            for row, slot in enumerate(slots.tolist()):
                if (matcher := self._matchers.get(slot)) is not None and matcher.masks:
                    forced[row] = len(matcher.forced(most))
        return forced

    # -- tokens --------------------------------------------------------------------------------------------------------

    def accept(
        self, answers: Iterable[Constrained], masked: Collection[int], tokens: Column, width: int = 1
    ) -> dict[int, str]:
        """Advance the answers by the tokens drawn, one per row, negative from the first that does not count.

        masked: the slots whose tokens were drawn with masks. Another answer may need masks from one of its tokens on:
        those drawn behind it are marked as REJECTED in `tokens`. width: rows of each answer, besides its job's drafts.
        Returns why answers drawn with masks cannot go on without a token, by their first row.
        """
        moves, faults, drawn = list[tuple[Matcher, Sequence[int]]](), dict[int, str](), tokens.tolist()
        for each in answers:
            matcher, first = each.job.matcher, each.row * width
            if each.slot not in masked and width == 1 and not matcher.notices(drawn[first]):
                continue
            last = first + width + len(each.job.drafts)
            mine = upto_missing(drawn[first:last])
            if each.slot not in masked:
                if not mine:
                    continue  # no logit was finite
                count = _accept_free(matcher, mine)
                tokens[first + count : last] = REJECTED
                if matcher.masks and self.owns(each):
                    self.turned[each.slot], self.begun[each.slot] = True, (mine[count - 1], len(mine) - count)
            elif mine:
                moves.append((matcher, mine))
            else:
                faults[first] = FAULT + (matcher.fault or NOTHING_LEGAL)
        self.threads.accept(moves)
        for each in answers:
            if each.slot in masked and not each.job.matcher.masks and self.owns(each):
                self.turned[each.slot] = False
        return faults

    # -- masks ---------------------------------------------------------------------------------------------------------

    def fill(self, answers: Sequence[Constrained], rows: Row) -> None:
        """Begin to write the answers' legal tokens to `rows`, in their order. `threads.wait` ends it."""
        place = 0
        for each in answers:
            each.job.row, place = place, place + 1 + len(each.job.drafts)
        self.threads.start([each.job for each in answers], rows)


def _accept_free(matcher: Matcher, drawn: Sequence[int]) -> int:
    """Accept the tokens up to the first behind which masks are needed. Returns how many these are."""
    for count, token in enumerate(drawn, start=1):
        matcher.accept([token])
        if matcher.masks:
            return count
    return len(drawn)
