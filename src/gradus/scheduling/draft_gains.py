"""The arithmetic of drafts: how likely they are accepted, and what a step with drafts is worth. No torch here.

A sequence has drafts in a share q of its steps, and each is accepted with probability p if those before it are. So its
i-th draft gains q p^i tokens. Both are averages in which older steps fade.

Times are multiples of a step without drafts: a step's time is a `ratio` of its time, and a `rate` is a multiple of its
tokens per second.
"""

import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradus.engine.plan import Column
from gradus.scheduling.draft_shapes import DraftShape
from gradus.scheduling.step_times import MEMORY

PRIOR, WEIGHT = 0.5, 3.0  # p before any draft was seen, and the number of drafts that the others' p counts for
CROWD_MEMORY = 1 / 64  # as MEMORY, for the p of all sequences together
FOUND_MEMORY = 1 / 4  # as MEMORY, for q: a text begins and ends copying within a few tokens
LOSS = 0.015  # the share of its steps by which a sequence may fall behind its pace without drafts
MARGIN = 1.02  # the least rate: a smaller gain is lost in the noise

Chances = list[list[float]]
"""Probabilities, by sequence, that its first, second, … draft is found and accepted."""

Ratios = Mapping[DraftShape, float]
"""The time of a step of each shape, with all its rows."""


class Acceptance:
    """Averages for `slots` sequences. A new one has `first_found` for its q, and for its p the average of all.

    found: q by slot: how likely the sequence has drafts in its next step, float64 [slots].
    news: what was observed since they were last brought up to date, int64 [4, slots]: steps with drafts, those in which
    one was found, tried drafts and accepted drafts.
    """

    def __init__(self, slots: int, first_found: float) -> None:
        self._first_found, self.found = first_found, np.full(slots, first_found)
        # by slot, with the mean of all in the last entry: p is accepted drafts per tried draft, both fading
        self._accepted, self._tried = np.zeros((2, slots + 1))
        self._accepted[-1], self._tried[-1] = PRIOR * WEIGHT, WEIGHT
        self.news = np.zeros((4, slots), np.int64)

    def reset(self, slots: list[int]) -> None:
        """Reset the averages of slots with new owners."""
        self._accepted[slots] = self._tried[slots] = 0.0
        self.found[slots], self.news[:, slots] = self._first_found, 0

    def observe(self, slots: Column, allowed: Column, drafted: Column, accepted: Column) -> None:
        """Record a step: the drafts of each slot that it had room for, those it verified, and those it accepted."""
        # drafts after the first rejected one do not count
        self.news[:, slots] += np.array([allowed > 0, drafted > 0, accepted + (accepted < drafted), accepted])

    def bring_up_to_date(self, slots: Column) -> None:
        """Add the news of several steps to these slots' averages: only a new choice needs them."""
        news = self.news[:, slots]
        self.news[:, slots] = 0
        steps, found, tried, accepted = news
        all_steps, all_found, all_tried, all_accepted = (news.sum(axis=1) / len(slots)).tolist()
        if not all_steps:
            return
        share, kept = found / np.maximum(steps, 1), (1 - MEMORY) ** found
        self.found[slots] = share + (1 - FOUND_MEMORY) ** steps * (self.found[slots] - share)
        self._tried[slots] = kept * self._tried[slots] + tried
        self._accepted[slots] = kept * self._accepted[slots] + accepted
        kept = (1 - CROWD_MEMORY) ** all_found
        self._tried[-1] = kept * self._tried[-1] + all_tried
        self._accepted[-1] = kept * self._accepted[-1] + all_accepted

    def chances(self, slots: Column, most: int) -> NDArray[Any]:
        """Estimate how likely each sequence's first, second, … draft is found and accepted: float64 [B, most]."""
        others = self._accepted[-1] / self._tried[-1]
        accepted = (self._accepted[slots] + WEIGHT * others) / (self._tried[slots] + WEIGHT)
        chances: NDArray[Any] = self.found[slots, None] * accepted[:, None] ** np.arange(1, most + 1)
        return chances


class Offer(NamedTuple):
    """A step with drafts, and the number of each sequence.

    rate: while it runs. value: in the long run, with the steps without drafts that pass until everyone can afford it.
    gains: the tokens expected from each sequence's drafts.
    """

    value: float
    rate: float
    shape: DraftShape
    ratio: float
    drafts: list[int]
    gains: list[float]


