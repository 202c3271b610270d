"""How many drafts a step verifies: as many as bring the most tokens per second, by what was measured. No torch here.

A draft is a row more in a step. It pays if it is accepted often enough for what a longer step costs:

    tokens per step = sum over sequences of 1 + P(1st draft stands) + P(1st and 2nd stand) + …

over the time of a step with so many sequences and drafts. Both are moving averages of what steps have shown. One number
serves all sequences of a step, so it is the sum that counts, whichever of them brings it (docs/design/speculation.md
says why, and what that gives away). Where no number of drafts gains anything, there are none; then a probe, rarer the
longer it finds nothing, tells when they would pay again. What probes cost is kept account of, and is a small share of
the time, however slow a drafter is.
"""

from collections import Counter
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradus.engine.metrics import Speculation
from gradus.engine.plan import UNDRAFTED, Column, Decodes

CHOICES = (0, 1, 2, 3, 7)  # with the token before them 1 to 4 rows, or 8: what GPU kernels are compiled for
MOST_ROWS = 256
"""Of a step that verifies drafts: beyond, its time grows with its rows on any device."""

PRIOR = 0.5  # that a draft of a request stands, before there is any of its own
CROWD = 4  # sequences of which one step tells whether their drafts stand
WORTH = 4  # steps with drafts that what is expected of a new request counts for, as far as others bear it out
NEW = 1 / 8  # how much of a new observation an average takes over, once there were some
OWN = 1 / 16  # the same for what a request's drafts come to: with 1 / 8 chance alone stopped drafts that paid
SLOW = 1 / 64  # the same for positions that were not tried, towards what those before them suggest
LARGEST_RISE = 2.0  # the most that a single step's time counts, as a multiple of the average
GUESS = 0.03  # what a draft adds to a step's time at least, until that is measured
MARGIN = 1.05  # what drafts must gain to be worth longer gaps between tokens
PROBE = 2  # drafts of a probe, in turn with one: each may pay where the other does not, as rows are dear in steps
RUN = 8  # steps of a probe at most: it goes on while its drafts stand, until the averages have seen enough
PATIENCE, MOST_PATIENCE = 16, 512  # steps from a probe to the next
HOLD, KEEP = 8, 4  # steps for which a decision against drafts or for some stands, if the batch stays what it is
LOOK, RAREST_LOOK = 8, 256  # steps with drafts from a look at some without to the next
SOON = 64  # the same once a request has begun: its text may be another kind
LOOKED = 2  # steps without that are timed then; a look takes one more for each that is under way
HOPE = 1.4  # what more drafts than the best number must promise to gain, for a look at them
FIRST = 4  # steps of a kind of which the fastest counts: one of the first may have set something up
SHARE = 1 / 100  # of the time, for probes that bring nothing
LARGEST_LOSS = 16.0  # the most that a single step's loss counts, in steps without drafts
CREDIT = 8  # the most that drafts put by for probes while they pay, in the same


def choices(most: int, *, adaptive: bool) -> list[int]:
    """How many drafts a step may verify, where there is room."""
    return [*(each for each in CHOICES if each < most), most] if adaptive else [0, most]


