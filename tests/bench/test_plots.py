"""The labels on a figure's axes."""

import re

import pytest

from gradus.bench.record.plots import Picture, Series, draw


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((524.0, 977.0), ["600", "700", "800", "900", "1,000"]),
        ((0.8, 6.0), ["1", "2", "5"]),
        ((3.0, 90.0), ["5", "10", "20", "50"]),
        ((3.0, 900.0), ["3", "10", "30", "100", "300"]),
        ((0.5, 5000.0), ["1", "10", "100", "1,000"]),
    ],
    ids=["hardly apart", "within a decade", "within two", "within three", "over many"],
)
def test_a_log_axis_has_labels_enough_to_be_read(values, labels):
    series = Series("p10", (1, 2), values, values, values)
    svg = draw(Picture("lines", "t", "s", "batch", "ms", (series,), ((1, "a"), (2, "b")), scale="log"))
    written = re.findall(r">([\d.,]+)</text>", svg)
    assert [label for label in labels if label not in written] == []
    assert len(written) <= len(labels) + 2


def test_panels_show_each_metric_in_a_panel_of_its_own_and_each_value_beside_its_dot():
    rates = Series("tok/s (more is better)", (0, 1), (4.0, 64.0), (4.0, 60.0), (4.0, 70.0))
    waits = Series("TTFT ms (less is better)", (0, 1), (9000.0, 1375.0), (9000.0, 1300.0), (9000.0, 1400.0))
    svg = draw(Picture("panels", "t", "s", "", "", (rates, waits), ((0, "p00 Baseline"), (1, "p03")), scale="log"))
    written = re.findall(r">([^<>]+)</text>", svg)
    assert {"4", "64", "9,000", "1,375", "p00 Baseline", "p03", "tok/s", "TTFT ms"} <= set(written)


def test_the_names_of_lines_stand_at_their_ends_and_not_in_a_legend():
    series = [Series(name, (1, 2), (1.0, end), (1.0, end), (1.0, end)) for name, end in (("p03", 9.0), ("p04", 8.9))]
    svg = draw(Picture("lines", "t", "s", "batch", "ms", tuple(series), ((1, "a"), (2, "b")), scale="log"))
    assert "legend" not in svg
    places = [float(y) for y in re.findall(r'<text [^>]*?(?:y="|translate\([\d.]+ )([\d.]+)[^>]*>p0[34]</text>', svg)]
    assert len(places) == 2 and abs(places[0] - places[1]) > 12
