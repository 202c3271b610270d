"""The X-ray: recordings tell what ran, the default scenes show their phase's idea, and the page holds all of it."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from gradus import phases
from gradus.bench.contenders.workbench import Workbench
from gradus.cli.commands.xray import _lines
from gradus.config.options import FINAL
from gradus.course.printed import blocks
from gradus.course.xray import runs
from gradus.course.xray.choices import Choice
from gradus.course.xray.page import page
from gradus.course.xray.reasons import Bounds, Reasons, walk
from gradus.course.xray.recording import Arrival, Recording, record, request
from gradus.course.xray.scenes import SCENES
from gradus.engine.request import ModelLimits
from gradus.exercises.declaration import exercises_of, reference_of
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture
from tests.course.conftest import ROOT
from tests.phases.conftest import CONTENDERS

MOST_BYTES = 300_000

SHOWS = {
    "p00": {"admission", "ending"},
    "p01": {"admission", "ending"},
    "p02": {"padding"},
    "p03": {"admission", "ending"},
    "p04": {"preemption"},
    "p05": {"hit", "split", "eviction"},
    "p06": {"chunk"},
    "p07": {"chunk"},
    "p08": {"drafts"},
    "p09": {"chunk"},
    "p10": {"vain", "chunk"},
    "p11": {"vain", "chunk"},
    "p14": {"chunk"},
    FINAL: {"hit", "chunk", "split", "eviction", "drafts", "grammar"},
}


@cache
def bench(scene: str = "p00") -> Workbench:
    return Workbench.open(runs.scene_of(scene).model or runs.RANDOM, "cpu", "float32")


def work(scene: str) -> runs.Work:
    return runs.work_of(runs.scene_of(scene), bench().checkpoint.tokenizer, {})


@cache
def recording(name: str, scene: str | None = None) -> Recording:
    return runs.run(name, bench(scene or name), work(scene or name))


@cache
def tiered() -> Recording:
    """p05 over host memory."""
    return runs.run("p05", bench(), runs.work_of(runs.scene_of("p05", tiers=True), bench().checkpoint.tokenizer, {}))


def events(recorded: Recording) -> list[tuple[str, str]]:
    return [said for frame in recorded.frames for said in told(frame)]


def told(frame: dict) -> list[tuple[str, str]]:
    return [(event["kind"], event["text"]) for event in frame["events"]]


def why(name: str, step: int, kind: str, begins: str = "") -> str:
    """The reason of a step's event of a kind, whose text begins so."""
    told = [event for event in recording(name).frames[step - 1]["events"] if event["kind"] == kind]
    return next(event["why"] for event in told if event["text"].startswith(begins))


# -- recordings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_scene_shows_its_phase_s_idea_within_forty_steps(name):
    recorded = recording(name)
    assert {kind for kind, _ in events(recorded)} >= SHOWS[name]
    assert len(recorded.frames) <= 40 and not recorded.cut


@pytest.mark.parametrize("name", CONTENDERS)
def test_recording_changes_no_token(name):
    asked, its_bench = work(name), bench(name)
    limits = ModelLimits(its_bench.model.config.vocab_size, asked.longest + 1, ())
    for arrival in asked.arrivals:
        told = [token for frame in recording(name).frames for token in frame["outputs"].get(arrival.name, ())]
        engine, its = "p00", limits
        if arrival.structured is not None:  # the first engine that keeps to it, and the end that it is given there
            engine, its = "p11", replace(limits, eos_token_ids=its_bench.model.config.eos_token_ids)
        options = replace(runs.options_of(engine, its, {}), vocabulary=its_bench.checkpoint.vocabulary)
        alone = runs.build(engine, its_bench, options)
        alone.submit(request(arrival, alone.limits))
        expected: list[int] = []
        while alone.has_work:
            expected += [token for output in alone.step() for token in output.tokens]
        if name == "p07":  # its weights are rounded
            assert len(told) == arrival.output
        else:
            assert told == (expected if arrival.cancelled is None else expected[: len(told)])


def test_each_row_of_a_step_shows_the_experts_that_it_takes():
    for frame in recording("p14").frames:
        if frame["plan"] is None:
            assert frame["experts"] is None
            continue
        seen = frame["experts"]
        assert (seen["layer"], seen["count"], len(seen["rows"])) == (0, 8, frame["rows"])
        assert all(len(set(row)) == 2 and row == sorted(row) and row[0] >= 0 and row[1] < 8 for row in seen["rows"])
    assert any(frame["rows"] == 1 for frame in recording("p14").frames), "a sequence decodes alone"
    assert all(frame["experts"] is None for frame in recording("p06").frames), "a dense model has none to show"


def test_each_masked_draw_says_what_it_could_choose_from():
    draws, words = masks("p11", "Cy"), recording("p11").words
    assert [words[draw["drawn"]] for draw in draws[:2]] == ["N", "o"]
    assert [draw["legal"] for draw in draws[:3]] == [2, 1, 1]  # Y or N, then a letter, then the end
    assert all(0 < draw["probability"] < 0.5 and draw["freely"] != draw["drawn"] for draw in draws)
    for draw in draws:
        likeliest, probability = draw["removed"][0]
        assert likeliest == draw["freely"] and 0 < probability < 1 and draw["drawn"] not in dict(draw["removed"])
        assert draw["drawn"] == draw["likeliest"][0] and len(draw["likeliest"]) == draw["legal"]
    assert not masks("p11", "Ann") and masks("p11", "Ben")


