"""p13's figures of load show what was measured, and the page says of them what is true."""

import re
from itertools import pairwise

import pytest

from gradus.course.figures.serving import curve, load, loops, replicas, steps
from tests.course.conftest import ROOT

PAGE = (ROOT / "phases/p13_serving/load.md").read_text(encoding="utf-8")


def test_p99_bends_first_and_the_pace_has_a_ceiling():
    """The claims of "What we measured"."""
    late, half, pace = (dict(load.opened(*which)) for which in (("ttft", "p99"), ("ttft", "p50"), ("tpot", "mean")))
    formulas = load.predicted()
    knee, most = load.knee(), max(late)
    assert 0.3 < knee / formulas.capacity < 1 < most / formulas.capacity
    assert late[knee] <= load.LIMIT_MS < min(late[rate] for rate in late if rate > knee)
    assert late[most] > 4 * late[knee] and half[most] > 5 * half[knee]
    beyond = min(rate for rate in late if rate > knee)
    assert late[beyond] > 2 * late[knee] and beyond < 1.15 * knee, '"an eighth higher more than doubles p99"'
    assert max(pace.values()) < 1.25e3 * formulas.step(formulas.pace.slots)


def test_the_pace_is_foretold():
    formulas = load.predicted()
    for rate, found in load.opened("tpot", "mean"):
        assert 1e3 * formulas.tpot(rate) == pytest.approx(found, rel=0.35)


def test_a_closed_loop_reached_as_much_with_less_waiting():
    asked, waited = load.answered("open"), load.answered("closed")
    users = [row["users"] for row in load.recorded()["closed"]]
    full = dict(zip(users, waited, strict=True))[load.recorded()["slots"]]
    assert full[0] > 0.85 * max(rate for rate, _ in asked)
    assert full[1] < 0.5 * max(ms for _, ms in asked)


def test_chunks_of_the_long_prompt_make_the_longest_gap():
    found = load.recorded()["steps"]
    rows = found["steps"]
    lasting = [after[0] - before[0] for before, after in pairwise(rows)]
    mixed = [ms for row, ms in zip(rows, lasting, strict=False) if row[3]]
    alone = [ms for row, ms in zip(rows, lasting, strict=False) if not row[3]]
    assert min(mixed) > max(sorted(alone)[: len(alone) * 3 // 4])
    assert found["longest_gap"] == pytest.approx(max(mixed), rel=0.3)
    assert sum(row[3] for row in rows) >= 400


@pytest.mark.parametrize(("name", "draw"), [("curve", curve.curve), ("loops", loops.loops), ("steps", steps.steps),
                                            ("replicas", replicas.replicas)])  # fmt: skip
def test_each_figure_is_on_the_page(name, draw):
    assert re.search(rf"!\[[^]]+\]\(figures/{name}\.svg\)", PAGE) and draw().title
