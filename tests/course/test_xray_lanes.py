"""The X-rays of p12 and p13: lanes, their questions, and the page that shows them."""

import json
import re
from functools import cache

import pytest

from gradus import phases
from gradus.course.xray.lanes import messages, ranks
from gradus.course.xray.lanes.recording import LaneRecording
from gradus.course.xray.lanes.way import recorded
from gradus.course.xray.page import page
from gradus.exercises.declaration import exercises_of, reference_of
from phases.p12_parallelism import demo
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture
from tests.course.conftest import ROOT
from tests.course.test_xray import Skeleton, pressed  # noqa: F401  # a page in a browser, as a fixture

NAMES = ("p12", "p13")


@cache
def recording(name: str) -> LaneRecording:
    return {"p12": ranks, "p13": messages}[name].record("random:tiny-llama")


def told(name: str) -> list[dict]:
    return [event for frame in recording(name).frames for event in frame["events"]]


@pytest.mark.parametrize("name", NAMES)
def test_frames_follow_each_other_and_end_with_their_act(name):
    acts = recording(name).acts
    for before, frame in zip([None, *recording(name).frames], recording(name).frames, strict=False):
        begins = 0 if before is None or before["act"] != frame["act"] else before["until"]
        assert frame["at"] == begins and frame["at"] <= frame["ends"] <= acts[frame["act"]].length
    for number, act in enumerate(acts):
        assert [frame for frame in recording(name).frames if frame["act"] == number][-1]["until"] == act.length


@pytest.mark.parametrize("name", NAMES)
def test_every_event_has_a_reason_and_leads_to_the_lesson_s_code(name):
    assert all(event["why"] for event in told(name) if event["kind"] != "way")
    for kind, place in recording(name).code.items():
        assert kind in {event["kind"] for event in told(name)}
        method = place["name"].rpartition(".")[2]
        lines = (ROOT / place["path"]).read_text(encoding="utf-8").splitlines()
        assert f"def {method}(" in lines[place["line"] - 1]


@pytest.mark.parametrize(("name", "least"), [("p12", 8), ("p13", 4)])
def test_questions_have_different_answers(name, least):
    questions = [frame["question"] for frame in recording(name).frames if frame["question"]]
    assert len(questions) >= least
    for question in questions:
        assert len(set(question["answers"])) == len(question["answers"]) > question["right"] and question["why"]


def test_two_recordings_of_ranks_are_the_same():
    assert ranks.record("random:tiny-llama") == recording("p12")


def test_each_way_of_the_demo_is_an_act_and_matrices_have_one_for_each_toll():
    names = [act.name for act in recording("p12").acts]
    (matrices, *_), *layers = demo.WAYS
    assert all(
        f"({toll})" in name and name.startswith(matrices) for toll, name in zip(demo.SHARES, names, strict=False)
    )
    assert [name.partition(", 2 requests")[0] for name in names[2:]] == [name for name, *_ in layers]


def test_a_step_of_ranks_that_share_matrices_is_an_exchange():
    frames = [frame for frame in recording("p12").frames if frame["act"] == 0]
    said = [event["text"] for frame in frames for event in frame["events"] if event["kind"] == "exchanges"]
    assert said == [
        "the ranks sum the embedding",
        *["the ranks add their summands"] * 2 * 4,
        "the ranks gather their scores",
    ]
    assert frames[-1]["rows"] == [[f"rank {rank}", "half of every matrix", "108,544", "10", "0"] for rank in range(2)]


def test_the_ranks_of_a_pipeline_wait_for_each_other_in_turn_and_hardly_with_two_micro_batches():
    asked = [frame["question"] for frame in recording("p12").frames if frame["act"] == 2 and frame["question"]]
    assert [question["answers"][question["right"]] for question in asked] == ["rank 0", "rank 1", "rank 0"]
    one, two = ([frame["rows"] for frame in recording("p12").frames if frame["act"] == act][-2] for act in (2, 3))
    waited = [[int(row[-1].replace(",", "")) for row in rows] for rows in (one, two)]
    assert waited[0][1] > 190_000 > 100_000 > waited[1][1], "rank 1 waits once, for its first rows"


def test_the_messages_are_those_that_the_lesson_prints():
    rows = [row for frame in recording("p13").frames for row in frame["rows"]]
    asked = next(float(row[0]) for row in rows if row[4] == "sends the request")
    lesson = (ROOT / "phases/p13_serving/README.md").read_text(encoding="utf-8")
    table = re.search(r"^ +ms  where .*?\n(.*?)```", lesson, re.DOTALL | re.MULTILINE)
    printed = [re.split(r"  +", line.strip()) for line in table[1].splitlines()]
    found = [[row[2], row[3].replace(" and ", ", "), row[4]] for row in rows if float(row[0]) >= asked]
    assert [line[1:] for line in printed] == found[: len(printed)]
    assert len(recorded()) > len(rows) >= 20


def test_an_arrow_goes_down_to_the_engine_and_up_to_a_client():
    (act,) = recording("p13").acts
    lanes = recording("p13").lanes
    found = {(lanes[arrow["from"]], lanes[arrow["to"]]) for arrow in act.arrows}
    assert found == {("Cy", "event loop"), ("event loop", "engine"), ("event loop", "Ann"), ("event loop", "Cy")}


# -- the page ----------------------------------------------------------------------------------------------------------


