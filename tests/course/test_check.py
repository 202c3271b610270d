"""The check passes the reference, catches the mistakes that a phase invites, and says in a sentence what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from gradus import phases
from gradus.course.student import check as course_check
from gradus.errors import ConfigError
from gradus.exercises.declaration import exercises_of
from gradus.exercises.skeleton import cut
from gradus.exercises.solution import look
from tests.course.conftest import ROOT, exercise_of, exercises, mistakes, reference
from tests.pairwise import first
from tests.phases import judge
from tests.phases.drive import Ending


def references() -> list:
    """List all exercises. Every run checks those of two phases; the others are stress.

    tests/phases judge every reference where it is; what is checked here is that `gradus check` comes to the same. There
    are three kinds: exercises alone in their files, kernels, and functions of an engine. Of these one passes in
    test_hints.py (p01) and one in test_notebooks.py (p03).
    """
    params, needed = [], {"p00", "p09"}
    for param in exercises():
        phase, exercise = param.values
        params.append(pytest.param(phase, exercise, id=param.id, marks=() if phase in needed else pytest.mark.stress))
        needed.discard(phase)
    return params


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "exercise"), references())
def test_the_reference_passes(checked, phase, exercise):
    verdict = checked(phase, reference(phase, exercise.file_name), exercise)
    assert verdict.passed, verdict.sentence
    assert verdict.tests >= (8 if exercise.alone else 20)


def skeletons() -> list:
    """The first exercise of each phase; the other files of a phase come to the same sentence, by `make stress`."""
    params, seen = [], set()
    for param in exercises():
        phase, exercise = param.values
        params.append(pytest.param(phase, exercise, id=param.id, marks=pytest.mark.stress if phase in seen else ()))
        seen.add(phase)
    return params


@pytest.mark.parametrize(("phase", "exercise"), skeletons())
def test_a_fresh_skeleton_is_told_what_is_still_to_be_written(checked, phase, exercise):
    names = list(exercise.functions)
    verdict = checked(phase, cut(reference(phase, exercise.file_name), names, phase), exercise)
    assert not verdict.passed and "still to be written" in verdict.sentence
    assert all(name in verdict.sentence for name in names) and list(verdict.suspects) == names


# -- wrong solutions ---------------------------------------------------------------------------------------------------

STARTS = "if not self.running and self.waiting:\n            admissions.append(self.start(slot=0))"
CONTINUES_A_SLOT = '''
    def span(self, sequence: Sequence) -> Span:
        """A slot that was filled so far is taken to hold the newcomer's own beginning."""
        filled = self.__dict__.setdefault("filled", {})
        span = super().span(sequence)
        skip = min(max(filled.get(span.slot, 0) - span.start, 0), len(span.tokens) - 1)
        filled[span.slot] = max(filled.get(span.slot, 0), len(sequence.tokens))
        return Span(sequence, span.slot, span.start + skip, span.tokens[skip:], logits=1)