def best_offer(
    ratios: Ratios, chances: Chances, sums: Chances, spares: list[float], found: list[float] | None
) -> Offer | None:
    """Return the step with the most tokens per second in the long run. None where no drafts reach MARGIN.

    A shape is filled with the likeliest drafts. Where those come at the expense of some, though drafts of their own can
    make up for the longer step, it is also filled with what each sequence needs, and then with the likeliest of the
    others: of eight that copy, each gets a few drafts, instead of two of them all.

    sums: of the chances: the tokens that a sequence gains from one draft, two, and so on. spares: the steps that each
    may lose, or must regain. found: how likely each has drafts at all, where a step runs only the rows of drafts that
    were found; None where it runs all rows of its shape.
    """
    best: Offer | None = None
    owed = [min(spare, 0.0) for spare in spares]
    least = min([of[-1] + debt for of, debt in zip(sums, owed, strict=True)])
    for bound, shape, ratio in sorted(_bounds(ratios, chances, least, found), reverse=True):
        if best is not None and bound <= best.value:
            break
        offers = [_offer(sums, owed, shape, ratio, filled(chances, [0] * len(chances), shape))]
        if least >= ratio - 1 and not affordable(owed, offers[0].gains, ratio):
            needed = [bisect_left(of, ratio - 1 - debt) + 1 for of, debt in zip(sums, owed, strict=True)]
            offers.append(_offer(sums, owed, shape, ratio, filled(chances, needed, shape)))
        for offer in offers:
            if offer.rate >= MARGIN and (best is None or offer.value > best.value):
                best = offer
    return best


def _offer(sums: Chances, owed: list[float], shape: DraftShape, ratio: float, drafts: list[int]) -> Offer:
    gains = gained(sums, drafts)
    rate = (len(sums) + sum(gains)) / (len(sums) * ratio)
    value = in_the_long_run(rate, ratio, min(map(operator.add, gains, owed)))
    return Offer(value, rate, shape, ratio, drafts, gains)


def _bounds(
    ratios: Ratios, chances: Chances, least: float, found: list[float] | None
) -> Iterator[tuple[float, DraftShape, float]]:
    """Yield the most that each shape may be worth in the long run, and its ratio; no shape that stays below MARGIN.

    least: the fewest tokens that a sequence gains from all its drafts, less those it owes. Where steps run all rows,
    nothing is filled for this: a fast GPU would wait.
    """
    count = len(chances)
    sums = {most: [*accumulate(_ranked(of[:most] for of in chances))] for most in {shape.drafts for shape in ratios}}
    for shape, ratio in ratios.items():
        likeliest = sums[shape.drafts]
        if found is not None:
            ratio = unpadded(ratio, shape, found, filled(chances, [0] * count, shape))
        rate = (count + likeliest[min(shape.rows, len(likeliest)) - 1]) / (count * ratio)
        if rate >= MARGIN:
            yield in_the_long_run(rate, ratio, least), shape, ratio


def in_the_long_run(rate: float, ratio: float, least: float) -> float:
    """Return the average rate if such steps run only as often as everyone can afford, with plain steps between.

    least: the fewest tokens that a sequence gains from such a step, less those it owes.
    """
    lost = ratio - 1 - least
    return rate if lost <= LOSS else 1 + (rate - 1) * LOSS / lost


def unpadded(ratio: float, shape: DraftShape, found: Iterable[float], drafts: list[int]) -> float:
    """Estimate the ratio of a step that runs only the drafts that were found. ratio: with all rows of its shape."""
    return 1 + (ratio - 1) * sum(map(operator.mul, found, drafts)) / shape.rows


def affordable(spares: list[float], gains: list[float], ratio: float) -> bool:
    """Whether these gains, in a step that takes `ratio` times as long, put no sequence too far behind.

    spares: how many steps each sequence may still lose.
    """
    return min(map(operator.add, spares, gains)) >= ratio - 1


def gained(sums: Chances, drafts: Iterable[int]) -> list[float]:
    """Return the tokens expected from each sequence's drafts; sums: from one draft, two, and so on."""
    return [of[number - 1] if number else 0.0 for of, number in zip(sums, drafts, strict=True)]


def _ranked(chances: Iterable[list[float]]) -> list[float]:
    """List the chances of all sequences in falling order."""
    return sorted(chain.from_iterable(chances), reverse=True)


def filled(chances: Chances, needed: list[int], shape: DraftShape) -> list[int]:
    """Fill a shape with the drafts that each sequence needs, and with the likeliest of the others: the number of each
    sequence. None at all, if the shape has no room for those needed.

    Equal chances may fill more: the least likely sequences then have fewer.
    """
    left = shape.rows - sum(needed)
    if left < 0 or max(needed) > shape.drafts:
        return [0] * len(chances)
    others = [of[number : shape.drafts] for of, number in zip(chances, needed, strict=True)]
    ranked = _ranked(others)[:left]
    least = ranked[-1] if ranked else math.inf
    drafts = [number + sum([0 < chance >= least for chance in of]) for of, number in zip(others, needed, strict=True)]
    over = sum(drafts) - shape.rows
    for place in sorted(range(len(drafts)), key=lambda place: chances[place][0]) if over > 0 else ():
        less = min(over, drafts[place] - needed[place])
        drafts[place] -= less
        over -= less
    return drafts
