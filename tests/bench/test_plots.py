"""What a figure writes on its axes."""

import re

import pytest

from gradus.bench.plots import Picture, Series, draw


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((0.8, 6.0), ["1", "2", "5"]),
        ((3.0, 90.0), ["5", "10", "20", "50"]),
        ((0.5, 5000.0), ["1", "10", "100", "1,000"]),
    ],
    ids=["within a decade", "within two", "over many"],
)
def test_a_log_axis_has_labels_enough_to_be_read(values, labels):
    series = Series("p10", (1, 2), values, values, values)
    svg = draw(Picture("lines", "t", "s", "batch", "ms", (series,), ((1, "a"), (2, "b")), scale="log"))
    written = re.findall(r">([\d.,]+)</text>", svg)
    assert [label for label in labels if label not in written] == []
    assert len(written) <= len(labels) + 2
