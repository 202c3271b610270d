"""The value of drafts: those that fill a shape, and the best choice, compared with all others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.scheduling import draft_gains
from gradus.scheduling.draft_gains import (
    LOSS,
    MARGIN,
    Offer,
    affordable,
    filled,
    gained,
    in_the_long_run,
    unpadded,
)
from gradus.scheduling.draft_shapes import DraftShape

EIGHT = DraftShape(7, 8)


def chances(*of_first: float, most: int = 7) -> list[list[float]]:
    """Chances of sequences whose drafts are accepted with these probabilities, if those before them are."""
    return [[chance**place for place in range(1, most + 1)] for chance in of_first]


def best_offer(ratios, some: list[list[float]], spares: list[float], found: list[float] | None = None) -> Offer | None:
    return draft_gains.best_offer(ratios, some, [np.cumsum(of).tolist() for of in some], spares, found)


def test_the_likeliest_drafts_fill_a_shape_and_those_needed_come_first():
    some = chances(0.9, 0.9, 0.2)
    assert filled(some, [0, 0, 0], EIGHT) == [4, 4, 0]
    assert filled(some, [0, 0, 2], EIGHT) == [3, 3, 2]
    assert filled(some, [0, 7, 1], EIGHT) == [0, 7, 1]


def test_nothing_is_filled_where_what_is_needed_has_no_room():
    assert filled(chances(0.9, 0.9), [5, 4], EIGHT) == [0, 0]
    assert filled(chances(0.9, 0.9), [4, 0], DraftShape(3, 8)) == [0, 0]


def test_a_draft_that_is_never_found_takes_no_row():
    assert filled(chances(0.9, 0.0), [0, 0], EIGHT) == [7, 0]


def test_in_the_long_run_a_step_at_nobodys_expense_counts_in_full_and_another_as_often_as_it_may_run():
    assert in_the_long_run(1.5, 1.2, 0.3) == 1.5
    assert in_the_long_run(1.5, 1.0 + LOSS, 0.0001) == 1.5, "every step may lose LOSS"
    assert in_the_long_run(1.5, 1 + 2 * LOSS, 0.0) == pytest.approx(1.25), "one step in two"


def test_of_many_that_copy_each_gets_what_it_needs():
    """16 rows for 16 sequences: the likeliest drafts are three or four of some, at the expense of the others."""
    some = chances(*np.linspace(0.85, 0.95, 16))
    ratios = {DraftShape(7, 16): 1.4}
    best = best_offer(ratios, some, [0.0] * 16, None)
    assert best is not None and best.drafts == [1] * 16 and min(best.gains) >= 0.4
    assert min(filled(some, [0] * 16, DraftShape(7, 16))) == 0


def test_those_that_cannot_gain_leave_their_rows_to_others():
    best = best_offer({EIGHT: 1.1}, chances(0.95, 0.95, 0.05, 0.05), [1.0] * 4, None)
    assert best is not None and best.drafts == [4, 4, 0, 0]


def test_a_sequence_that_is_behind_needs_more():
    some, ratios = chances(0.9, 0.9), {EIGHT: 2.0}
    even, behind = (best_offer(ratios, some, [0.0, spare], None) for spare in (0.0, -2.5))
    assert even is not None and even.drafts == [4, 4]
    assert behind is not None and behind.gains[1] >= 3.5 and behind.drafts == [3, 5]


def test_where_nothing_pays_there_is_no_offer():
    assert best_offer({EIGHT: 1.5}, chances(0.1, 0.1), [1.0, 1.0], None) is None


def test_steps_that_run_only_the_drafts_found_take_less_time():
    assert unpadded(2.0, EIGHT, [0.5, 1.0], [4, 4]) == 1 + 6 / 8
    found, padded = (best_offer({EIGHT: 5.0}, chances(0.9, 0.9), [9.0, 9.0], found) for found in ([0.2, 0.2], None))
    assert found is not None and found.ratio < 2 and padded is None


@given(data=st.data(), count=st.integers(1, 6))
def test_no_offer_is_better_than_the_best(data, count):
    """Whatever the bounds leave out is worth less: all shapes, filled in both ways, are compared here."""
    some = chances(*data.draw(st.lists(st.floats(0, 0.99), min_size=count, max_size=count)))
    spares = data.draw(st.lists(st.floats(-3, 3), min_size=count, max_size=count))
    shapes = [DraftShape(7, rows) for rows in (7, 14, 28)] + [DraftShape(3, rows) for rows in (3, 6)]
    ratios = {shape: data.draw(st.floats(1, 4)) for shape in shapes}
    sums, owed = [np.cumsum(of).tolist() for of in some], [min(spare, 0.0) for spare in spares]
    best = best_offer(ratios, some, spares, None)
    for shape, ratio in ratios.items():
        needed = [_fewest(of, ratio - 1 - debt) for of, debt in zip(sums, owed, strict=True)]
        for drafts in (filled(some, [0] * count, shape), filled(some, needed, shape)):
            gains = gained(sums, drafts)
            rate = (count + sum(gains)) / (count * ratio)
            if rate >= MARGIN * 1.000001:
                least = min(gain + debt for gain, debt in zip(gains, owed, strict=True))
                assert best is not None and best.value > in_the_long_run(rate, ratio, least) - 1e-9
    if best is not None:
        assert sum(best.drafts) <= best.shape.rows and max(best.drafts) <= best.shape.drafts
        assert best.rate >= MARGIN
        assert affordable([best.ratio] * count, best.gains, best.ratio)


def _fewest(sums: list[float], lack: float) -> int:
    return next((number for number, gain in enumerate(sums, 1) if gain >= lack), len(sums) + 1)
