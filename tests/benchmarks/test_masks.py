"""The script for masks runs, and what it has kept is of the expressions, prompts and automata of today."""

import json
import re
import sys

import pytest

from benchmarks.lessons import masks as script
from gradus.course.figures.structured.recorded import RECORDING, recorded
from gradus.engine.structured import Structured
from phases.p11_structured_output.cost import EXPRESSIONS
from phases.p11_structured_output.dfa import dfa_of
from phases.p11_structured_output.grammars import expression_of

FOUND = json.loads(RECORDING.read_text(encoding="utf-8"))
ANSWERS = {"short": ("ab", False, {"regex": "[0-9]{3}"}), "chat": ("ab", True, {"choice": ["yes", "no"]})}


def test_it_measures_masks_and_answers_and_renews_one_of_them_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ANSWERS", ANSWERS)
    out = tmp_path / "masks.json"
    command = ["masks.py", "--model", "random:tiny-llama", "--commit", "abc", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    script.main()
    found = json.loads(out.read_text())
    assert [row["name"] for row in found["masks"]["rows"]] == list(EXPRESSIONS)
    for row in found["masks"]["rows"]:
        assert len(row["cold"]) == len(row["legal"]) == row["states"] and min(row["cold"]) >= 0
    short, chat = found["answers"]
    assert re.fullmatch("[0-9]{3}", short["text"]) and chat["text"] in ("yes", "no")
    assert [step[0] for step in short["steps"][:3]] == [10, 10, 10] and all(0 < step[1] < 1 for step in short["steps"])
    out.write_text(json.dumps(found | {"masks": "kept"}))
    monkeypatch.setattr(sys, "argv", [*command, "--only", "answers"])
    script.main()
    assert json.loads(out.read_text()) == found | {"masks": "kept"}


def test_what_was_kept_is_of_the_same_expressions_and_automata():
    rows = {row["name"]: row for row in FOUND["masks"]["rows"]}
    assert list(rows) == list(EXPRESSIONS)
    for name, structured in EXPRESSIONS.items():
        assert {key: rows[name][key] for key in structured} == structured
        assert rows[name]["states"] == len(dfa_of(expression_of(Structured(**structured))).steps)


@pytest.mark.parametrize("name", script.ANSWERS)
def test_an_answer_that_was_kept_is_of_the_same_prompt_and_matches_if_it_came_to_its_end(name):
    prompt, chat, structured = script.ANSWERS[name]
    (one,) = [each for each in FOUND["answers"] if each["name"] == name]
    assert (one["prompt"], one["chat"], one["structured"]) == (prompt, chat, structured)
    matches = one["text"] in structured.get("choice", ()) or (
        "regex" in structured and re.fullmatch(structured["regex"], one["text"]) is not None
    )
    assert matches == (one["ended"] == "stop") and len(one["steps"]) <= script.MOST
    assert "".join(row.drawn for row in recorded(name).rows).startswith(one["text"])
