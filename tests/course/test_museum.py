"""The bug museum: every exhibit is faulty, can be repaired, and shows what its page says it shows. Both wings."""

import ast
import re
import sys
from pathlib import Path

import pytest

from gradus import phases
from gradus.course import museum
from gradus.course.museum import Exhibit
from gradus.errors import ConfigError

EXHIBITS = museum.exhibits()
SLOW = museum.exhibits(slow=True)
README, SLOW_README = (
    (phases.highest().path.parent / "museum" / "README.md").read_text(encoding="utf-8").split("\n## The slow wing\n")
)
MOST_LINES = {"m": 80, "s": 105}  # those of the slow wing also measure themselves

each = pytest.mark.parametrize("exhibit", [*EXHIBITS, *SLOW], ids=lambda exhibit: exhibit.path.name)


def test_the_tour_has_eleven_exhibits_in_order():
    assert [exhibit.number for exhibit in EXHIBITS] == list(range(1, 12))
    assert [exhibit.number for exhibit in SLOW] == list(range(1, 6))
    assert README.count("\n") <= 130 and SLOW_README.count("\n") <= 210
    assert not {exhibit.name for exhibit in EXHIBITS} & {exhibit.name for exhibit in SLOW}  # the copies' names


# -- each exhibit ----------------------------------------------------------------------------------------------------


@each
def test_its_tests_fail_on_the_faulty_engine_and_pass_on_the_fixed_one(exhibit: Exhibit):
    faulty = list(museum.judge(exhibit, exhibit.module("engine")))
    assert any(finding.failure for finding in faulty) and not all(finding.failure for finding in faulty)
    fixed = list(museum.judge(exhibit, exhibit.module("fixed")))
    assert not [finding for finding in fixed if finding.failure] and len(fixed) == len(faulty)


LAZY = {  # repairs that switch a feature off: what to replace in the engine, and by what
    "preemption": ("        for end in range(PAGE, len(sequence.tokens), PAGE):", "        for end in ():"),
    "stop": ("guesses = SCRIPT[position : position + self.drafts]", "guesses = SCRIPT[:0]"),
    "placeholder": ("        return True", "        return not self.flying"),
    "drafter": ("if self.drafter else", "if False else"),
    "mask": ("likeliest if likeliest in mask else mask[0]", "likeliest"),
    "window": ("if len(prefix) % PAGE == 0 and prefix not in self.known", "if False"),
    "race": (
        "            self.device.replay()",
        "            self.device.replay()\n            self.device.catch_up()",
    ),
    "tiles": ("for tile in range(len(rows) // TILE):", "for tile in range(0):"),
    "decoder": ("return decode([token])", 'return decode([token]).strip("\N{REPLACEMENT CHARACTER}")'),
}


@pytest.mark.parametrize("name", LAZY)
def test_switching_the_feature_off_is_no_repair(name, tmp_path):
    exhibit, (line, instead) = museum.find(name), LAZY[name]
    assert exhibit.source.count(line) == 1
    file = tmp_path / f"{name}.py"
    file.write_text(exhibit.source.replace(line, instead), encoding="utf-8")
    assert any(finding.failure for finding in museum.judge(exhibit, museum.imported(file)))


