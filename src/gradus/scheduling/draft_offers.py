"""The value of steps with drafts: the drafts that fill a shape, their gain, and the loss that each sequence can afford.

Everything is a multiple of a step without drafts: a step's time is a `ratio` of its time, and a `rate` one of its
tokens per second. No torch here.
"""

import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import NamedTuple

from gradus.scheduling.draft_shapes import DraftShape

LOSS = 0.015  # the share of its steps by which a sequence may fall behind its pace without drafts
MARGIN = 1.02  # the least rate: a smaller gain is lost in the noise

Chances = list[list[float]]
"""Probabilities, by sequence, that its first, second, … draft is found and accepted."""

Ratios = Mapping[DraftShape, float]
"""The time of a step of each shape, with all its rows."""


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
    """Return the steps with the most tokens per second in the long run. None where no drafts reach MARGIN.

    A shape is filled with the likeliest drafts. Where those come at the expense of some, though drafts of their own can
    make up for the longer step, it is also filled with what each sequence needs, and then with the likeliest of the
    others: of eight that copy, each gets a few drafts, instead of two of them all.

    sums: of the chances: the tokens that a sequence gains from one draft, two, and so on. spares: how many steps each
    sequence may still lose. found: how likely each has drafts at all, where a step runs only the rows of drafts
    that were found; None where it runs all rows of its shape.
    """
    best: Offer | None = None
    owed = [min(spare, 0.0) for spare in spares]
    least = min([of[-1] + debt for of, debt in zip(sums, owed, strict=True)])
    for bound, shape, ratio in sorted(_bounds(ratios, chances, least, found), reverse=True):
        if best is not None and bound <= best.value:
            break
        offer = _offer(sums, owed, shape, ratio, filled(chances, [0] * len(chances), shape))
        best = _better(best, offer)
        if least >= ratio - 1 and not affordable(owed, offer.gains, ratio):
            needed = [bisect_left(of, ratio - 1 - debt) + 1 for of, debt in zip(sums, owed, strict=True)]
            best = _better(best, _offer(sums, owed, shape, ratio, filled(chances, needed, shape)))
    return best


def _offer(sums: Chances, owed: list[float], shape: DraftShape, ratio: float, drafts: list[int]) -> Offer:
    gains = gained(sums, drafts)
    rate = (len(sums) + sum(gains)) / (len(sums) * ratio)
    value = in_the_long_run(rate, ratio, min(map(operator.add, gains, owed)))
    return Offer(value, rate, shape, ratio, drafts, gains)


def _better(best: Offer | None, other: Offer) -> Offer | None:
    return other if other.rate >= MARGIN and (best is None or other.value > best.value) else best


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
    """Whether these gains, in a step that takes `ratio` times as long, put no sequence too far behind."""
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