def masks(name: str, of: str, scene: str | None = None) -> list[dict]:
    """The masked draws of one sequence, in their order."""
    return [draw for frame in recording(name, scene).frames for draw in frame["masks"] if draw["id"] == of]


def test_the_final_engine_s_masks_are_those_of_p11():
    """Both follow the same forms; the final engine verifies what they force, so it needs fewer steps."""
    for of in ("Cy", "Ben"):
        ours, lessons = masks(FINAL, of, "p11"), masks("p11", of)
        assert ours[: len(lessons)] == lessons[: len(ours)]
    frames = recording(FINAL, "p11").frames
    assert len(frames) < len(recording("p11").frames)
    verified = {span["id"] for frame in frames for span in frame["spans"] if span["kind"] == "verify"}
    assert {"Cy", "Ben"} <= verified


def test_a_step_says_what_a_grammar_forced_and_which_drafts_it_cut():
    frames = recording(FINAL).frames
    forced = [frame for frame in frames if frame["drafts"].get("Ben 3", {}).get("forced")]
    assert bytes(forced[0]["drafts"]["Ben 3"]["forced"]).decode() == '"yea'
    for frame in forced:
        (span,) = (span for span in frame["spans"] if span["id"] == "Ben 3")
        rows = [draw for draw in frame["masks"] if draw["id"] == "Ben 3"]
        drafts = span["tokens"][1:]
        assert drafts == frame["drafts"]["Ben 3"]["forced"][: len(drafts)] and len(rows) == 1 + len(drafts)
        assert [row["drawn"] for row in rows[: len(drafts)]] == drafts, "they are accepted for certain"
        assert all(row["legal"] == 1 for row in rows[: len(drafts)])
    (cut, *_) = (frame for frame in frames if ("grammar", "1 of 4 drafts for Ben 3 is cut") in told(frame))
    drafts = cut["drafts"]["Ben 3"]
    assert bytes(drafts["proposed"]) == b"999}" and bytes(drafts["verified"]) == b"999"
    assert why(FINAL, cut["number"], "grammar") == "“}” may not come there"


def test_an_engine_that_is_not_watched_shows_its_draws_to_nobody(monkeypatch):
    asked = work("p11")
    limits = ModelLimits(bench().model.config.vocab_size, asked.longest + 1, (257,))
    options = runs.options_of(FINAL, limits, asked.settings, structured=True)
    engine = runs.build(FINAL, bench(), options)
    record(engine, asked.arrivals, engine.limits)
    assert engine.runner.sampler.observer is None
    monkeypatch.setattr(Choice, "of", lambda *_: pytest.fail("computed for nobody"))
    again = replace(asked.arrivals[1], name="again")
    engine.submit(request(again, engine.limits))
    while engine.has_work:
        engine.step()


def test_an_engine_without_masks_runs_the_same_requests_freely():
    assert not any(frame["masks"] for frame in recording("p10", "p11").frames)
    assert recording("p10", "p11").frames[-1]["number"] >= recording("p11").frames[-1]["number"]


@pytest.mark.parametrize("name", [name for name in CONTENDERS if name >= "p04"])
def test_pages_tables_and_tree_of_a_frame_agree(name):
    for frame in recording(name).frames:
        held = {page for tables in frame["tables"].values() for table in tables for page in table}
        indexed = {page for node in walk(frame["tree"] or ()) for page in node["pages"]}
        counts = frame["pages"]
        assert counts["held"] == len(held) and counts["idle"] == len(indexed - held)
        assert counts["total"] == counts["held"] + counts["idle"] + counts["free"]


def printed(phase: str) -> dict[int, dict[str, tuple[int, int]]]:
    """The steps that a lesson's first printed run of its phase shows: by number, the span of each initial."""
    (lesson,) = ROOT.glob(f"phases/{phase}_*/README.md")
    (shown, *_) = (block.printed for block in blocks(lesson.read_text(encoding="utf-8")) if block.printed)
    lines = shown.split(f"{phase}\n")[-1].splitlines()
    span = re.compile(r"(\w+) \((\d+), (\d+)\)")
    return {
        int(line.split()[1]): {name[0].lower(): (int(start), int(count)) for name, start, count in span.findall(line)}
        for line in lines
    }


@pytest.mark.parametrize("phase", ["p00", "p01", "p02", "p03", "p04", "p05", "p06"])
def test_a_scene_is_the_run_that_the_lesson_prints(phase):
    frames = recording(phase).frames
    steps = printed(phase)
    assert len(steps) >= 4
    for number, spans in steps.items():
        assert spans == {
            span["id"][0].lower(): (span["start"], len(span["tokens"])) for span in frames[number - 1]["spans"]
        }


def test_two_recordings_make_the_same_page():
    once, again = (runs.run("p05", bench(), work("p05")).as_json() for _ in range(2))
    assert page([once]) == page([again])