def test_every_kind_of_event_has_a_name_and_a_key_of_its_own():
    text = page([recording("p12").as_json()])
    kinds = re.findall(r'\["(\w+)", "[\w ]+", "(\w)"\]', text)
    assert len({key for _, key in kinds}) == len(kinds)
    assert {kind for kind, _ in kinds} == {event["kind"] for name in NAMES for event in told(name)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("query", "width"), [("?compact", 700), ("", 1280)])
def test_the_page_is_stepped_through_in_a_browser(name, query, width, pressed):  # noqa: F811
    script = """
    const place = (selector) => document.querySelector(selector).getBoundingClientRect();
    note(shown("[data-part]").map((one) => one.dataset.part));
    note(document.documentElement.scrollWidth <= window.innerWidth);
    for (let step = 0; step <= last; step += 1) {
      go(step);
      const mark = place(".now"), box = place("[data-part=timeline] .scroll");
      const newest = document.querySelector(".newest");
      if (mark.left < box.left || mark.right > box.right + 1) note(`step ${now}: the mark is at ${mark.left}`);
      if (COMPACT && (mark.bottom > 400 || place("[data-part=events]").top > 465)) note(`step ${now}: too low`);
      if (COMPACT && document.querySelector(".log").scrollWidth > document.querySelector(".log").clientWidth + 1)
        note(`step ${now}: the table is cut off`);
      if (newest && place(".newest").bottom > place(".log").bottom + 1) note(`step ${now}: the newest row is hidden`);
    }
    note(where());
    """
    found = pressed(page([recording(name).as_json()]), script, query, width=width)
    assert found == [
        ["timeline", "events", "table"],
        True,
        f"step {len(recording(name).frames)} of {len(recording(name).frames)}",
    ]


def test_predicting_hides_what_comes_next_and_asks(pressed):  # noqa: F811
    script = """
    go(0); document.getElementById("predict").click();
    note(Number(document.querySelector(".cover").getAttribute("x")) < 200);
    key("ArrowRight"); note(text("#question")); key("3"); note(text("#question")); note(where());
    """
    hidden, asked, answer, where = pressed(page([recording("p12").as_json()]), script)
    assert hidden and where == "step 2 of 20"
    assert asked.startswith("Step 2: Both ranks read half of layer 0's attention. What do they exchange then?")
    assert answer.startswith("Right: a summand of the output product. Each has a row of full width")


def test_no_card_of_two_runs_lies_under_another(pressed):  # noqa: F811
    from tests.course.test_xray import recording as of_engine

    script = """
    const cards = shown("[data-part]").map((one) => [one.dataset.part, one.getBoundingClientRect()]);
    const apart = (a, b) => Math.max(a.left, b.left) > Math.min(a.right, b.right) - 1 ||
      Math.max(a.top, b.top) > Math.min(a.bottom, b.bottom) - 1;
    const pairs = cards.flatMap((one, i) => cards.slice(i + 1).map((other) => [one, other]));
    note(pairs.filter(([[, a], [, b]]) => !apart(a, b)).map(([[one], [other]]) => `${one} and ${other}`));
    note(cards.length);
    """
    both = [of_engine(name, "p11").as_json() for name in ("p11", "final")]
    overlapping, count = pressed(page(both), script, width=1440)
    assert overlapping == [] and count > 16


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_command_writes_the_page(name, gradus, tmp_path):  # noqa: F811
    file = tmp_path / "page.html"
    done = gradus("xray", name, "--out", str(file))
    assert done.code == 0 and done.out.strip() == str(file), done.err
    (found,) = json.loads(Skeleton(file.read_text(encoding="utf-8")).data)
    assert found["title"].startswith(f"{name}: ") and len(file.read_text(encoding="utf-8")) < 100_000


def test_a_student_s_ranks_and_messages_are_shown(gradus, tmp_path):  # noqa: F811
    for name, file_name in (("p12", "linear.py"), ("p13", "admission.py")):
        info = phases.find(name)
        exercise = next(each for each in exercises_of(info) if each.file_name == file_name)
        (tmp_path / file_name).write_text(reference_of(info, exercise), encoding="utf-8")
        file = tmp_path / f"{name}.html"
        done = gradus("xray", name, "--impl", str(tmp_path / file_name), "--out", str(file))
        assert done.code == 0 and f"your {name}: {file_name}" in done.err, done.err
        (found,) = json.loads(Skeleton(file.read_text(encoding="utf-8")).data)
        assert found["title"].startswith(f"your {name}: ")
        if name == "p12":
            assert found["code"]["exchanges"]["path"] is None and "linear.py" in found["code"]["exchanges"]["name"]
        else:
            assert found["settings"] == {"run": "just now"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["p13", "p12"], "p13 has no engine to show next to another: leave the second run out"),
        (["p12", "--page-size", "4"], "--page-size does nothing in p12, whose page shows the lesson's own requests"),
        (["p13", "--model", "random:tiny-llama"], "the page of p13 shows the lesson's recorded run"),
        (["p12", "--model", "random:tiny-olmo2"], "the heads of olmo2 share a norm, so p12 can divide only its layers"),
    ],
)
def test_what_these_pages_cannot_show_is_one_line(gradus, arguments, complaint, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    done = gradus("xray", *arguments)
    complaints = [line for line in done.err.splitlines() if not line.startswith("… ")]  # a slow host shows progress
    assert done.code == 2 and len(complaints) == 1 and complaint in complaints[0]
    assert not list(tmp_path.iterdir())
