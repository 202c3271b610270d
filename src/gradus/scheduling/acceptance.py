"""Records of each sequence's drafts, and the probability that its next ones are accepted. No torch here.

A sequence has drafts in a share q of its steps, and each is accepted with probability p, if those before it are. So its
draft number i is found and accepted with probability q p^i. Both are averages in which older steps fade. A new request
is expected to be like the others.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradus.engine.plan import Column

PRIOR, WEIGHT = 0.5, 3.0  # p before any draft was seen, and the number of drafts that the others' p counts for
MEMORY = 1 / 16  # the share of a request's p that each further step with drafts replaces
FOUND_MEMORY = 1 / 4  # the same of its q: a text begins and ends copying within a few tokens
CROWD_MEMORY = 1 / 64  # the same of all requests together


class Acceptance:
    """Records of `slots` sequences. news: what was observed since they were last brought up to date, int64 [4, slots]:
    steps with drafts, those in which one was found, tried drafts and accepted drafts."""

    def __init__(self, slots: int) -> None:
        # by slot, with all requests together in the last entry: accepted drafts and tried drafts, both fading
        self._accepted, self._tried = np.full((2, slots + 1), 0.0)
        self._accepted[-1], self._tried[-1] = PRIOR * WEIGHT, WEIGHT
        self._found = np.ones(slots + 1)  # q
        self.news = np.zeros((4, slots), np.int64)

    def reset(self, slots: list[int], found: float | None = None) -> None:
        """Reset the records of slots with new owners. found: their q; by default, the average of all requests."""
        self._accepted[slots] = self._tried[slots] = 0.0
        self._found[slots] = self._found[-1] if found is None else found
        self.news[:, slots] = 0

    def observe(self, slots: Column, allowed: Column, drafted: Column, accepted: Column) -> None:
        """Record a step: the drafts of each slot that it had room for, those it verified, and those it accepted."""
        # drafts after the first rejected one do not count
        self.news[:, slots] += np.array([allowed > 0, drafted > 0, accepted + (accepted < drafted), accepted])

    def bring_up_to_date(self, slots: Column) -> None:
        """Add the news of several steps to these slots' records: only a new choice needs them."""
        news = self.news[:, slots]
        self.news[:, slots] = 0
        steps, found, tried, accepted = news
        all_steps, all_found, all_tried, all_accepted = news.sum(axis=1).tolist()
        if not all_steps:
            return
        share, kept, faded = found / np.maximum(steps, 1), (1 - FOUND_MEMORY) ** steps, (1 - MEMORY) ** found
        self._found[slots] = share + kept * (self._found[slots] - share)
        self._tried[slots] = faded * self._tried[slots] + tried
        self._accepted[slots] = faded * self._accepted[slots] + accepted
        kept, faded = ((1 - CROWD_MEMORY) ** (count / len(slots)) for count in (all_steps, all_found))
        self._found[-1] = all_found / all_steps + kept * (self._found[-1] - all_found / all_steps)
        self._tried[-1] = faded * self._tried[-1] + all_tried / len(slots)
        self._accepted[-1] = faded * self._accepted[-1] + all_accepted / len(slots)

    def found(self, slots: Column) -> NDArray[Any]:
        """Estimate how likely each sequence has drafts in its next step: float64 [B]."""
        return self._found[slots]

    def chances(self, slots: Column, most: int) -> NDArray[Any]:
        """Estimate how likely each sequence's first, second, … draft is found and accepted: float64 [B, most]."""
        others = self._accepted[-1] / self._tried[-1]
        accepted = (self._accepted[slots] + WEIGHT * others) / (self._tried[slots] + WEIGHT)
        chances: NDArray[Any] = self._found[slots, None] * accepted[:, None] ** np.arange(1, most + 1)
        return chances