def test_over_host_memory_pages_move_down_and_up_and_leave_for_good():
    frames = tiered().frames
    for before, frame in pairwise(frames):
        was, now = ([page["name"] for page in each["host"]] for each in (before, frame))
        gone, came = [name for name in was if name not in now], [name for name in now if name not in was]
        fetched = [len(event["pages"]) for event in frame["events"] if event["kind"] == "fetch"]
        lost = [int(event["text"].split()[0]) for event in frame["events"] if event["kind"] == "lost"]
        assert len(gone) == sum(fetched) + sum(lost), "a page that leaves host memory comes up, or is lost"
        assert now == [name for name in was if name in now] + came, "the newest are at the end"
        assert not came or "eviction" in {event["kind"] for event in frame["events"]}
        assert len(now) <= tiered().settings["host_pages"] == 4
    last = dict(told(frames[9]))
    assert last["eviction"] == "pages 3, 7 and 8 are evicted, to host memory"
    assert last["fetch"] == "Ben 2 gets 2 pages back from host memory: pages 6 and 8"
    whys = {event["kind"]: event["why"] for event in frames[9]["events"]}
    assert whys["fetch"] == "moved down in steps 7 and 8" and "computed for Ben" in whys["hit"]
    assert whys["lost"] == "it was full, and nothing else was unused for as long" and "split" not in whys
    assert tiered().code["fetch"]["path"] == tiered().code["lost"]["path"] == "phases/p05_prefix_cache/tiers.py"


def test_without_room_below_evicted_pages_are_gone():
    asked = runs.work_of(runs.scene_of("p05", tiers=True), bench().checkpoint.tokenizer, {"host_pages": 0})
    recorded = runs.run("p05", bench(), asked)
    assert {kind for kind, _ in events(recorded)}.isdisjoint({"fetch", "lost"})
    assert not any("host memory" in text for _, text in events(recorded))
    assert all(frame["host"] == [] for frame in recorded.frames) and recording("p05").frames[0]["host"] is None


def test_host_pages_are_for_p05_alone(gradus, tmp_path):  # noqa: F811
    file = tmp_path / "page.html"
    done = gradus("xray", "p05", "--host-pages", "4", "--out", str(file), *TINY)
    assert done.code == 0 and "over host memory" in file.read_text(encoding="utf-8")
    done = gradus("xray", "p06", "--host-pages", "4", "--out", str(file), *TINY)
    assert done.code == 2 and "--host-pages is for p05 alone, got p06: leave it out" in done.err


def test_a_student_s_second_tier_is_shown(gradus, tmp_path):  # noqa: F811
    source = (phases.find("p05").path / "tiers.py").read_text(encoding="utf-8")
    (tmp_path / "tiers.py").write_text(source, encoding="utf-8")
    file, impl = tmp_path / "page.html", ("--impl", str(tmp_path))
    done = gradus("xray", "p05", "--host-pages", "4", *impl, "--out", str(file), *TINY)
    assert done.code == 0 and "your p05: tiers.py; ours: radix.py, cache.py" in done.err
    assert "your p05: " in file.read_text(encoding="utf-8")
    done = gradus("xray", "p05", "p05", "--host-pages", "4", *impl, "--out", str(file), *TINY)
    assert done.code == 0 and file.read_text(encoding="utf-8").count('"host_pages":4') == 2
    done = gradus("xray", "p05", *impl, "--out", str(file), *TINY)
    assert done.code == 2 and "p05's engine runs nothing of tiers.py" in done.err


def test_padding_is_what_the_rows_hold_beside_the_tokens():
    first, *_ = recording("p02").frames
    assert first["rows"] == 3 * 9 and sum(len(span["tokens"]) for span in first["spans"]) == 3 + 9 + 2
    assert ("padding", "13 of 27 rows are padding") in events(recording("p02"))
    assert not [kind for kind, _ in events(recording("p03")) if kind == "padding"]


def test_a_slot_is_taken_over_in_the_step_after_its_sequence_ended():
    ended = {name: frame["number"] for frame in recording("p03").frames for name in frame["ended"]}
    started = {name: frame["number"] for frame in recording("p03").frames for name in frame["admitted"]}
    slots = {span["id"]: span["slot"] for frame in recording("p03").frames for span in frame["spans"]}
    assert slots["Cy"] == slots["Ben"] and started["Cy"] == ended["Ben"] + 1
    static = {name: frame["number"] for frame in recording("p02", "p03").frames for name in frame["admitted"]}
    assert started["Cy"] < static["Cy"]


def test_a_preempted_sequence_is_told_to_resume_with_what_it_had():
    told = events(recording("p04"))
    assert ("preemption", "Ben is preempted") in told and ("admission", "Ben resumes in slot 0") in told
    assert "its prompt and output so far are its prompt now" in why("p04", 12, "admission", "Ben ")
    frames = recording("p04").frames
    before = sum(len(frame["outputs"].get("Ben", ())) for frame in frames[:7])
    again = next(span for frame in frames[7:] for span in frame["spans"] if span["id"] == "Ben")
    assert again["kind"] == "prefill" and again["start"] == 0 and len(again["tokens"]) == 5 + before


def test_chunks_say_what_is_left_and_decodes_go_on_beside_them():
    frames = recording("p06").frames
    chunked = [
        frame for frame in frames if any(span["id"] == "Ben" and span["kind"] == "chunk" for span in frame["spans"])
    ]
    assert len(chunked) == 3
    for frame in chunked:
        assert [span["kind"] for span in frame["spans"] if span["id"] == "Ann"] == ["decode"]
        assert sum(len(span["tokens"]) for span in frame["spans"]) <= 8
    assert ("chunk", "Ben runs its last chunk, of 6 tokens") in events(recording("p06"))
    whole = max(len(span["tokens"]) for frame in recording("p05", "p06").frames for span in frame["spans"])
    assert whole == 20


