"""What a student is promised by every lesson: questions with answers, tables that fit, steps that can be read."""

import re
from pathlib import Path

import pytest

from gradus import phases
from gradus.course.difference import difference

ROOT = Path(__file__).parents[2]
LESSONS = {phase.name: ROOT / "phases" / phase.folder / "README.md" for phase in phases.available()}
LESSONS |= {"p00, part 1": ROOT / "phases" / "p00_baseline" / "forward_pass.md"}
MOST_COLUMNS = 5
QUESTIONS = 4
MOST_CHANGED = 500  # lines that `gradus diff` shows
FOLDED = re.compile(r"<details>\n<summary>Answers</summary>\n(.*?)</details>", re.DOTALL)


def section(text: str, heading: str) -> str:
    found = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def questions_and_answers(part: str) -> tuple[int, int]:
    """How many numbered questions a section asks, and how many its folded answers answer."""
    answers = "".join(FOLDED.findall(part))
    numbered = re.compile(r"^\d+\. ", re.MULTILINE)
    return len(numbered.findall(FOLDED.sub("", part))), len(numbered.findall(answers))


def wide_tables(text: str) -> list[str]:
    """The heads of tables with more columns than fit a page."""
    heads = re.findall(r"^(\|.*\|)\n\|[\s:|-]+\|$", text, re.MULTILINE)
    return [head for head in heads if head.count("|") - 1 > MOST_COLUMNS]


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_question_has_a_folded_answer(lesson):
    text = LESSONS[lesson].read_text(encoding="utf-8")
    asked, answered = questions_and_answers(section(text, "Predict"))
    assert asked == answered >= 3
    assert questions_and_answers(section(text, "Check yourself")) == (QUESTIONS, QUESTIONS)


@pytest.mark.parametrize("lesson", LESSONS)
def test_tables_fit_a_page(lesson):
    assert not wide_tables(LESSONS[lesson].read_text(encoding="utf-8"))


def test_the_checks_of_lessons_catch():
    part = "1. One?\n2. Two?\n\n<details>\n<summary>Answers</summary>\n\n1. Yes.\n\n</details>\n"
    assert questions_and_answers(part) == (2, 1)
    wide = "| a | b | c | d | e | f |\n|---|---|---|---|---|---|\n| 1 | 2 | 3 | 4 | 5 | 6 |\n"
    assert len(wide_tables(wide)) == 1 and not wide_tables("| a | b |\n|---|---:|\n| 1 | 2 |\n")


@pytest.mark.parametrize(("old", "new"), [(f"p0{n}", f"p0{n + 1}") for n in range(6)])
def test_a_step_of_the_course_can_be_read_in_a_sitting(old, new):
    assert len(difference(phases.find(old), phases.find(new))) <= MOST_CHANGED