@each
def test_a_failure_says_what_was_found(exhibit: Exhibit):
    failures = [finding.failure for finding in museum.judge(exhibit, exhibit.module("engine")) if finding.failure]
    assert not [failure for failure in failures if failure.startswith("this does not hold")]


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.path.name)
def test_its_page_shows_what_running_it_prints(exhibit: Exhibit):
    section = re.search(rf"^## {exhibit.number}\. (.*?)$(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert section is not None and section[1] == exhibit.symptom
    assert f"```text\n{museum.shown(exhibit.module('engine'))}```" in section[2]
    assert f"(../{phases.find(exhibit.label.phase).folder}/README.md)" in section[2]


@each
def test_the_lesson_of_its_phase_leads_to_it(exhibit: Exhibit):
    lesson = (phases.find(exhibit.label.phase).path / "README.md").read_text(encoding="utf-8")
    number = exhibit.number
    assert re.search(rf"\]\(\.\./museum/README\.md#{number}-[\w-]+\) \(`{exhibit.command}`\)", lesson)


@each
def test_its_engine_is_short_and_needs_nothing_but_python(exhibit: Exhibit):
    assert len(exhibit.source.splitlines()) <= MOST_LINES[exhibit.path.name[0]]
    imported = [node for node in ast.walk(ast.parse(exhibit.source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in imported}
    torch = {"torch"} if exhibit.name == "pool" else set()  # whose fault is in torch's operations
    assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, *torch}
    assert exhibit.name not in sys.stdlib_module_names  # a copy that runs as a script would hide the module


@each
def test_its_hints_rise_without_giving_the_fix_away(exhibit: Exhibit):
    hints = exhibit.label.hints
    assert len(set(hints)) == 3 and all(hints)
    assert not given_away(exhibit, hints)


@each
def test_its_story_has_sources_and_its_moral_is_one_sentence(exhibit: Exhibit):
    label = exhibit.label
    assert len(label.story) > 300 and label.sources
    for text, address in label.sources:
        number = re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(?:pull|issues)/(\d+)", address)
        assert number and f"#{number[1]}" in text
    assert label.moral.endswith(".") and label.moral.count(". ") == 0


def given_away(exhibit: Exhibit, hints: tuple[str, ...]) -> list[str]:
    """Lines of the fix, and not of the fault, that a hint has to the letter."""
    new = {
        line.strip()
        for pair in museum.repairs(exhibit)
        for line in set(pair.ours.splitlines()) - set(pair.theirs.splitlines())
    }
    said = " ".join(" ".join(hints).split())
    return [line for line in new if len(line) > 8 and line in said]


def test_the_check_for_hints_catches():
    assert given_away(EXHIBITS[0], ("Write self.states[slot] = [] there.",)) == ["self.states[slot] = []"]


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_lists_the_symptoms_and_none_of_the_faults(gradus, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = gradus("museum")
    assert code == 0 and all(exhibit.symptom in out for exhibit in EXHIBITS)
    assert not [exhibit for exhibit in EXHIBITS if exhibit.label.fault in out]


def test_from_the_symptom_to_the_repair(gradus):
    code, out, _ = gradus("museum", "1")
    assert code == 0 and "Ben: You said: my PIN is 4711 hello" in out and "gradus museum 1 --check" in out
    copy = Path("exercises/museum/slots.py")
    code, out, err = gradus("museum", "1", "--check")
    assert code == 1 and "✗ an answer holds no word of the request before it" in out and "--hint 1" in err

    taken = "            slot = self.free.pop()\n"
    copy.write_text(copy.read_text().replace(taken, taken + "            self.states[slot] = []\n"))
    code, out, _ = gradus("museum", "1", "--check")
    assert code == 0 and "passes all 4 tests" in out and "✗" not in out


def test_a_copy_is_never_written_over_unless_asked(gradus):
    copy = Path("exercises/museum/slots.py")
    assert gradus("museum", "slots")[0] == 0
    copy.write_text("an hour's work")
    code, out, _ = gradus("museum", "1")
    assert code == 0 and "--force" in out and copy.read_text() == "an hour's work"
    assert gradus("museum", "1", "--force")[0] == 0
    assert copy.read_text() == EXHIBITS[0].source


def test_hints_come_one_by_one_and_the_solution_tells_the_story(gradus):
    assert [gradus("museum", "4", "--hint", number)[1].count("  hint ") for number in "123"] == [1, 2, 3]
    code, out, _ = gradus("museum", "4", "--solution")
    label = EXHIBITS[3].label
    assert code == 0 and label.fault in out and label.sources[0][1] in out
    assert " ".join(label.story.split()) in " ".join(out.split()) and out.index("-- fault") < out.index("-- fix")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("12",), "a number from 1 to 11"),
        (("--check",), "name an exhibit"),
        (("2", "--check"), "`gradus museum 2` writes it"),
    ],
)
def test_a_mistake_gets_one_line_that_says_what_to_do(gradus, arguments, said):
    code, out, err = gradus("museum", *arguments)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", "line 1: invalid syntax"),
        ("x = 1\ny = x.z\n", "AttributeError: 'int' object has no attribute 'z' (line 2)"),
    ],
)
def test_a_copy_that_does_not_import_gets_one_line(tmp_path, text, said):
    file = tmp_path / "slots.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        museum.imported(file)


def test_an_error_in_a_copy_is_a_finding_with_its_line(tmp_path):
    file = tmp_path / "slots.py"
    file.write_text(EXHIBITS[0].source.replace("self.free.pop()", "self.free.pop(7)"))
    failures = [finding.failure for finding in museum.judge(EXHIBITS[0], museum.imported(file))]
    assert failures[0].startswith("IndexError: pop index out of range (line ")