def test_accepted_drafts_are_one_less_than_the_step_s_new_tokens():
    verified = [
        (span, frame["outputs"][span["id"]])
        for frame in recording("p08").frames
        for span in frame["spans"]
        if span["kind"] == "verify"
    ]
    assert any(span["accepted"] for span, _ in verified)
    assert any(span["accepted"] < len(span["tokens"]) - 1 for span, _ in verified)
    for span, new in verified:
        assert list(new[:-1]) == span["tokens"][1 : 1 + span["accepted"]] and len(new) == span["accepted"] + 1


def test_plans_made_ahead_are_in_flight_and_end_in_vain_where_their_sequence_was_cancelled():
    frames = recording("p10").frames
    assert frames[0]["committed"] is None and frames[0]["in_flight"] == [1]
    assert all(frame["committed"] == frame["plan"] - 1 for frame in frames[1:] if frame["plan"] is not None)
    assert any(token == -1 for frame in frames for span in frame["spans"] for token in span["tokens"])
    vain = next(frame for frame in frames if any(event["kind"] == "vain" for event in frame["events"]))
    assert vain["ended"] == {"Cy": "cancelled"}
    assert all(not frame["in_flight"] for frame in recording("p06").frames)


def test_a_phase_without_pages_gets_the_slots_that_fit_in_the_same_memory():
    beside = recording("p03", "p04")
    assert beside.settings == {"max_sequences": 24 // (runs.scene_of("p04").longest + 1)}
    assert all(frame["pages"] is None and frame["tree"] is None for frame in beside.frames)


def test_a_request_is_announced_for_the_step_in_which_it_comes_though_that_is_early():
    asked = (Arrival("a", (1, 2, 3), 2), Arrival("b", (4, 5), 2, at=30))  # a has long ended by then
    recorded = runs.run("p05", bench(), runs.Work("", asked, 5, {}))
    starts = next(frame["number"] for frame in recorded.frames if "b" in frame["admitted"])
    assert recorded.sequences[1]["at"] == starts < 30


def test_a_long_run_is_cut_and_says_so():
    cut = runs.run("p04", bench(), work("p04"), most=5)
    assert cut.cut and len(cut.frames) == 5 and cut.frames[-1]["running"]


def test_an_engine_that_fails_is_given_back_as_it_was():
    asked = work("p04")
    limits = ModelLimits(bench().model.config.vocab_size, asked.longest + 1, ())
    engine = runs.build("p04", bench(), runs.options_of("p04", limits, asked.settings))
    scheduler, runner = engine.scheduler, engine.runner
    runner.model = None  # its first step fails
    with pytest.raises(AttributeError):
        record(engine, asked.arrivals, limits)
    assert engine.scheduler is scheduler and engine.runner is runner and "schedule" not in vars(scheduler)


# -- why ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step", "kind", "begins", "reason"),
    [
        ("p00", 1, "waiting", "Cy", "Ann runs, and one sequence runs at a time"),
        ("p02", 3, "waiting", "d", "Ann and Ben of the batch before still run"),
        ("p02", 1, "padding", "", "the longest span, of Ben, has 9 tokens; Ann has 3 and Cy has 2"),
        ("p02", 4, "padding", "", "Ben and Cy have ended, and the batch keeps their rows"),
        ("p03", 4, "admission", "Cy", "the slot is free since Ben left it in step 3"),
        ("p03", 1, "waiting", "Cy", "Ann and Ben have both slots"),
        ("p04", 1, "waiting", "Cy", "it needs 1 page plus 2 for the running sequences to grow into, and 2 are free"),
        ("p04", 8, "preemption", "Ben", "Ann needs a page, none is left, and Ben came last"),
        ("p04", 9, "waiting", "Ben", "it needs 3 pages, and 2 are free"),
        ("p04", 9, "waiting", "Cy", "Ben came before it, and waits as well"),
        ("p05", 2, "hit", "Ben", "pages 1 and 2 hold the same 8, computed for Ann"),
        ("p05", 9, "split", "", "the text of Cy 2 differs from there on: page 10 follows page 6, too"),
        ("p05", 10, "eviction", "", "Ann 2 takes 7 pages, and 6 are free; page 3 was idle the longest, since step 3"),
        ("p06", 4, "chunk", "Ben", "the step's budget of 8 has 7 left after 1 decode"),
        ("p06", 3, "waiting", "Cy", "the step's budget of 8 tokens is used up"),
        ("p10", 7, "vain", "Cy", "plan 6 was in flight when Cy ended in step 7"),
        ("p10", 7, "ending", "Cy", "with 4 of 12 tokens"),
        ("p03", 5, "ending", "Cy", "it asked for 2 tokens and has them"),
    ],
)
def test_each_event_says_why_in_numbers_of_the_recording(name, step, kind, begins, reason):
    assert why(name, step, kind, begins) == reason


@pytest.mark.parametrize("name", CONTENDERS)
def test_no_event_of_ours_is_without_a_reason_and_every_waiting_sequence_has_one(name):
    for frame in recording(name).frames:
        assert all(event["why"] for event in frame["events"])
        assert set(frame["waits"]) == set(frame["waiting"]) and all(frame["waits"].values())


