"""The numbers in p07's figures and lesson follow from the code, or can be computed by hand."""

from itertools import pairwise

import pytest

from gradus.course.figures import quantization as drawn
from gradus.models.shapes import SHAPES
from phases.p07_quantization.benchmark import BYTES, bytes_per_weight
from tests.course.conftest import ROOT


def test_the_outlier_spoils_the_grid_of_its_own_group_alone():
    row = drawn.weights()
    assert row[drawn.PLACE] == max(map(abs, row)) == drawn.OUTLIER
    off = {}
    for group in (12, drawn.GROUPED):
        codes, back = drawn.kept(row, group)
        assert all(min(codes[at : at + group]) == 0 and max(codes[at : at + group]) == 15 for at in range(0, 12, group))
        off[group] = [abs(a - b) for a, b in zip(row, back, strict=True)]
    spoiled = drawn.PLACE // drawn.GROUPED * drawn.GROUPED
    assert max(off[drawn.GROUPED][:spoiled]) < 0.02 < max(off[12][:spoiled])


def test_with_one_row_a_step_takes_as_long_as_its_bytes_and_with_many_as_its_arithmetic():
    one = {name: drawn.floor_ms(name, 1) for name in drawn.STEPS}
    many = {name: drawn.floor_ms(name, drawn.MOST_ROWS) for name in drawn.STEPS}
    wide, narrow, both = drawn.STEPS
    assert one[wide] == pytest.approx(2.47 / 4.3, rel=0.01) and one[narrow] == pytest.approx(1.07 / 4.3, rel=0.01)
    assert many[wide] == many[narrow] > 1.5 * many[both]
    assert one[narrow] < one[both] < one[wide]


def test_the_bytes_that_the_lesson_names_are_those_of_the_benchmarks_prediction():
    lesson = (ROOT / "phases/p07_quantization/README.md").read_text(encoding="utf-8")
    config = SHAPES["smollm2-135m"]
    streamed = 134.5e6
    widths = 2.0, BYTES["int8"], BYTES["int4"]
    sizes = [round(streamed * bytes_per_weight(config, width, 2.0) / 1e6) for width in widths]
    assert f"{sizes[0]} MB, {sizes[1]} MB and {sizes[2]} MB" in lesson


def test_errors_that_are_handed_on_cancel():
    states, plain, before, after = drawn.columns_of_a_row()
    assert after < before / 2
    for column in range(drawn.COLUMNS):  # what was rounded stays, and the first is rounded as it would be alone
        assert all(state[column] == states[-1][column] for state in states[column + 1 :])
    assert states[-1][0] == plain[0] and states[-1] != plain


def test_each_bit_halves_the_error_and_better_ways_are_better_at_each():
    one_layer = drawn.part("one_layer")
    found = {bits: one_layer.errors(bits) for bits in (4, 5, 6)}
    for bits, errors in found.items():
        rows, groups, *better = errors.values()
        assert rows > groups > max(better), f"{bits} bits: {errors}"
    for name in one_layer.WAYS:
        assert 1.6 < found[4][name] / found[5][name] < 2.6 and 1.6 < found[5][name] / found[6][name] < 2.6


def test_the_search_has_a_best_point_between_its_ends():
    plain, tried = drawn.errors_by_ratio()
    best = min(tried)
    assert best < 0.9 * plain and best < min(tried[0], tried[-1])


def test_a_floats_points_are_dense_near_zero_and_a_grids_are_not():
    lines = drawn.lines_of_points()
    assert all(values[0] == 0 and values[-1] == pytest.approx(drawn.UP_TO) for values in lines.values())
    gaps = {name: [b - a for a, b in pairwise(values)] for name, values in lines.items()}
    assert max(gaps["int4"]) == pytest.approx(min(gaps["int4"]))
    assert max(gaps["E2M1"]) == 4 * min(gaps["E2M1"])
