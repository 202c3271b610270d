"""The script behind p13's second page runs; its recorded file matches the present settings, and bears out the page."""

import json
import sys

import pytest

from benchmarks.lessons import load_lesson as script
from gradus.course.figures.serving import load
from gradus.server.engine.messages import STEP

FOUND = json.loads(load.RECORDING.read_text(encoding="utf-8"))


def step(number, start, end, decode=1, prefill=0):
    return dict.fromkeys(STEP, 0) | {"number": number, "start": start, "end": end, "decode": decode, "prefill": prefill}


def test_a_step_lasts_until_the_next_one_begins_unless_the_server_was_idle():
    steps = [
        step(1, 0, 5000),
        step(2, 5000, 9000, 2, 7),
        step(3, 9500, 12000),
        step(4, 40000, 41000),
        step(6, 41000, 0),
    ]
    assert script.durations(steps) == [(1, 0, 5.0), (2, 7, 4.5)]


def test_the_terms_of_a_step_are_found_again():
    rows = [(rows, tokens, 5 + 2 * rows + 1.5 * tokens) for rows in (1, 2, 4, 8) for tokens in [0] * 9 + [10, 20]]
    found = script.fitted([*rows, (4, 0, 900.0)])  # and a step that was disturbed
    assert (found["fixed"], found["row"], found["token"]) == pytest.approx((5, 2, 1.5))
    assert found["steps"] == [[1, 7, 9], [2, 9, 9], [4, 13, 10], [8, 21, 9]]


@pytest.mark.stress
def test_it_measures_all_parts_and_renews_one_of_them_alone(tmp_path, monkeypatch):
    for name, value in (
        ("SHARES", (0.2, 1.1)), ("RATES_S", 0.5), ("WARM_S", 0.1), ("ROWS", (1, 4)), ("ROWS_S", 0.5), ("USERS", (1, 4)),
        ("USERS_S", 0.5), ("LONG", 100),
    ):  # fmt: skip
        monkeypatch.setattr(script, name, value)
    out = tmp_path / "load_lesson.json"
    command = ["load_lesson.py", "--model", "random:tiny-llama", "--commit", "abc", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    script.main()
    found = json.loads(out.read_text())
    assert len(found["rates"]) == 2 and found["rates"][0]["rate"] < found["rates"][1]["rate"]
    assert [row["users"] for row in found["users"]] == [1, 4]
    assert all(row["completed"] == row["requests"] for row in (*found["rates"], *found["users"]))
    assert any(prefill for *_, prefill in found["steps"]["steps"])
    out.write_text(json.dumps(found | {"rates": "kept"}))
    monkeypatch.setattr(sys, "argv", [*command, "--only", "steps"])
    script.main()
    again = json.loads(out.read_text())
    assert (again["rates"], again["users"]) == ("kept", found["users"]) and again["steps"] != found["steps"]


def test_what_was_kept_is_of_the_present_loads():
    assert len(FOUND["rates"]) == len(script.SHARES)
    assert tuple(row["users"] for row in FOUND["users"]) == script.USERS
    assert (tuple(FOUND["prompt"]), tuple(FOUND["output"])) == (script.PROMPT, script.OUTPUT)
    assert (FOUND["model"], FOUND["slots"], FOUND["budget"]) == (script.MODEL, script.SLOTS, script.BUDGET)
    for row in (*FOUND["rates"], *FOUND["users"]):
        assert row["completed"] == row["requests"] and row["late_ms_p99"] < 20