def test_a_reason_tells_what_an_engine_did_and_not_the_rule():
    reasons = Reasons(Bounds(page_size=4), (Arrival("a", (1, 2, 3), 4), Arrival("b", (1, 2, 3, 4), 4)), str)
    frame = {
        "before": {"tables": {}, "pages": {"free": 0, "idle": 3}, "idle": [3, 2, 1]},
        "tables": {"a": [[1]]},
        "plan": 0,
    }
    assert reasons.eviction([1], frame) == (
        "a takes 1 page, and none is free; page 1 was idle, although pages 2 and 3 were idle for longer"
    )
    frame = {
        "before": {"running": ["a", "b"], "tables": {"a": [[1]], "b": [[2]]}, "pages": {"free": 0, "idle": 0}},
        "spans": [{"id": "b", "start": 4, "tokens": [7]}],
        "preempted": ["a"],
    }
    assert reasons.preemption("a", frame) == "b needs a page, none is left, although b came later"
    frame["before"]["pages"]["free"] = 1  # nobody lacked a page
    assert reasons.preemption("a", frame) == "although b came later"


def test_drafts_say_which_one_the_model_would_not_have_written():
    told = [event for frame in recording("p08").frames for event in frame["events"] if event["kind"] == "drafts"]
    assert told[0]["why"].startswith("the model samples the same, and “")
    partly = next(event["why"] for event in told if "1 of 4 drafts" in event["text"])
    assert re.match("draft 2 is “.*”, the model samples “.*”; the 2 drafts after it followed a wrong text", partly)


@pytest.mark.parametrize("name", CONTENDERS)
def test_an_event_leads_to_the_function_that_does_it(name):
    recorded = recording(name)
    assert set(recorded.code) == {kind for kind, _ in events(recorded)}
    for place in recorded.code.values():
        line = (ROOT / place["path"]).read_text(encoding="utf-8").splitlines()[place["line"] - 1]
        assert f"def {place['name'].rpartition('.')[2]}(" in line


def test_a_phase_leads_to_its_own_code_where_it_changed_it():
    assert recording("p06").code["chunk"]["name"] == "ChunkedPrefill.end_of_span"
    assert recording("p10").code["chunk"]["name"] == "PlanningAhead.end_of_span"
    assert recording("p04").code["preemption"]["path"] == "phases/p04_paged_cache/scheduler.py"


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_question_has_different_answers_one_of_them_right(name):
    asked = [frame["question"] for frame in recording(name).frames if frame["question"]]
    assert asked
    for question in asked:
        assert len(set(question["answers"])) == len(question["answers"]) in (2, 3, 4)
        assert 0 <= question["right"] < len(question["answers"]) and question["why"]


def test_questions_ask_what_a_phase_decides():
    def answered(name: str, step: int) -> tuple[str, str]:
        question = recording(name).frames[step - 1]["question"]
        return question["ask"], question["answers"][question["right"]]

    assert answered("p04", 8) == ("Pages run out. Which sequence is preempted?", "Ben")
    assert answered("p04", 12) == ("Ben and Cy wait. Which of them starts?", "Ben and Cy")
    assert answered("p05", 10) == ("Room is needed. Which page is evicted?", "3")
    assert answered("p06", 2) == ("How many tokens of Ben's prompt does the step take?", "7")
    assert answered("p05", 2)[1] == "8" and answered("p00", 3) == ("How many rows does the step compute?", "5")


# -- the page ----------------------------------------------------------------------------------------------------------


class Skeleton(HTMLParser):
    """What a browser finds before any script runs: ids, the recordings, and what would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.fetched: list[str] = []
        self.data = ""
        self._reading = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found["id"]} if "id" in found else set()
        self.fetched += [found[name] for name in ("src", "href", "action", "data") if name in found]
        self._reading = found.get("id") == "recordings"

    def handle_endtag(self, tag):
        self._reading = False

    def handle_data(self, data):
        self.data += data if self._reading else ""


@pytest.mark.parametrize("name", CONTENDERS)
def test_the_page_holds_the_recording_and_fetches_nothing(name):
    recorded = recording(name).as_json()
    text = page([recorded])
    found = Skeleton(text)
    assert json.loads(found.data) == json.loads(json.dumps([recorded]))
    assert not found.fetched and not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text and "<!--" not in text
    assert len(text.encode()) < MOST_BYTES


def test_a_page_that_only_the_tree_keeps_is_idle_as_in_the_lesson_and_in_stats():
    text = page([recording("p05").as_json()])
    assert "`${idle} idle`" in text and "cached`" not in text and ".page.idle" in text


def test_what_a_scene_says_holds_with_a_second_run_beside_it_or_none():
    assert not [name for name, scene in SCENES.items() if re.search(r"\b[Pp]ut p\d\d beside", scene.look)]


def test_every_part_that_the_script_looks_up_is_in_the_skeleton():
    text = page([recording("p04").as_json()])
    asked = set(re.findall(r'byId\("([\w-]+)"\)|getElementById\("([\w-]+)"\)', text))
    assert {one or other for one, other in asked} <= Skeleton(text).ids


def test_every_kind_of_event_has_a_name_and_a_key_of_its_own():
    text = page([recording("p04").as_json()])
    kinds = re.findall(r'\["(\w+)", "[\w ]+", "(\w)"\]', text)
    assert len({key for _, key in kinds}) == len(kinds)
    told = {kind for recorded in (*map(recording, CONTENDERS), tiered()) for kind, _ in events(recorded)}
    assert {kind for kind, _ in kinds} == told | {"failure"}


def test_text_of_a_model_cannot_end_the_page_s_data():
    recorded = recording("p01").as_json()
    words = dict.fromkeys(recorded["words"], "</script><!--<script>alert(1)</script>")
    recorded = recorded | {"words": words, "title": "<b>&", "about": "<!--js-->"}
    found = Skeleton(page([recorded, recorded]))
    assert [one["title"] for one in json.loads(found.data)] == ["<b>&", "<b>&"]
    assert {str(word) for word in json.loads(found.data)[0]["words"].values()} == set(words.values())


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


HELPERS = """
const errors = [], report = [];
window.addEventListener("error", (event) => errors.push(event.message));
const key = (name, target = document.body, shift = false) =>
  target.dispatchEvent(new KeyboardEvent("keydown", { key: name, shiftKey: shift, bubbles: true, cancelable: true }));