class DraftControl:
    """Chooses, for up to `slots` sequences. most: drafts per step; adaptive: 0 to `most`, else always `most`.

    lag: steps under way when the next one is planned. rows: of a step that verifies drafts, at most.
    """

    def __init__(self, most: int, slots: int, *, lag: int, adaptive: bool, rows: int = MOST_ROWS) -> None:
        self.most, self.lag, self.adaptive, self.rows = most, lag, adaptive, rows
        self.choices = choices(most, adaptive=adaptive)
        self._prior = PRIOR ** np.arange(1, most + 1)
        # by slot, and last of all requests: how probable it is that the first, the first two … stand
        self._agree = np.tile(self._prior, (slots + 1, 1))
        self._seen = np.ones(slots + 1)  # by slot: steps with drafts
        self._seen[-1] = 1 / NEW  # of all requests, whatever they are
        self._untried = np.zeros(slots, bool)  # by slot: whether its owner has had no drafts yet
        self._waits = 0  # steps without drafts until it is known what came of a first one with drafts
        self._begun: list[int] = []  # slots whose new owners nothing is expected of yet
        self._deferred = False  # whether the newest step was planned without a decision, for their sake
        self._seconds: dict[tuple[int, int], float] = {}  # by size of the batch (its power of two) and drafts
        self._timed: Counter[tuple[int, int]] = Counter()  # the same: how many steps that is from
        self._patience = self._left = PATIENCE
        self._run = 0  # steps that the probe under way may still take
        self._probed = 1  # drafts of the newest probe
        self._held, self._holds = 0, 0  # steps that the last decision still stands, for so many sequences
        self._observed: list[tuple[Column, Column]] = []  # steps to learn from: slots, and tokens as in `learn`
        self._unlooked = self._looks = LOOK  # steps with drafts until the next look at one without
        self._higher = 0  # steps of a look at more drafts that are left
        self._debt = 0.0  # seconds that drafts have lost beyond their share of the time; below 0, have gained
        self._brought = 1.0  # tokens per sequence of the step that was learned from last
        self._now, self._why = 0, "nothing has run yet"
        self._steps = self._tokens = 0
        self._drafted, self._accepted = np.zeros((2, most), np.int64)

    @property
    def ahead(self) -> int:
        """Positions from the first that a step may run to the last that it must have room for."""
        return self.lag * self.most + 1

    def begin(self, slot: int) -> None:
        """The slot has a new owner. Crowds come at once, and their first tokens wait for this."""
        self._begun.append(slot)

    def _expect(self) -> None:
        """Of the new owners: they may be what other requests are, or better."""
        shared = self._agree[-1]
        expected = np.maximum(shared, self._prior)
        self._agree[self._begun] = expected
        self._seen[self._begun] = max(1.0, WORTH * shared[0] / expected[0])
        self._untried[self._begun] = True
        self._begun.clear()
        self._held, self._unlooked = 0, min(self._unlooked, SOON)

    # -- a step is planned ---------------------------------------------------------------------------------------------

    def choose(self, slots: Column, left: int) -> int:
        """How many drafts each of these sequences verifies. left: tokens that the step has room for beside theirs.

        First tokens wait until the step behind theirs is launched. So where owners are new, the last decision stands
        for one step more.
        """
        self._deferred = bool(self._begun) and self.adaptive and not self._deferred
        if self._deferred:
            return min(self._now, self._room(len(slots), left))
        if self._begun:
            self._take_in()
            self._expect()
        most = self._room(len(slots), left)
        if self._held and self._holds == len(slots) and not self._due:
            self._held -= 1
            if self._now:
                self._unlooked -= 1
            else:
                self._left -= 1
            return min(self._now, most)
        self._held = 0
        if not self.adaptive:
            return self._decide(most, "as asked for" if most == self.most else "as a step has room for")
        if self._waits:
            self._waits -= 1
            return self._decide(0, "what first drafts come to is not known yet")
        size = len(slots).bit_length()
        if self._timed[size, 0] < FIRST:
            return self._decide(0, "the time of a step without drafts is not known yet")
        self._take_in()
        agree, untried = self._agree[slots], self._untried[slots]
        timed = any(self._timed[size, each] for each in self.choices if each)
        few = most if timed else min(most, PROBE)  # as long as the time of drafts is a guess
        costs = self._costs(size, few)
        rates = _rates(agree, costs)
        best = max(rates, key=rates.__getitem__)
        gain = rates[best] / rates[0]
        if gain > MARGIN and untried.any() and not self._pays_without_hope(agree, untried, costs):
            self._wait(len(slots))
            fewest = next(each for each, rate in rates.items() if rate > MARGIN * rates[0])
            return self._decide(fewest, "the first drafts of new requests")
        if gain > MARGIN:
            self._patience, self._left, self._run = PATIENCE, PATIENCE, 0
            if self._looks_without(size, best):
                return self._decide(0, "a look at a step without drafts")
            if (more := self._worth_a_look(size, best, most, agree, costs[best])) > best:
                return self._decide(more, "a look at a step with more drafts")
            if best == self._now and self._timed[size, best]:
                self._held, self._holds = KEEP - 1, len(slots)
            return self._decide(best, f"{gain:.2f} times the tokens per second of no drafts")
        self._unlooked = self._looks = LOOK
        if self._probes(size, len(slots)) and most:
            return self._decide(min(self._probed, most), "a probe")
        self._held, self._holds = HOLD - 1, len(slots)
        nearest = max((each for each in rates if each), key=rates.__getitem__, default=0)
        share = rates[nearest] / rates[0]
        drafts = "draft" if nearest == 1 else "drafts"
        return self._decide(0, f"{nearest} {drafts} would bring {share:.2f} times the tokens per second")

    @property
    def _due(self) -> bool:
        """Whether something else than the last decision is to be tried: a look at no drafts, or a probe."""
        return self._unlooked <= 1 if self._now else self._left <= 1 and self._debt <= 0

    def _wait(self, sequences: int) -> None:
        """Verify no drafts until it is known what those of this step come to, if that will tell something: of few
        sequences it is chance.
        """
        self._waits = self.lag if sequences >= CROWD else 0

    def _pays_without_hope(self, agree: NDArray[Any], untried: NDArray[Any], costs: dict[int, float]) -> bool:
        """Whether there are drafts that pay even if those of new requests are no better than others' were."""
        rates = _rates(np.where(untried[:, None], self._agree[-1], agree), costs)
        return max(rates.values()) > MARGIN * rates[0]

    def _room(self, sequences: int, left: int) -> int:
        """How many drafts a step of so many sequences has room for."""
        return min(self.most, left // sequences, max(0, self.rows // sequences - 1))

    def _looks_without(self, size: int, best: int) -> bool:
        """Whether this step has no drafts although they pay, and the next ones neither, to see how long they take now.

        What they took before is forgotten, or it would take as many looks as an average has weight to learn that texts
        and contexts are others. So is what other numbers took: it is as old, and each may be tried again.
        """
        self._unlooked -= 1
        if self._unlooked > 0:
            return False
        self._looks = min(2 * self._looks, RAREST_LOOK)
        self._unlooked, self._higher = self._looks, LOOKED
        self._forget(size, {*self.choices} - {best})
        self._timed[size, 0] = FIRST - LOOKED
        return True

    def _worth_a_look(self, size: int, best: int, most: int, agree: NDArray[Any], cost: float) -> int:
        """After a look at steps without drafts, for as many: the larger number that could bring the most, or `best`.
        cost: of a step with the best number.

        A step's time rises less and less with its drafts, so a line through what is known makes larger numbers look too
        slow, and how often their drafts stand is only learned from them. So it is hoped that drafts beyond the best
        number stand as often as those up to it, and take next to nothing.
        """
        if not self._higher:
            return best
        self._higher -= 1

        def hoped(drafts: int) -> float:
            beyond = agree[:, best - 1 : best] ** (np.arange(best + 1, drafts + 1) / best)
            seconds = self._seconds.get((size, drafts), cost * (1 + GUESS * (drafts - best)))
            return (len(agree) + float(agree[:, :best].sum() + beyond.sum())) / seconds

        more = max((each for each in self.choices if best <= each <= most), key=hoped)
        return more if hoped(more) > HOPE * hoped(best) else best

    def _probes(self, size: int, sequences: int) -> bool:
        """Whether this step is one of a probe. One begins when patience is over, which then is twice as long.

        Others follow as long as drafts stand. It measures its own number of drafts. What larger numbers took is
        forgotten, or one slow step would bar them.
        """
        if self._run:
            self._run -= 1
            if not self._run:  # its drafts have stood to the end
                self._patience = self._left = PATIENCE
            return True
        self._left -= 1
        if self._left > 0 or self._debt > 0:
            return False
        self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._left, self._run = self._patience, RUN - 1
        self._wait(sequences)
        self._probed = 1 if self._probed == PROBE else PROBE
        self._forget(size, {drafts for drafts in self.choices if drafts > self._probed})
        return True

    def _forget(self, size: int, numbers: set[int]) -> None:
        for drafts in numbers:
            self._seconds.pop((size, drafts), None)
            del self._timed[size, drafts]

    def _decide(self, drafts: int, why: str) -> int:
        self._now, self._why = drafts, why
        return drafts

    def _costs(self, size: int, most: int) -> dict[int, float]:
        """Seconds of a step with each number of drafts up to `most`: measured, or guessed from the nearest ones that
        were. Without drafts it always was.
        """
        measured = {each: self._seconds[size, each] for each in self.choices if (size, each) in self._seconds}
        known = [*measured]
        rises = [(measured[more] - measured[less]) / (more - less) for less, more in pairwise(known)]
        rises.append(max([GUESS * measured[known[-1]], *rises[-1:]]))  # beyond the last
        costs, place = {}, -1
        for each in self.choices:
            if each > most:
                break
            place += each in measured
            costs[each] = measured[known[place]] + rises[place] * (each - known[place])
        return costs

    # -- a step is done ------------------------------------------------------------------------------------------------

    def learn(self, decodes: Decodes, tokens: Column, ended: list[int]) -> None:
        """Take in what a step's drafts came to. tokens: as in `Sampled.decoded`; the step may have verified fewer than
        its plan allowed. ended: rows that say nothing.
        """
        if tokens.shape[1] == 1:  # as in most steps, where drafts do not pay: nothing is learned but that it was one
            self._steps, self._tokens = self._steps + len(tokens) - len(ended), self._tokens + len(tokens) - len(ended)
            self._brought = 1.0
            return
        slots = decodes.slots
        if ended:
            goes_on = np.ones(len(slots), bool)
            goes_on[ended] = False
            slots, tokens = slots[goes_on], tokens[goes_on]
            if not len(tokens):
                return
        count, standing = len(tokens), np.count_nonzero(tokens >= 0, axis=0).tolist()  # by position
        brought = sum(standing)
        self._steps, self._tokens, self._brought = self._steps + count, self._tokens + brought, brought / count
        if standing[1] < PRIOR * count:
            self._run = 0  # a probe has seen enough
        self._drafted[: tokens.shape[1] - 1] += np.count_nonzero(tokens[:, 1:] != UNDRAFTED, axis=0)
        self._accepted[: tokens.shape[1] - 1] += standing[1:]
        self._observed.append((slots, tokens))
        if len(self._observed) > KEEP:
            self._take_in()

    def _take_in(self) -> None:
        """Learn from the steps that were observed: of the same sequences at once, which takes as long as of one."""
        observed, self._observed = self._observed, []
        for (drafts, _), steps in groupby(observed, lambda step: (step[1].shape[1] - 1, step[0].tobytes())):
            each = list(steps)
            self._learn_from(each[0][0], np.stack([tokens[:, 1:] for _, tokens in each]), drafts)

    def _learn_from(self, slots: Column, tokens: NDArray[Any], drafts: int) -> None:
        """tokens: [S, B, drafts], of S steps of these sequences."""
        stood, steps = tokens >= 0, len(tokens)
        rows, agreed = np.append(slots, len(self._agree) - 1), stood.mean(axis=0)
        agreed = np.concatenate([agreed, agreed.mean(axis=0, keepdims=True)])
        self._seen[rows] += steps
        rate = np.maximum(1 - (1 - OWN) ** steps, steps / self._seen[rows])[:, None]
        self._agree[rows] = _moved(self._agree[rows], agreed, rate, steps)
        if (untried := self._untried[slots]).any():  # together, or each would be tried for long
            new, others = slots[untried], 1 - 1 / np.count_nonzero(untried)
            shown = np.broadcast_to(agreed[:-1][untried].mean(axis=0), (len(new), drafts))
            self._agree[new] = _moved(self._agree[new], shown, np.full((len(new), 1), others), steps)
            self._untried[new] = False

    def took(self, sequences: int, drafts: int, seconds: float, usual: bool = True) -> None:
        """The step that was learned from, nothing but so many decodes with so many drafts each, took so long.

        usual: as in `Sampled`.
        """
        key, plain = (sequences.bit_length(), drafts), self._seconds.get((sequences.bit_length(), 0), seconds)
        first = key not in self._seconds  # it may have compiled something
        if not drafts:
            self._debt = max(min(self._debt, 0.0), self._debt - SHARE * seconds)
        elif not first or not usual:
            loss = min(seconds - plain * self._brought, plain * LARGEST_LOSS)
            self._debt = max(min(self._debt, -CREDIT * plain), self._debt + loss)
        if not usual:
            return
        if drafts and not first and seconds > plain * (1 + drafts):
            self._run = 0  # it could not pay if all drafts stood
        self._timed[key] += 1
        known = self._seconds.get(key, seconds)
        if self._timed[key] <= FIRST:
            self._seconds[key] = min(known, seconds)
        else:
            self._seconds[key] = known + NEW * (min(seconds, LARGEST_RISE * known) - known)

    # -- what there is -------------------------------------------------------------------------------------------------

    def stats(self) -> Speculation:
        """What drafts have come to so far. Changes nothing: it is asked for at any time."""
        return Speculation(
            drafts=self._now,
            why=self._why,
            steps=self._steps,
            tokens=self._tokens,
            drafted=tuple(self._drafted.tolist()),
            accepted=tuple(self._accepted.tolist()),
        )


def _rates(agree: NDArray[Any], costs: dict[int, float]) -> dict[int, float]:
    """Tokens per second by number of drafts. agree: [B, most]; costs: seconds of a step."""
    tokens = [len(agree), *(len(agree) + agree.sum(axis=0).cumsum()).tolist()]
    return {each: tokens[each] / seconds for each, seconds in costs.items()}


def _moved(averages: NDArray[Any], agreed: NDArray[Any], rate: NDArray[Any], steps: int) -> NDArray[Any]:
    """Averages [B, most], changed by what so many steps showed of their first positions, [B, drafts]; rate: how much
    each takes over.

    Positions beyond move slowly to what follows if each draft agrees as often as those tried did on average: else a
    text that begins to repeat itself would never be drafted further than it was tried.
    """
    drafts, most = agreed.shape[1], averages.shape[1]
    averages[:, :drafts] += rate * (agreed - averages[:, :drafts])
    if drafts < most:
        last, beyond = averages[:, drafts - 1 : drafts], averages[:, drafts:]
        beyond += (1 - (1 - SLOW) ** steps) * (last ** (np.arange(drafts + 1, most + 1) / drafts) - beyond)
        np.minimum(beyond, last, out=beyond)
    return averages
