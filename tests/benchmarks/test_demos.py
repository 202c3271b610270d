"""The recorded demos are today's demos, and count what the engines do."""

import json

import pytest

from benchmarks.lessons import demos as recorder
from gradus.bench.contenders.workbench import Workbench
from gradus.course.views import demos
from gradus.course.views.demos import DEMOS, RECORDING
from gradus.errors import ConfigError
from tests.pairwise import first

COUNTED = {figure.name for figure in (demos.ROWS, demos.STEPS, demos.PADDING, demos.AT_ONCE)}
"""Figures that follow from lengths alone, whatever the model and the clock."""
NOT_COUNTED = {"p06", "p11"}
"""Requests that arrive by the clock decide steps and rows in p06. p11's figures depend on the model's vocabulary."""


@pytest.fixture(scope="module")
def tiny():
    return Workbench.open("random:tiny-llama", "cpu", "float32")


@pytest.mark.parametrize("phase", DEMOS)
def test_a_recording_is_of_the_demo_as_it_is(phase):
    found = demos.recorded(phase)
    assert list(found.shown.series) == [DEMOS[phase].before, phase] and all(found.shown.series.values())
    assert [row[0] for row in found.shown.table] == [figure.name for figure in DEMOS[phase].figures]


@pytest.mark.parametrize("phase", first([phase for phase in DEMOS if phase not in NOT_COUNTED], count=2))
def test_a_recording_counts_what_the_engines_do_today(phase, tiny):
    now, then = demos.run(DEMOS[phase], tiny), demos.recorded(phase).shown
    assert [row for row in then.table if row[0] in COUNTED] == [row for row in now.table if row[0] in COUNTED]
    if DEMOS[phase].points is demos.places:
        assert then.series == now.series


def test_a_demo_that_has_changed_since_is_refused(tmp_path):
    found = json.loads(RECORDING.read_text(encoding="utf-8"))
    found["p04"]["asks"]["cache_tokens"] += 1
    (tmp_path / "demos.json").write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"the demo of p04 has changed: run python benchmarks/lessons/demos.py p04"):
        demos.recorded("p04", tmp_path / "demos.json")


def test_what_is_written_is_read_back():
    found = json.loads(RECORDING.read_text(encoding="utf-8"))
    assert recorder.written(found) == RECORDING.read_text(encoding="utf-8")
