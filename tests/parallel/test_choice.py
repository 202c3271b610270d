"""Which sums go through inboxes: as many rows as are faster there, by the race that rank 0 runs."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.parallel.choice import FEWEST_ROWS, halved


@pytest.mark.parametrize(("faster_up_to", "found"), [(1000, 256), (256, 256), (200, 128), (FEWEST_ROWS, 16), (10, 0)])
def test_inboxes_take_as_many_rows_as_they_are_faster_for(faster_up_to, found):
    raced = []

    def race(rows: int) -> tuple[float, float]:
        raced.append(rows)
        return float(rows), float(faster_up_to)

    assert halved(256, race) == found
    assert raced == [rows for rows in (256, 128, 64, 32, 16) if rows >= max(found, FEWEST_ROWS)], "no race in vain"