const text = (selector) => document.querySelector(selector).innerText.replace(/\\s+/g, " ").trim();
const shown = (selector) => [...document.querySelectorAll(selector)].filter((one) => one.offsetParent !== null);
const where = () => text("#where");
const note = (value) => report.push(value);
const pages = (part) => shown(`[data-part=${part}] .lit`).map((one) => one.dataset.page);
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const tell = () => {
  const told = JSON.stringify({ errors, report });
  document.body.replaceChildren(Object.assign(document.createElement("pre"), { id: "told", textContent: told }));
};
"""


@pytest.fixture
def pressed(tmp_path):
    """pressed(page, script, query) → what the script noted, in headless Chromium; skipped where there is none.

    No time passes while nothing happens: a minute of playing takes a moment.
    """
    if BROWSER is None:
        pytest.skip("needs Chromium")

    def press(text: str, script: str, query: str = "", width: int = 1280) -> list:
        file = tmp_path / "page.html"
        hooks = f"<script>{HELPERS}</script>"
        doing = f"<script>(async () => {{ {script} }})().catch((e) => errors.push(String(e))).finally(tell);</script>"
        whole = text.replace("<body>", f"<body>{hooks}").replace("</body>", f"{doing}</body>")
        file.write_text(whole, encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
        flags += [f"--window-size={width},600", "--virtual-time-budget=300000", "--dump-dom"]
        done = subprocess.run([BROWSER, *flags, file.as_uri() + query], capture_output=True, text=True, timeout=120)
        told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
        assert told, f"the script came to no end: {done.stderr[-1000:]}"
        found = json.loads(unescape(told[1]))
        assert found["errors"] == []
        return found["report"]

    return press


def test_the_page_is_stepped_through_in_a_browser(pressed):
    both = page([recording("p04").as_json(), recording("p03", "p04").as_json()])
    longest = max(len(recording("p04").frames), len(recording("p03", "p04").frames)) - 1
    script = """
    note(where()); note(text("main").includes("Ann starts in slot 0"));
    key("p"); note(where()); note(text("main").includes("Ben is preempted: Ann needs a page, none is left"));
    key("ArrowLeft"); note(text("main").includes("Ben is preempted"));
    key("A", document.body, true); note(where());
    document.querySelector("[data-kind=preemption]").click(); note(where());
    const slider = document.getElementById("slider");
    for (let step = 0; step <= Number(slider.max); step += 1) {
      slider.value = step;
      slider.dispatchEvent(new Event("input"));
      const said = step < Number(slider.max) ? `step ${step + 1} of ${slider.max}` : "the end";
      if (where() !== said) note(where());
    }
    note(text("main").includes("6 free")); note(document.getElementById("next").disabled);
    """
    told = pressed(both, script)
    steps = [f"step {step} of {longest}" for step in (1, 8, 1, 8)]
    assert told == [steps[0], True, steps[1], True, False, steps[2], steps[3], True, True]


def test_pages_that_moved_down_in_this_step_stand_out_in_host_memory(pressed):
    script = """
    const ringed = (one) => getComputedStyle(one).boxShadow !== "none";
    const marks = () => shown("[data-part=host] li").map(ringed);
    note(marks()); go(9); note(marks()); go(10); note(marks());
    """
    new = [
        page["name"] not in {page["name"] for page in tiered().frames[8]["host"]} for page in tiered().frames[9]["host"]
    ]
    assert pressed(page([tiered().as_json()]), script) == [[], new, [False] * 4] and sum(new) == 3


def test_pointing_at_a_page_lights_it_in_pool_tables_tree_and_plan(pressed):
    script = """
    go(1);
    const point = () => new PointerEvent("pointerover", { bubbles: true });
    const over = (selector) => document.querySelector(selector).dispatchEvent(point());
    over("[data-part=pool] [data-page='2']");
    note(["pool", "tables", "tree"].map(pages));
    over("[data-part=plan] [data-page='7']");
    note([pages("pool"), pages("plan").length, pages("batch").length]);
    over("h1"); note(document.querySelectorAll(".lit").length);
    over(".events li:last-child"); note(pages("pool"));
    over("h1");
    document.querySelector("[data-part=pool] [tabindex='0']").focus(); note(pages("tables"));
    key("ArrowDown", document.activeElement); note([document.activeElement.dataset.page, pages("tree")]);
    key("ArrowRight", document.activeElement); note([where(), document.activeElement.dataset.page, pages("pool")]);
    """
    shared, again, own = recording("p05").frames[1]["tables"]["Ben"][0]
    assert [shared, again] == [1, 2]
    script = script.replace("'7'", f"'{own}'")
    told = pressed(page([recording("p05").as_json()]), script)
    last = len(recording("p05").frames) - 1
    assert told[0] == [["2"], ["2", "2"], ["2"]]  # in the tables of Ann and Ben
    assert told[1] == [[str(own)], 4, 4] and told[2] == 0
    assert told[3] == ["1", "2"]  # those that Ben reuses
    assert told[4] == ["1", "1"] and told[5] == ["2", ["2"]]
    assert told[6] == [f"step 3 of {last}", "2", ["2"]]


def test_play_goes_on_at_a_pace_that_can_be_read_and_stops_at_the_end(pressed):
    script = """
    const start = performance.now();
    key(" "); note(text("#play"));
    await wait(500); note(where());
    key(" "); note(text("#play"));
    await wait(20000); note(where());
    key(" ");
    while (text("#play").includes("Pause")) await wait(100);
    note(where()); note(performance.now() - start);
    document.getElementById("play").click(); note(where());  // from the beginning again
    """
    told = pressed(page([recording("p04").as_json()]), script)
    last = len(recording("p04").frames) - 1
    assert [told[0], told[2]] == ["❚❚ Pause", "▶ Play"]
    assert told[1] == told[3] == f"step 1 of {last}" and told[4] == "the end"
    letters = sum(len(event["text"] + event["why"]) for frame in recording("p04").frames for event in frame["events"])
    assert told[5] - 20_500 > 25 * letters, "fewer than 40 letters per second"
    assert told[6] == f"step 1 of {last}"


def test_predicting_hides_the_next_step_asks_and_says_why(pressed):
    script = """
    const hidden = () => Number(document.querySelector(".cover").getAttribute("width")) > 0;
    go(6); note(hidden());
    document.getElementById("predict").click(); note(hidden());
    key("ArrowRight"); note([where(), text("#question")]);
    shown("#question button")[0].click(); note([where(), text("#question")]);
    go(10); key("ArrowRight"); key("3"); note([where(), text("#question")]);
    go(6); key(" "); await wait(5000); note([where(), text("#play")]);  // a question is waited for
    key("ArrowRight"); note([where(), text("#question")]);  // or passed over
    document.getElementById("predict").click(); note([hidden(), shown("#question").length]);
    """
    told = pressed(page([recording("p04").as_json()]), script)
    last = len(recording("p04").frames) - 1
    assert told[:2] == [False, True]
    assert told[2] == [f"step 7 of {last}", "Step 8: Pages run out. Which sequence is preempted? 1 Ann 2 Ben"]
    reason = "Ann needs a page, none is left, and Ben came last."
    assert told[3] == [f"step 8 of {last}", f"Not Ann, but Ben. {reason} 0 of 1 right so far"]
    assert told[4][1].startswith("Right: Ben and Cy. The slot is free since Ben left it in step 8")
    assert told[5] == [f"step 7 of {last}", "▶ Play"] and told[6] == [f"step 8 of {last}", ""]
    assert told[7] == [False, 0]


@pytest.mark.parametrize("name", [name for name in CONTENDERS if name != FINAL])
def test_the_small_page_changes_within_a_frame_of_the_book(name, pressed):
    script = """
    const place = (selector) => document.querySelector(selector).getBoundingClientRect();
    note(shown("[data-part]").map((one) => one.dataset.part));
    note(document.documentElement.scrollWidth <= window.innerWidth);
    for (let step = 0; step < last; step += 1) {
      const before = place(".now").left;
      document.getElementById("next").click();
      const mark = place(".now"), inside = mark.left >= 0 && mark.right <= 700 && mark.bottom <= 400;
      const low = Math.max(...shown("[data-part]").map((one) => one.getBoundingClientRect().top));
      const said = Math.max(0, ...shown(".events li").map((one) => one.getBoundingClientRect().bottom));
      if (mark.left === before || !inside) note(`step ${now}: the mark is at ${mark.left}`);
      if (said > 600 || low > 465) note(`step ${now}: a reader has to scroll, ${said}, ${low}`);
    }
    note(where());
    """
    told = pressed(page([recording(name).as_json()]), script, "?compact", width=700)
    assert set(told[0]) == {"timeline", "events", *recording(name).panels}
    assert told[1:] == [True, "the end"]


def test_a_person_has_one_color_in_every_scene(pressed):
    colors = [pressed(page([recording(name).as_json()]), "note(runs[0].color);")[0] for name in ("p00", "p04", "p08")]
    assert colors[0]["Cy"] == colors[1]["Cy"] == colors[2]["Cy"]
    assert colors[1] == colors[2] and len(set(colors[1].values())) == 3


def test_events_link_to_the_code(pressed):
    script = """key("p"); note(shown("a.code").map((one) => [one.innerText, one.getAttribute("href")]));"""
    text = page([recording("p04").as_json()], "../../{path}#L{line}")
    place = recording("p04").code["preemption"]
    ((name, href), *_), *_ = pressed(text, script)
    assert name == "PagedBatching.make_room" and href == f"../../{place['path']}#L{place['line']}"


# -- the command -------------------------------------------------------------------------------------------------------

TINY = ["--model", runs.RANDOM, "--dtype", "float32"]


def test_the_command_writes_one_page_for_two_runs(gradus, tmp_path):  # noqa: F811
    file = tmp_path / "new" / "both.html"
    done = gradus("xray", "p04", "p03", "--out", str(file), *TINY)
    assert done.code == 0, done.err
    assert done.out.strip() == str(file)
    one, other = json.loads(Skeleton(file.read_text(encoding="utf-8")).data)
    (way,) = re.findall(r'data-code="(.*?)"', file.read_text(encoding="utf-8"))
    for place in one["code"].values():
        assert (file.parent / way.partition("#")[0].format(path=place["path"])).is_file()
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "/xray-*.html" in ignored, "what the command writes by itself is no file of the repository"
    assert (one["title"], other["title"]) == ("p04: paged cache", "p03: continuous batching")
    assert one["sequences"] == other["sequences"]


def test_a_prompt_in_a_file_ends_at_a_newline_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("one\u2028still one\r\n\ntwo\x85 too\n", encoding="utf-8", newline="")
    assert _lines(tmp_path / "mine.txt") == ["one\u2028still one", "two\x85 too"]


def test_the_command_takes_a_reader_s_own_prompts_and_settings(gradus, tmp_path):  # noqa: F811
    prompts = tmp_path / "mine.txt"
    prompts.write_text("Hello there\n\nHello you\n", encoding="utf-8")
    file = tmp_path / "mine.html"
    arguments = ["--prompts", str(prompts), "--max-tokens", "3", "--page-size", "2", "--cache-tokens", "32"]
    done = gradus("xray", "final", "--beside", "p05", *arguments, "--out", str(file), *TINY)
    assert done.code == 0, done.err
    for found in json.loads(Skeleton(file.read_text(encoding="utf-8")).data):
        assert [bytes(one["prompt"]).decode() for one in found["sequences"]] == ["Hello there", "Hello you"]
        assert found["settings"]["page_size"] == 2 and found["frames"][0]["pages"]["total"] == 16
        assert all(1 <= sum(len(frame["outputs"].get(name, ())) for frame in found["frames"]) <= 3 for name in "ab")


def test_a_student_s_phase_is_recorded_beside_ours(gradus, tmp_path):  # noqa: F811
    info = phases.find("p03")
    source = reference_of(info, exercises_of(info)[0])
    assert source.count("list(reversed(range(max_sequences)))") == 1
    folder = tmp_path / "exercises"
    folder.mkdir()
    mine = source.replace("list(reversed(range(max_sequences)))", "list(range(max_sequences))")  # high slots first
    (folder / "mine.py").write_text(mine)
    file = tmp_path / "both.html"
    done = gradus("xray", "p03", "p03", "--impl", str(folder), "--out", str(file), *TINY)
    assert done.code == 0, done.err
    assert "your p03: mine.py" in done.err
    yours, ours = json.loads(Skeleton(file.read_text(encoding="utf-8")).data)
    assert (yours["title"], ours["title"]) == ("your p03: continuous batching", "p03: continuous batching")
    assert yours["code"]["admission"] | {"line": 0} == {
        "name": "ContinuousBatching.admit in mine.py",
        "path": None,
        "line": 0,
    }
    slots = [{span["id"]: span["slot"] for span in one["frames"][0]["spans"]} for one in (yours, ours)]
    assert (slots[0]["Ann"], slots[1]["Ann"]) == (1, 0)


def test_a_student_s_engine_that_breaks_is_shown_up_to_the_step_in_which_it_does(gradus, tmp_path):  # noqa: F811
    info = phases.find("p03")
    source = reference_of(info, exercises_of(info)[0])
    broken = "        self.free_slots.append(sequence.slot)\n"
    assert source.count(broken) == 1
    (tmp_path / "mine.py").write_text(source.replace(broken, "        self.free_slots[7]\n"))  # when one ends
    file = tmp_path / "page.html"
    done = gradus("xray", "p03", "--impl", str(tmp_path / "mine.py"), "--out", str(file), *TINY)
    assert done.code == 1 and done.out.strip() == str(file)
    assert "your p03: continuous batching breaks" in done.err and "IndexError" in done.err and "mine.py" in done.err
    (found,) = json.loads(Skeleton(file.read_text(encoding="utf-8")).data)
    *before, last = found["frames"]
    assert last["number"] == last["plan"] == 3 and len(before) == 2  # Ben, who wants three tokens, ends there
    assert last["events"][-1]["kind"] == "failure" and found["failed"] == last["events"][-1]["text"]
    assert [span["id"] for span in last["spans"]] == ["Ann", "Ben"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["p03", "--impl", "nowhere"], "nowhere: no such file or folder"),
        (["p99"], "phase must be one of p00"),
        (["p01", "p02", "p03"], "a page shows one run or two, got 3: p01, p02, p03"),
        (["p03", "--page-size", "4"], "page_size does nothing in p03: leave it out"),
        (["p04", "--max-tokens", "4"], "--max-tokens is for your own prompts"),
        (["p04", "--prompts", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["p03", "--cache-tokens", "8"], "p03 reserves 13 positions per sequence, and cache_tokens is 8"),
        (["p04", "--model", "random:nothing"], "no shape named 'nothing'"),
    ],
)
def test_a_mistake_is_one_line(gradus, arguments, complaint, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    done = gradus("xray", *arguments, *(TINY if "--model" not in arguments else []))
    assert done.code == 2
    assert complaint in done.err and done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
