"""The mistakes that p04 invites are caught, and the check says in a sentence what is wrong; of several files, which."""

from pathlib import Path

import pytest

from gradus import phases
from gradus.course.exercise import exercise_of, exercises_of
from gradus.errors import ConfigError
from tests.course.conftest import reference

WANTED = "wanted = -(-end // self.page_size) - len(resident.tables[0])"
SEEN = "first_page(resident.stored, window, self.page_size)"
TOLD = "                resident.told = min(resident.told, first)\n"
ALL_OR_NOTHING = """        if wanted * len(self.windows) > self.available:
            self.refusals += 1
            return False
"""

WRONG = {
    # file, the right text, the wrong text, what the sentence must say
    "a page too few": (
        "paged.py",
        WANTED,
        WANTED.replace("-(-end // self.page_size)", "end // self.page_size"),
        "1 positions are on 1 pages of 4; yours are on 0",
    ),
    "a page too many": ("paged.py", WANTED, f"{WANTED} + 1", "1 positions are on 1 pages of 4; yours are on 2"),
    "as many pages as there are, and then a refusal": (
        "paged.py",
        ALL_OR_NOTHING,
        """        if wanted * len(self.windows) > self.available:
            self.refusals += 1
            resident.tables[0] += self._take(self.available)
            return False
""",
        "a refusal takes no page and stores nothing",
    ),
    "nobody is told which entries are 0 now": (
        "paged.py",
        TOLD,
        TOLD.replace("min(resident.told, first)", "resident.told"),
        "whoever keeps a copy of the tables must hear of the pages that are gone",
    ),
    "the window of the span's last position": (
        "paged.py",
        "        self._give_back(resident)\n        wanted",
        "        start, resident.stored = resident.stored, end - 1\n        self._give_back(resident)\n"
        "        resident.stored = start\n        wanted",
        "the first query of span 21 to 29 sees back to 6",
    ),
    "nothing is ever given back": (
        "paged.py",
        "        self._give_back(resident)\n        wanted",
        "        wanted",
        "entries 0 to 5 are given back; yours are []",
    ),
    "entries are deleted, and the rest moves up": (
        "paged.py",
        "            table[first:seen] = [0] * (seen - first)\n            resident.first[group] = seen\n",
        "            del table[first:seen]\n            resident.first[group] = 0\n",
        "PagedCache",
    ),
    "the first one gives way": (
        "batching.py",
        "worst = max(self.running, key=BY_ORDER)\n            self.preempt(worst)\n            if worst is sequence",
        "worst = min(self.running, key=BY_ORDER)\n            self.preempt(worst)\n            if worst is sequence",
        "a came first and never gives way",
    ),
    "who was sent back stays in the plan": (
        "batching.py",
        "        self.plan.spans[:] = [span for span in self.plan.spans if span.sequence is not sequence]\n",
        "",
        "a was sent back while it was made",
    ),
    "who was sent back is forgotten": (
        "batching.py",
        "        self.release(sequence)\n        self.waiting.push(sequence)\n",
        "        self.release(sequence)\n",
        "PagedBatching.check",
    ),
    "who was sent back keeps its pages": (
        "batching.py",
        "        self.release(sequence)\n        self.waiting.push(sequence)\n",
        "        self.running.remove(sequence)\n        self.free_slots.append(sequence.slot)\n"
        "        sequence.slot, sequence.decoding = -1, False\n        self.waiting.push(sequence)\n",
        "the scheduler plans none",
    ),
    "a newcomer takes the last page": (
        "batching.py",
        "return not self.running or self.cache.available >= len(self.running) * self._growth",
        "return True",
        "waits; yours starts ['a', 'b'], with 1 preemptions",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p04", name)
    assert source.count(right) == 1
    verdict = checked("p04", source.replace(right, wrong), exercise_of(phases.find("p04"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence
    assert verdict.test.startswith("tests/") and "\n" not in verdict.sentence


def test_of_several_exercises_the_files_name_tells_which_is_meant():
    info = phases.find("p04")
    assert [exercise.file_name for exercise in exercises_of(info)] == ["paged.py", "batching.py"]
    assert exercise_of(info, Path("mine/batching.py")) is exercises_of(info)[1]
    with pytest.raises(
        ConfigError, match=r"p04 has 2 exercises: name your file paged\.py or batching\.py, not pool\.py"
    ):
        exercise_of(info, Path("pool.py"))


def test_where_there_is_one_exercise_a_file_may_have_any_name():
    info = phases.find("p01")
    assert exercise_of(info, Path("solution.py")) is exercise_of(info)
