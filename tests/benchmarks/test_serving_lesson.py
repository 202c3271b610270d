"""The script for p13's server runs; its recorded file matches the present server, demo and requests."""

import json
import sys

import pytest

from benchmarks.lessons import serving_lesson as script
from gradus.course.figures.serving import recorded
from gradus.course.xray.lanes import way
from phases.p13_serving import demo
from phases.p13_serving.way import ANN, CY

FOUND = json.loads(way.RECORDING.read_text(encoding="utf-8"))


def test_it_measures_streams_a_blocked_loop_and_a_way_and_renews_one_of_them_alone(tmp_path, monkeypatch):
    for name, value in (("STREAMS", (1, 3)), ("TOKENS", 4), ("REPEATS", 1), ("TOKENIZER", "random:tiny-llama")):
        monkeypatch.setattr(script, name, value)
    for name, value in (("TOKENS", 20), ("RUNS", 1), ("BEFORE_S", 0.0), ("TEXT", "a long prompt " * 400)):
        monkeypatch.setattr(demo, name, value)
    out = tmp_path / "serving_lesson.json"
    command = ["serving_lesson.py", "--commit", "abc", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    script.main()
    found = json.loads(out.read_text())
    assert [row["streams"] for row in found["streams"]] == [1, 3]
    for row in found["streams"]:
        (served,) = row["served"]
        assert served["rate"] > 0 and row["alone"][0] > 0
        assert 0 < served["ttft_p50"] <= served["ttft_p99"] and served["itl_p50"] <= served["itl_p99"]
    assert list(found["blocked"]) == list(demo.WAYS) and all(found["blocked"].values())
    out.write_text(json.dumps(found | {"streams": "kept"}))
    monkeypatch.setattr(sys, "argv", [*command, "--only", "way"])
    script.main()
    again = json.loads(out.read_text())
    assert (again["streams"], again["blocked"]) == ("kept", found["blocked"]) and again["way"] != found["way"]


def test_a_summary_is_of_all_streams_together():
    found = script.summary([[1.0, 1.1, 1.2, 1.2], [1.0, 1.3, 1.5]])
    assert found["rate"] == pytest.approx(5 / 0.5, rel=1e-3)
    assert found["ttft_p50"] == pytest.approx(200, rel=1e-3) and found["itl_p50"] == pytest.approx(100, rel=1e-3)


def test_what_was_kept_is_of_as_many_streams_and_runs_and_of_the_same_requests():
    assert [row["streams"] for row in FOUND["streams"]] == list(script.STREAMS)
    assert all(len(row["served"]) == len(row["alone"]) == script.REPEATS for row in FOUND["streams"])
    assert (FOUND["model"], FOUND["phase"], FOUND["tokens"]) == (script.MODEL, script.PHASE, script.TOKENS)
    assert list(FOUND["blocked"]) == list(demo.WAYS)
    for who, (_, tokens) in (("Ann", ANN), ("Cy", CY)):
        notes = [note for note in way.recorded() if who in note.who]
        assert sum(note.kind == "step" for note in notes) == tokens >= sum(note.where == "client" for note in notes) - 1


def test_the_lesson_says_of_the_recording_what_is_true():
    """That a prompt stops the streams in the first two ways and not in the third, and that served is slower than alone,
    the more so with more streams."""
    loop, thread, released = (max(gap for _, gap in points) for points in recorded.blocked().values())
    assert min(loop, thread) > 4 * released
    kept = [served / alone for (_, served), (_, alone) in zip(*map(recorded.streams, ("rate", "alone")), strict=True)]
    assert all(share < 1 for share in kept) and kept[-1] == min(kept)


def test_the_way_s_figure_begins_with_a_step_and_ends_behind_cy_s_frames():
    notes = way.recorded()
    start, end = way.window(notes)
    (asked,) = [note.at for note in notes if note.kind == "sends the request" and note.who == ("Cy",)]
    read = [note.at for note in notes if note.kind == "reads a frame" and note.who == ("Cy",)]
    assert start < asked < read[way.AFTER - 1] < end
    shown = [note for note in notes if note.until >= start and note.at <= end]
    lanes = list(way.crossings(shown))
    assert ("Cy", "event loop", asked) in lanes and {up for _, up, _ in lanes} >= {"Ann", "Cy", "engine"}
