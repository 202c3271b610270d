"""Recording engines at work: what is written down is what they did, and small enough to be committed."""

import json
from functools import cache
from itertools import pairwise

import pytest

from benchmarks.lessons import timeline
from gradus.bench.contenders.workbench import Workbench


@cache
def recordings():
    """Both scenes on all three engines, on a tiny model."""
    return timeline.record(Workbench.open("random:tiny-llama", "cpu", "float32"), timeline.QUICK)


def steps_of(engine: str, scene: str) -> list[dict]:
    (found,) = [one for one in recordings() if (one["engine"], one["scene"]) == (engine, scene)]
    return [dict(zip(found["fields"], step, strict=True)) for step in found["steps"]]


@pytest.mark.parametrize("engine", timeline.ENGINES)
def test_steps_come_one_after_the_other_and_only_overlap_has_two_under_way(engine):
    steps = steps_of(engine, "decodes")
    numbers = [step["number"] for step in steps]
    assert numbers == list(range(numbers[0], numbers[0] + len(steps)))
    assert {step["under_way"] for step in steps} <= ({0, 1} if engine == "final" else {0})
    assert any(step["under_way"] for step in steps) == (engine == "final")
    assert steps[0]["schedule"] == 0
    assert all(step["commit"] + step["wait"] <= step["commit_end"] + 0.2 for step in steps), "rounded to 0.1 µs"


@pytest.mark.parametrize("engine", timeline.ENGINES)
def test_a_scene_shows_what_it_says(engine):
    quiet, arriving = timeline.QUICK[1], timeline.QUICK[0]
    assert {(step["decodes"], step["prefills"]) for step in steps_of(engine, quiet.name)} == {(quiet.decodes, 0)}
    steps = steps_of(engine, arriving.name)
    (with_prompt,) = [step for step in steps if step["prefills"]]
    assert with_prompt["tokens"] == arriving.decodes + arriving.arrives
    assert steps[-1]["decodes"] == arriving.decodes + 1 and steps[0]["decodes"] == arriving.decodes


def test_a_step_is_a_line_and_the_whole_is_read_back():
    found = {"model": "m", "recordings": recordings()}
    text = timeline.written(found)
    assert json.loads(text) == json.loads(json.dumps(found))
    assert sum(len(one["steps"]) for one in recordings()) <= text.count("\n")


def test_the_scenes_of_a_gpu_stay_small_enough_to_be_committed():
    row = [1000, 1, 1, 64, 4064, 4064, 12345, 0, *[1234567.8] * 9]
    assert len(row) == len(timeline.FIELDS)
    steps = [[row] * (scene.before + scene.after) for scene in timeline.SCENES for _ in timeline.ENGINES]
    assert len(timeline.written({"steps": steps})) < timeline.MAX_BYTES - 4000


@pytest.mark.gpu
def test_on_a_gpu_steps_follow_each_other_there_and_kernels_take_part_of_them():
    bench = Workbench.open("random:tiny-llama", "cuda", "bfloat16")
    for found in timeline.record(bench, timeline.QUICK, ["final"]):
        steps = [dict(zip(found["fields"], step, strict=True)) for step in found["steps"]]
        for before, after in pairwise(steps):
            assert before["gpu"] < before["gpu_end"] <= after["gpu"] + 1
            assert before["gpu_end"] <= before["commit_end"] + 200, "µs: two clocks"
        assert found["kernels_us"] is None or found["kernels_us"] > 0
