"""The number of drafts that each sequence verifies in the next step. No torch here.

A draft is one more row in a step: it may gain a token for one sequence, and every sequence of the step waits for the
rows of all. So a choice, made anew every few steps, has three parts:

1. *How likely drafts are accepted* (`Acceptance` in `draft_gains.py`). Drafts that are looked up in the text are judged
   though none are verified (`hindsight.py`), since the host can look up, too. Those of heads and models are then not
   observed: each sequence tries one now and then, ever more rarely while they fail. These trials may cost a sequence
   LOSS of its steps, whatever drafts gained before.
2. *What they are worth* (`draft_gains.py`). Shapes of steps are filled with drafts. How long a step of each shape
   takes, relative to a step without drafts, is measured (`step_times.py`). The most tokens per second win.
3. *Nobody pays.* A ledger records how many steps each sequence is ahead of where it would be without drafts. Drafts
   that are expected to put a sequence more than LOSS of its steps behind are not verified.

docs/design/speculation.md has the arithmetic, every number that steers a choice, and the measurements.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradus.engine.metrics import Speculation
from gradus.engine.plan import NO_DRAFTS, UNDRAFTED, Column, Decodes
from gradus.scheduling.draft_gains import LOSS, MARGIN, Acceptance, Ratios, affordable, best_offer, gained, unpadded
from gradus.scheduling.draft_shapes import DraftShape, DraftShapes
from gradus.scheduling.hindsight import Hindsight
from gradus.scheduling.step_times import STALE, StepTimes

HOLD = 8  # steps that a choice lasts, and in which a debt is repaid, and that pass before a first trial
UNAFFORDABLE = "drafts of some would slow the others down"


@dataclass(slots=True)
class Choice:
    """Drafts of each sequence, int64 [B], or NO_DRAFTS. shape: of the step that verifies them, where one was chosen.

    lasts: for how many steps, while the same sequences decode; for ever is until hindsight is stirred. rests: whether
    HOLD steps without drafts follow, since a sequence without drafts could not afford a second such step.
    """

    drafts: Column
    why: str
    shape: DraftShape | None = None
    lasts: float = HOLD
    rests: bool = False


class DraftControl:
    """Chooses drafts for up to `slots` sequences, among `shapes`. adaptive: as many as pay; otherwise always the most.

    lag: steps under way when the next one is planned. times: step times measured before the first step. sure: counts
    the drafts of each slot that are accepted for certain, int64 [B]: these are verified whatever else is chosen.
    hindsight: judges drafts that were not verified, in place of trials.
    """

    def __init__(
        self,
        shapes: DraftShapes,
        slots: int,
        *,
        lag: int,
        adaptive: bool,
        times: StepTimes | None = None,
        sure: Callable[[Column], Column] | None = None,
        hindsight: Hindsight | None = None,
    ) -> None:
        self.shapes, self.most, self.lag, self.adaptive = shapes, shapes.most, lag, adaptive
        self.times, self._sure = StepTimes() if times is None else times, sure
        self._hindsight = hindsight if adaptive else None
        self._acceptance = Acceptance(slots, float(self._hindsight is None))  # with hindsight, judged before it drafts
        self._ahead = np.zeros(slots)  # by slot: tokens ahead of where it would be without drafts
        self._spent = np.zeros(slots)  # by slot: the cost of trials, in steps without drafts
        self._begun = np.zeros(slots, np.int64)  # the step before its first
        self._due = np.zeros(slots, np.int64)  # the step that tries its drafts again
        self._patience = np.full(slots, HOLD)  # steps from its newest trial to the next
        self._newcomers: list[int] = []  # slots that have new owners since the last choice
        self._step = 0
        self._held: tuple[Column, int, float] | None = None  # the newest choice's slots, its room, and its last step
        self._choice = Choice(NO_DRAFTS, "nothing has run yet")
        self._steps = self._tokens = 0
        self._drafted, self._accepted = np.zeros((2, 1 + self.most), np.int64)  # counts of decodes, by their drafts

    @property
    def mixes(self) -> bool:
        """Whether steps with prompts verify drafts. Padded steps do not: they are captured, and have only decodes."""
        return not self.shapes.padded

    @property
    def ahead(self) -> int:
        """Positions from the first that a step may run to the last that it must have room for."""
        return self.lag * self.most + 1

    def begin(self, slot: int) -> None:
        """Expect the slot's new owner to be like the others, from the next choice on."""
        self._newcomers.append(slot)
        self._held = None
        if self._hindsight is not None:
            self._hindsight.forget(slot)

    def _reset(self, slots: list[int]) -> None:
        """Reset slots that have new owners: all at once, as many may begin together."""
        self._acceptance.reset(slots)
        self._ahead[slots] = self._spent[slots] = 0.0
        self._begun[slots], self._due[slots], self._patience[slots] = self._step, self._step + HOLD, HOLD

    # -- a step is planned ---------------------------------------------------------------------------------------------

    def choose(self, slots: Column, left: int) -> Column:
        """Choose how many drafts each sequence verifies: int64 [B], or NO_DRAFTS. left: tokens that the step has room
        for, in addition to one per sequence."""
        if self._newcomers:
            self._reset(self._newcomers)
            self._newcomers = []
        self._step += 1
        size = self.shapes.size(len(slots))
        room = min(left, self.shapes.rows - size) if size else 0
        chosen = self._likely(slots, size, room)
        sure = None if self._sure is None or room <= 0 else self._sure(slots)
        if sure is None or not sure.any():
            return chosen
        return _shortened(np.maximum(chosen if len(chosen) else 0, np.minimum(sure, self.most)), room)

    def _likely(self, slots: Column, size: int, room: int) -> Column:
        """Choose by what drafts have come to so far; a choice is kept for some steps."""
        if self._held is not None and not (self._hindsight is not None and self._hindsight.stirred):
            held, least, last = self._held
            if held is slots and self._step > last and self._choice.rests:
                self._choice, least, last = Choice(NO_DRAFTS, UNAFFORDABLE), 0, self._step + HOLD - 1
                self._held = slots, least, last
            if held is slots and self._step <= last and room >= least:
                return self._choice.drafts
        self._choice = self._chosen(slots, size, room)
        self._held = slots, int(self._choice.drafts.sum()), self._step + self._choice.lasts - 1
        return self._choice.drafts

    def _chosen(self, slots: Column, size: int, room: int) -> Choice:
        most = min(self.most, room // len(slots))
        if room <= 0 or (not self.adaptive and not most):
            return Choice(NO_DRAFTS, "a step has no room for drafts")
        if not self.adaptive:
            why = "as asked for" if most == self.most else "as a step has room for"
            return Choice(np.full(len(slots), most), why, lasts=1)
        if not self.times.known(size):
            return Choice(NO_DRAFTS, "the time of a step without drafts is not known yet")
        if self.times.stale(size):
            return Choice(NO_DRAFTS, "a look at a step without drafts")
        ratios = self.times.ratios(size, self.shapes.of(size))
        if room < self.shapes.of(size)[-1].rows:
            ratios = {shape: ratio for shape, ratio in ratios.items() if shape.rows <= room}
        if not ratios:
            return Choice(NO_DRAFTS, "a step has no room for drafts")
        if self._hindsight is not None:
            self._acceptance.news[:, slots] += self._hindsight.take(slots)
        else:
            self._hurry(slots)
        self._acceptance.bring_up_to_date(slots)
        chances = self._acceptance.chances(slots, self.most)
        totals: NDArray[Any] = chances.cumsum(axis=1)  # tokens gained from one draft, two, and so on
        best = self._best(slots, ratios, chances, totals)
        return best if self._hindsight is not None else self._with_trials(slots, ratios, totals, best)

    def _best(self, slots: Column, ratios: Ratios, chances: NDArray[Any], totals: NDArray[Any]) -> Choice:
        """Choose the drafts with the most tokens per second in the long run, if they put no sequence too far behind."""
        spares, sums, least = self._spare(slots), totals.tolist(), min(ratios.values())
        # two bounds, as if all drafts had rows in any shape, spare a fast GPU's host the search
        pays = not self.shapes.padded or 1 + float(totals[:, -1].mean()) >= MARGIN * least
        if pays and self.shapes.padded and not affordable(spares, [of[-1] for of in sums], least):
            return Choice(NO_DRAFTS, UNAFFORDABLE)
        best = best_offer(ratios, chances.tolist(), sums, spares, self._found(slots)) if pays else None
        if best is None:
            all_had_room = len(ratios) == len(self.shapes.of(self.shapes.size(len(slots))))
            # with hindsight until a sequence begins to copy
            lasts = math.inf if self._hindsight is not None and all_had_room else HOLD
            return Choice(NO_DRAFTS, f"drafts would make less than {MARGIN} times the tokens per second", lasts=lasts)
        if not affordable(spares, best.gains, best.ratio):
            return Choice(NO_DRAFTS, UNAFFORDABLE)
        # no longer than all can afford it if none were accepted: their chances may be wrong
        lasts = min(HOLD, max(1, int(min(spares) / max(best.ratio - 1, LOSS))))
        why = f"{best.rate:.2f} times the tokens per second of no drafts"
        others = min([spare for spare, gain in zip(spares, best.gains, strict=True) if not gain], default=math.inf)
        rests = self._hindsight is not None and others < 2 * (best.ratio - 1)
        return Choice(np.array(best.drafts), why, best.shape, lasts, rests)

    def _with_trials(self, slots: Column, ratios: Ratios, totals: NDArray[Any], best: Choice) -> Choice:
        """Add one draft to `best` for each sequence due for a trial, unless they put a sequence too far behind.

        They get rows of the step that `best` chose, or else of one that costs least per trial.
        """
        chosen = best.drafts if len(best.drafts) else np.zeros(len(slots), np.int64)
        due = np.flatnonzero((self._due[slots] <= self._step) & (chosen == 0))
        if not len(due):
            return best
        shape = best.shape or min(ratios, key=lambda each: (ratios[each] - 1) / min(each.rows, len(due)))
        tried = due[np.argsort(self._patience[slots[due]], kind="stable")][: shape.rows]  # those tried least
        drafts = chosen.copy()
        drafts[tried] = 1
        drafts = _shortened(drafts, shape.rows)
        ratio, found = ratios[shape], self._found(slots)
        if found is not None:
            ratio = unpadded(ratio, shape, found, drafts.tolist())
        gains, mine = np.array(gained(totals.tolist(), drafts.tolist())), slots[tried]
        spent = self._spent[mine] + np.maximum(0, ratio - 1 - gains[tried])
        self._due[slots[due]] = self._step + self._patience[slots[due]]
        if (spent > LOSS * self._steps_of(mine)).any() or not affordable(self._spare(slots), gains.tolist(), ratio):
            return best
        self._spent[mine], self._patience[mine] = spent, np.minimum(2 * self._patience[mine], STALE)
        return Choice(drafts, "a trial", shape, lasts=1)

    def _hurry(self, slots: Column) -> None:
        """Try drafts again at once where some were accepted."""
        lucky = slots[self._acceptance.news[3, slots] > 0]
        self._due[lucky], self._patience[lucky] = self._step, HOLD

    def _found(self, slots: Column) -> list[float] | None:
        """Return the probability that each sequence has drafts, where steps run only the rows of drafts found."""
        return None if self.shapes.padded else self._acceptance.found[slots].tolist()

    def _spare(self, slots: Column) -> list[float]:
        """Return the steps that each sequence may lose in the next one; less than 0 is what it must gain.

        A sequence that has lost too much repays its debt over HOLD steps. If it had to repay all at once, no step would
        do, and it would hold up itself and all others for as long as plain steps take.
        """
        spare = self._ahead[slots] + LOSS * self._steps_of(slots)
        return np.where(spare < 0, spare / HOLD, spare).tolist()

    def _steps_of(self, slots: Column) -> Column:
        """Count the steps of each sequence so far."""
        steps: Column = self._step - self._begun[slots]
        return steps

    # -- a step is done ------------------------------------------------------------------------------------------------

    def learn(
        self, decodes: Decodes, tokens: Column, ended: list[int], seconds: float = 0.0, usual: bool = True
    ) -> None:
        """Record a step's tokens and its time. tokens, seconds, usual: as in `Sampled`, the tokens [B, width]; seconds
        is 0 where unknown. ended: rows whose tokens do not count."""
        count, width = tokens.shape
        if self._hindsight is not None:
            if self.shapes.size(count):
                self._hindsight.judge(decodes, tokens, ended)
            else:
                self._hindsight.rest()
        if width == 1:
            self._steps, self._tokens = self._steps + count - len(ended), self._tokens + count - len(ended)
            if seconds and usual:
                self.times.took_plain(self.shapes.size(count), seconds)
            return
        slots, allowed = decodes.slots, decodes.drafts
        stood, drafted = (tokens >= 0).sum(axis=1) - 1, (tokens[:, 1:] != UNDRAFTED).sum(axis=1)
        ratio = self._took(decodes, int(drafted.sum()), seconds, usual) if seconds else 1.0
        if ended:
            slots, allowed, stood, drafted = (np.delete(each, ended) for each in (slots, allowed, stood, drafted))
        self._drafted += np.bincount(drafted, minlength=1 + self.most)
        self._accepted += np.bincount(np.maximum(stood, 0), minlength=1 + self.most)  # -1: it drew nothing
        self._steps, self._tokens = self._steps + len(slots), self._tokens + len(slots) + int(stood.sum())
        if seconds:
            self._ahead[slots] += stood + (1 - ratio)
        self._acceptance.observe(slots, allowed, drafted, stood)

    def _took(self, decodes: Decodes, drafted: int, seconds: float, usual: bool) -> float:
        """Record the step's time. Returns it as a multiple of a step without drafts."""
        count = len(decodes)
        size = self.shapes.size(count)
        rows = decodes.rows - count if self.shapes.padded else drafted
        shape = self.shapes.fitting(count, decodes.width - 1, rows) if rows else None
        if shape is None:
            self.times.took_plain(size, seconds)
            return 1.0
        return self.times.took(size, shape, seconds, usual)

    # -- statistics ----------------------------------------------------------------------------------------------------

    def stats(self) -> Speculation:
        """Report how drafts have done so far. Changes nothing, so it may be called at any time."""
        drafts = self._choice.drafts
        return Speculation(
            drafts=int(drafts.max(initial=0)),
            why=self._choice.why,
            steps=self._steps,
            tokens=self._tokens,
            drafted=_by_position(self._drafted),
            accepted=_by_position(self._accepted),
        )


def _by_position(counts: Column) -> tuple[int, ...]:
    """Count the first, second, … drafts, given how many decodes had none, one, two, and so on."""
    return tuple(counts[:0:-1].cumsum()[::-1].tolist())


def _shortened(drafts: Column, rows: int) -> Column:
    """Cut the drafts to `rows` in all, the last ones of the sequences with the most first: those are accepted least."""
    for _ in range(int(drafts.sum()) - rows):
        drafts[drafts.argmax()] -= 1
    return drafts