'''

WRONG = {
    # phase, the right text, the wrong text, what the sentence must say
    "p00: the newest first": (
        "p00",
        STARTS,
        "if not self.running and self.waiting:\n            self.waiting.rotate(1)\n"
        "            admissions.append(self.start(slot=0))",
        "the request that came first",
    ),
    "p00: a second one starts before the first has ended": (
        "p00",
        STARTS,
        STARTS.replace("not self.running and ", ""),
        "one sequence runs at a time, and this plan has 2 spans",
    ),
    "p00: admitted again at every step": (
        "p00",
        "        if not self.running:\n            return None",
        "        if not self.running:\n            return None\n        from gradus.engine.plan import admit\n"
        "        admissions = [admit(self.running[0], 0)]",
        "admissions belong in a sequence's first plan",
    ),
    "p01: one position too few is counted": (
        "p01",
        "self.owner, self.length = id, end",
        "self.owner, self.length = id, end - 1",
        "the prompt once, then one token per step",
    ),
    "p01: keys are stored one position too early": (
        "p01",
        "(start,), (end,) = batch.starts, batch.lengths",
        "(start,), (end,) = batch.starts, batch.lengths\n"
        "        start, end = (start - 1, end - 1) if start else (start, end)",
        "the output parts from the right one at its token 2",
    ),
    "p01: nothing is ever reused": (
        "p01",
        "return self.length if id == self.owner else 0",
        "return 0",
        "the prompt once, then one token per step",
    ),
    "p01: a second sequence gets the first one's room": (
        "p01",
        "if self.owner not in (None, id) or end > self.capacity:",
        "if end > self.capacity:",
        "reserve must say False to a second sequence",
    ),
    "p01: queries are said to begin at position 0": (
        "p01",
        "start=self.start,",
        "start=0,",
        "in a model with a soft cap",
    ),
    "p01: the soft cap is dropped": (
        "p01",
        "softcap=self.config.attention_softcap,",
        "softcap=None,",
        "in a model with a soft cap",
    ),
    "p01: the scale is worked out again": (
        "p01",
        "scale=self.config.attention_scale,",
        "scale=q.shape[-1] ** -0.5,",
        "in a model with a soft cap",
    ),
    "p02: the mask lets a decode see the padding behind a shorter prompt": (
        "p02",
        "seen = keys <= queries",
        "seen = (keys <= queries) | torch.tensor(queries.shape[1] == 1)",
        "of three requests the short one: after 2 prompt tokens",
    ),
    "p02: padding is stored": (
        "p02",
        "self.storage.store(layer, self.slots, self.positions, k[self.real], v[self.real])",
        "self.storage.keys[layer][: self.size, :, : self.width] = "
        "k.view(self.size, self.width, *k.shape[1:]).transpose(1, 2)\n"
        "            self.storage.store(layer, self.slots, self.positions, k[self.real], v[self.real])",
        "the slots hold 6 and 5 tokens",
    ),
    "p02: the rectangle's last column is sampled": (
        "p02",
        "rows = where[batch.logits_rows]",
        "rows = torch.tensor([slot * width + width - 1 for slot in batch.slots], device=device)",
        "instead of",
    ),
    "p02: a tensor on no device in particular": (
        "p02",
        "keys = torch.arange(self.length, device=device)",
        "keys = torch.arange(self.length)",
        "every tensor on the device of the model",
    ),
    "p02: a tensor that is made elsewhere and moved": (
        "p02",
        "keys = torch.arange(self.length, device=device)",
        "keys = torch.arange(self.length).to(device)",
        "padded.py, line 62: a tensor is made without device=, so on a GPU it is made on the CPU and then copied",
    ),
    "p03: a newcomer takes its predecessor's keys for its own": (
        "p03",
        "    def check(self)",
        f"{CONTINUES_A_SLOT}\n    def check(self)",
        "instead of",
    ),
    "p03: slots by the number that run": (
        "p03",
        "self.start(self.free_slots.pop())",
        "self.start(len(self.running))",
        "ContinuousBatching.check (scheduler.py, line",
    ),
    "p03: a slot is never given back": (
        "p03",
        "        self.free_slots.append(sequence.slot)\n",
        "",
        "ContinuousBatching.check",
    ),
    "p03: free slots are left as they come": (
        "p03",
        "        self.free_slots.sort(reverse=True)  # low slots first: attention reads up to the highest one in use\n",
        "",
        "slots 0 and 1 are free, and 0 is to be given away first; yours gives 1",
    ),
    "p03: all wait until the batch is empty": (
        "p03",
        "admissions = self.admit()",
        "admissions = [] if self.running else self.admit()",
        "c takes a's place while b runs on",
    ),
    "p00: an idle engine has an empty plan": (
        "p00",
        "        if not self.running:\n            return None\n        return",
        "        return",
        "no sequence runs or waits, so schedule returns None; yours returns Plan(",
    ),
    "p00: a sequence is started in one step and run in the next": (
        "p00",
        "        if not self.running:\n            return None\n        return",
        "        if not self.running:\n            return None\n        if admissions:\n"
        "            return Plan([], admissions)\n        return",
        "one sequence runs at a time, and this plan has 0 spans",
    ),
    "p01: a refused sequence owns the cache": (
        "p01",
        "        if self.owner not in (None, id) or end > self.capacity:\n            return False\n"
        "        self.owner, self.length = id, end\n",
        "        if self.owner not in (None, id):\n            return False\n        self.owner = id\n"
        "        if end > self.capacity:\n            return False\n        self.length = end\n",
        "a was refused, so b finds an empty cache: reserve must say True; yours says False",
    ),
    "p01: the last position is never used": (
        "p01",
        "end > self.capacity",
        "end >= self.capacity",
        "there is room for a sequence of 512 positions, and reserve says False",
    ),
    "p01: an end is taken for a number of positions": (
        "p01",
        "self.owner, self.length = id, end",
        "self.owner, self.length = id, self.length + end",
        "the prompt once, then one token per step",
    ),
    "p03: newcomers are let in by halves": (
        "p03",
        "range(min(len(self.free_slots), len(self.waiting)))",
        "range(min(len(self.free_slots), len(self.waiting)) if len(self.free_slots) >= len(self.running) else 0)",
        "d takes a's place while b and c run on; yours ran",
    ),
    "p02: the first sequence is the longest": (
        "p02",
        "self.length = max(batch.lengths)",
        "self.length = batch.lengths[0]",
        "a short request in slot 0, a long one in slot 1, of them the",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    phase, right, wrong, says = WRONG[mistake]
    name = "scheduler.py" if phase == "p00" else None  # the others are about the first of their phase's exercises
    source = reference(phase, name)
    assert source.count(right) == 1
    source = source.replace(right, wrong).replace("import Admission, Plan\n", "import Admission, Plan, Span\n")
    verdict = checked(phase, source, exercise_of(phases.find(phase), Path(name) if name else None))
    assert not verdict.passed
    assert says in verdict.sentence
    assert verdict.test.startswith("tests/phases/test_") and "\n" not in verdict.sentence


# -- files that are no solution at all ---------------------------------------------------------------------------------

STORED = "return self.length if id == self.owner else 0"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("def stored(self", "def stored(self:"), "contiguous.py does not parse: "),
        (lambda text: text.replace("def stored", "def sotred"), "contiguous.py has no Contiguous.stored"),
        (lambda text: text[: text.index("class ContiguousAttention")],
         "has no ContiguousAttention.prepare and ContiguousAttention.attend"),
    ],
)  # fmt: skip
def test_what_can_be_read_off_the_file_is_said_without_running_it(checked, monkeypatch, change, says):
    monkeypatch.setattr(subprocess, "run", None)
    verdict = checked("p01", change(reference("p01")))
    assert not verdict.passed and says in verdict.sentence


def test_an_exception_is_reported_with_its_place_and_what_the_file_printed(checked):
    verdict = checked("p01", reference("p01").replace(STORED, "print('asked for', id)\n        return {}[id]"))
    assert verdict.sentence.startswith("Contiguous.stored (contiguous.py, line 26) raised KeyError: ('a', 0)")
    assert verdict.suspects == ("Contiguous.stored",)
    assert "asked for ('a', 0)" in verdict.printed


@pytest.mark.parametrize("shares", [1, 2])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("import numpi", "line 89: ModuleNotFoundError: No module named 'numpi'"),
        ("del ContiguousAttention", "it does not define ContiguousAttention, which the rest of the phase imports"),
    ],
)
def test_a_file_that_cannot_be_imported_is_told_why(checked, line, says, shares):
    verdict = checked("p01", f"{reference('p01')}\n{line}\n", shares=shares)
    assert verdict.sentence == f"contiguous.py cannot be imported: {says}" and not verdict.test


def test_an_error_further_down_suspects_every_function(checked):
    verdict = checked("p02", reference("p02").replace("self.real // self.width", "self.real"))
    assert verdict.sentence.startswith("PaddedAttention.attend (padded.py, line")
    assert "led to IndexError: index" in verdict.sentence
    assert "raised in SlotTensors.store (slots.py" in verdict.sentence
    assert "visible" in verdict.suspects and "PaddedAttention.prepare" in verdict.suspects


def test_a_file_that_never_ends_is_stopped_where_it_hangs(checked):
    """It sleeps, and so leaves the processor to others. The tests before that one need less than three seconds."""
    hanging = "import time\n        while True:\n            time.sleep(0.1)"
    verdict = checked("p01", reference("p01").replace(STORED, hanging), seconds=3)
    assert "takes too long: Contiguous.stored (contiguous.py, line" in verdict.sentence


def test_a_file_that_hangs_beyond_the_reach_of_a_test_is_stopped_too(checked):
    stubborn = "import signal\nimport time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
    stubborn += "while True:\n    time.sleep(0.1)\n"
    verdict = checked("p01", reference("p01") + stubborn, seconds=0.2)
    assert verdict.sentence == "the tests had not ended after 2 s"


def test_a_file_that_ends_the_process_is_reported(checked):
    verdict = checked("p01", reference("p01") + "\nimport os\nos._exit(3)\n")
    assert verdict.sentence == "contiguous.py ended the tests' process (exit code 3)"


def test_a_file_that_crashes_the_process_is_told_where(checked):
    verdict = checked("p01", reference("p01").replace(STORED, "import ctypes\n        ctypes.string_at(0)"))
    assert verdict.sentence.startswith(
        "contiguous.py crashed the tests' process at line 26, in stored: it read or wrote"
    )


def test_what_passed_before_a_failure_is_told(checked):
    wrong = reference("p01").replace(
        "if self.owner not in (None, id) or end > self.capacity:", "if end > self.capacity:"
    )
    verdict = checked("p01", wrong)
    assert verdict.tests >= 2 and "each position is computed once" in verdict.kept
    assert "the cache counts what was reserved" in verdict.kept


LETS_ANYONE_IN = "if end > self.capacity:"


@pytest.mark.parametrize("end", first([LETS_ANYONE_IN, f"if self.owner not in (None, id) or {LETS_ANYONE_IN[3:]}"]))
def test_two_processes_say_what_one_says(checked, end):
    source = reference("p01").replace("if self.owner not in (None, id) or end > self.capacity:", end)
    one, two = checked("p01", source), checked("p01", source, shares=2)
    assert (two.passed, two.sentence, two.kept) == (one.passed, one.sentence, one.kept)
    assert one.passed == (end != LETS_ANYONE_IN)
    assert checked("p01", reference("p01") + "\nimport os\nos._exit(3)\n", shares=2).sentence.endswith("(exit code 3)")


def test_a_wrong_token_is_told_as_what_was_expected_and_what_came():
    left, right = {"a": Ending((1, 2), "length")}, {"a": Ending((1, 3), "length")}
    assert judge.pytest_assertrepr_compare("==", left, right) == ["expected [1, 3], got [1, 2]"]
    right["a"] = Ending((1, 2), "stop")
    assert judge.pytest_assertrepr_compare("==", left, right) == ["expected an end by 'stop', got 'length'"]
    (line,) = judge.pytest_assertrepr_compare("==", tuple(range(100)), (1,))
    assert line.startswith("expected [1], got [0, 1, 2") and line.endswith(" …") and len(line) < 110
    assert judge.pytest_assertrepr_compare("<", 1, 2) is None


def test_tests_that_are_not_there_are_the_users_to_mend(tmp_path, monkeypatch):
    info = phases.find("p01")
    found = look(exercise_of(info), tmp_path / "contiguous.py", reference("p01"))
    monkeypatch.setattr(course_check, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs pytest, .* run pip install -e '\.\[dev\]'"):
        course_check.check(info, found)
    monkeypatch.setattr(course_check, "repository", lambda phase: tmp_path)
    with pytest.raises(ConfigError, match="clone the repository"):
        course_check.check(info, found)


@pytest.mark.parametrize(("system", "remedy"), [("linux", "run pip install triton"), ("darwin", "for Linux alone")])
def test_a_check_that_needs_triton_says_where_it_is_to_be_had(monkeypatch, system, remedy):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(course_check, "find_spec", lambda name: None if name == "triton" else name)
    found = [each for phase in ("p09", "p10") for each in exercises_of(phases.find(phase)) if each.triton]
    assert [each.file_name for each in found] == ["norm.py", "paged_attention.py", "splits.py", "graph_runner.py"]
    for each in found:
        with pytest.raises(ConfigError, match=f"{each.file_name} needs triton, .* {remedy}"):
            course_check._require_tests(ROOT, each)


def test_the_check_leaves_nothing_behind(checked, tmp_path):
    before = set(ROOT.glob("*"))
    checked("p03", reference("p03").replace("self.free_slots.append", "self.free_slots.remove"))
    assert [path.name for path in (tmp_path / "p03").iterdir()] == ["scheduler.py"]
    assert set(ROOT.glob("*")) == before
