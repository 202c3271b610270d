"""p10's recorded figure: drawn from any recording, and only where there is one."""

import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from benchmarks.lessons import timeline
from gradus.bench.contenders.workbench import Workbench
from gradus.course.drawing import FREE, KEPT, MARGIN, NEW, WASTE, WIDTH
from gradus.course.figures import every
from gradus.course.figures import timeline as drawn


@pytest.fixture(scope="module")
def cpu_file(tmp_path_factory):
    """A recording of a tiny model on the CPU."""
    found = {"recordings": timeline.record(Workbench.open("random:tiny-llama", "cpu", "float32"), timeline.QUICK[1:])}
    file = tmp_path_factory.mktemp("recording") / "timeline.json"
    file.write_text(timeline.written(found), encoding="utf-8")
    return file


@pytest.fixture
def gpu_file(tmp_path):
    """Write a timeline as a GPU would, in microseconds: a step's kernels take 900.

    p09: the host launches for 5000, and the GPU has the step as long. Without overlap, the host takes 200 and waits
    for the rest of 1000; with it, the GPU goes on without a pause.
    """

    def step(number, start, launching, gpu, gpu_end):
        times = start, start + 50, start + 50, start + launching, start + launching, gpu_end + 50
        return [number, 0, 0, 64, 64, 64, 500, 0, *times, max(0.0, gpu_end - start - launching), gpu, gpu_end]

    steps = {
        "p09": [step(i, 5150 * i, 5050, 5150 * i + 60, 5150 * i + 5060) for i in range(12)],
        "final-overlap": [step(i, 1200 * i, 150, 1200 * i + 100, 1200 * i + 1100) for i in range(12)],
        "final": [step(i, 1000 * i, 150, 1000 * i + 100, 1000 * i + 1100) for i in range(12)],
    }
    about = {"scene": "decodes", "kernels_us": 900.0, "fields": timeline.FIELDS}
    file = tmp_path / "timeline.json"
    file.write_text(json.dumps({"recordings": [about | {"engine": name, "steps": steps[name]} for name in steps]}))
    return file


def bars(drawing, kind, y=None) -> list[tuple[float, float]]:
    """Return the left and right of all rectangles of a kind, in a lane if its y is given, except the legend's."""
    found = []
    for shape in ElementTree.fromstring(drawing.svg()).iter("{http://www.w3.org/2000/svg}rect"):
        place = {name: float(shape.get(name)) for name in ("x", "y", "width", "height")}
        if shape.get("fill") == kind.fill and place["height"] == drawn.LANE and y in (None, place["y"]):
            found.append((place["x"], place["x"] + place["width"]))
    return found


@pytest.mark.parametrize("file", ["cpu_file", "gpu_file"])
def test_it_keeps_within_its_frame(file, request):
    drawing = drawn.steps(request.getfixturevalue(file))
    root = ElementTree.fromstring(drawing.svg())
    for shape in root.iter("{http://www.w3.org/2000/svg}rect"):
        right, bottom = (float(shape.get(a)) + float(shape.get(b)) for a, b in (("x", "width"), ("y", "height")))
        assert right <= WIDTH + MARGIN and bottom <= drawing.height + MARGIN
    for words in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(words.get("x")) <= WIDTH and float(words.get("y")) <= drawing.height


def test_without_a_gpu_the_host_is_all_there_is(cpu_file):
    drawing = drawn.steps(cpu_file)
    assert bars(drawing, KEPT) and not bars(drawing, NEW) and not bars(drawing, WASTE)


def test_its_title_says_what_the_recording_says(gpu_file):
    title = drawn.steps(gpu_file).title
    assert re.findall(r"([\d.]+) ms in ([^,]+)", title) == [
        ("5.15", "p09"),
        ("1.2", "final without overlap"),
        ("1", "final engine"),
    ]


def test_eight_steps_of_each_are_on_the_gpu_and_only_those_that_wait_for_launches_look_so(gpu_file):
    drawing = drawn.steps(gpu_file)
    lanes = [row * (drawn.GROUP + 12) + 59 for row in range(3)]
    assert len(bars(drawing, WASTE, lanes[0])) == drawn.SHOWN and not bars(drawing, NEW, lanes[0])
    assert len(bars(drawing, NEW, lanes[1])) == drawn.SHOWN
    assert len(bars(drawing, NEW, lanes[2])) == drawn.SHOWN + 1, "the step before is still there"


def test_overlap_leaves_the_gpu_no_pause(gpu_file):
    drawing = drawn.steps(gpu_file)

    def pauses(row: int) -> list[float]:
        lane = bars(drawing, NEW, row * (drawn.GROUP + 12) + 59)
        return [right[0] - left[1] for left, right in pairwise(lane)]

    assert max(pauses(2)) < 2.5 < 10 < min(pauses(1))


def test_the_host_waits_where_the_gpu_is_the_slower_one(gpu_file):
    drawing = drawn.steps(gpu_file)
    hosts = [row * (drawn.GROUP + 12) + 27 for row in range(3)]
    waits = [sum(right - left for left, right in bars(drawing, FREE, y)) for y in hosts]
    assert waits[0] < 10 and waits[1] > 500 and waits[2] > 500


def test_a_disturbed_step_is_not_among_those_that_are_shown(gpu_file):
    found = json.loads(gpu_file.read_text())
    (p09,) = [each for each in found["recordings"] if each["engine"] == "p09"]
    pause, times = 40_000, {"schedule", "schedule_end", "run", "run_end", "commit", "commit_end", "gpu", "gpu_end"}
    for step in p09["steps"][3:]:
        step[:] = [value + pause * (name in times) for name, value in zip(timeline.FIELDS, step, strict=True)]
    gpu_file.write_text(json.dumps(found))
    recorded = drawn.recorded(gpu_file)["p09"]
    assert recorded.period == 5150 and recorded.window[0] > pause


def test_kernels_are_counted_only_where_they_do_not_overlap(gpu_file):
    """A graph's may: their sum, 900 here, can exceed the step."""
    assert re.findall(r"kernels run ([\d.]+) ms of it", drawn.steps(gpu_file).svg()) == ["0.9"]


@pytest.mark.parametrize(("least", "step"), [(0.7, 1), (1, 1), (1.2, 2), (21, 50), (5001, 10000)])
def test_ticks_are_at_round_numbers(least, step):
    assert drawn.round_step(least) == step


def test_it_is_a_figure_of_the_course_where_there_is_a_recording(tmp_path):
    assert drawn.recorded(tmp_path / "timeline.json") == {}
    shown = any(figure.draw is drawn.steps for figure in every.FIGURES)
    assert shown == drawn.RECORDING.is_file()
