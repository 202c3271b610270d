"""The evaluation of tool calls: its cases are sound, and its rules can tell right from wrong."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.tool_calls import Case, Score, obeys, read_cases, same, score
from gradus.text.tools.events import Answer, ToolCall
from gradus.text.tools.tool import read_tools

ROOT = Path(__file__).parents[2]
CASES = read_cases()
CASE = Case(
    "?",
    read_tools([{"name": "f", "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}]),
    "f",
    {"n": 1},
)


def answered(name="f", arguments='{"n": 1}', complete=True):
    return Answer("", "", (ToolCall("123456789", name, arguments, complete),))


def test_the_page_shows_what_was_measured():
    found = json.loads((ROOT / "benchmarks" / "tool_calls.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    table = page[page.index("| mode | calls |") :]
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", table[: table.index("\n\n")], re.MULTILINE)
    steps = ("called", "right_tool", "valid", "exact")
    assert {mode: tuple(map(int, counts)) for mode, *counts in rows} == {
        mode: tuple(each[step] for step in steps) for mode, each in found.items()
    }
    assert all(each["cases"] == len(CASES) for each in found.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.ask)
def test_what_a_case_expects_can_be_right(case):
    right = answered(case.call, json.dumps(dict(case.arguments)))
    assert score(case, right) == Score(True, True, True, True)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer("f(1)", "", ()), Score()),
        (answered("g"), Score(called=True)),
        (answered(arguments='{"n": "1"}'), Score(called=True, right_tool=True)),
        (answered(arguments='{"n": ', complete=False), Score(called=True, right_tool=True)),
        (answered(arguments='{"n": 2}'), Score(called=True, right_tool=True, valid=True)),
        (answered(), Score(called=True, right_tool=True, valid=True, exact=True)),
    ],
)
def test_each_step_of_the_score_can_fail(answer, expected):
    assert score(CASE, answer) == expected


def test_texts_are_compared_without_case_and_numbers_by_value():
    assert same({"a": ["Paris. ", 3]}, {"a": ["paris", 3.0]})
    for wrong in ({"a": ["Rome", 3]}, {"a": ["Paris"]}, {"a": ["Paris", True]}, {}, {"a": ["Paris", 3], "b": 1}):
        assert not same(wrong, {"a": ["paris", 3]})
    assert not same(True, 1)


def test_a_rule_that_is_not_known_is_no_rule_that_passes():
    with pytest.raises(ValueError, match="no rule here for pattern"):
        obeys("x", {"type": "string", "pattern": "y"})
