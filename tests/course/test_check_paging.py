"""The mistakes that p04 invites are caught, and the check says in a sentence what is wrong; of several files, which."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

MISSING = "return max(0, self.pages_for(end) - len(self.block_tables.get(id, ())))"
REFUSAL = "        if not self.has_room(id, end):\n            return False\n"
DROPPED = "        self.pool.drop(*reversed(self.block_tables.pop(id, [])))\n"
NEWCOMER = "self.cache.has_room(sequence.id, self.end_of_span(sequence), spare=len(self.running))"
WAITING = "        self.release(sequence)\n        self.waiting.appendleft(sequence)\n"
ROWS = "tables.gather(1, positions // page_size) * page_size + positions % page_size"

WRONG = {
    # file, the right text, the wrong text, what the sentence must say
    "a page too few": (
        "cache.py",
        MISSING,
        "return max(0, end // self.page_size - len(self.block_tables.get(id, ())))",
        "positions 0 to 0 need pages of 4: 1; yours has 0",
    ),
    "a page too many": (
        "cache.py",
        MISSING,
        f"{MISSING} + 1",
        "positions 0 to 0 need pages of 4: 1; yours has 2",
    ),
    "all pages again whenever a sequence grows": (
        "cache.py",
        MISSING,
        "return self.pages_for(end)",
        "positions 0 to 2 need pages of 4: 1; yours has 2",
    ),
    "as many pages as there are, and then a refusal": (
        "cache.py",
        REFUSAL,
        "        if not self.has_room(id, end):\n"
        "            self.block_tables.setdefault(id, []).extend(self.take(self.pool.available))\n"
        "            return False\n",
        "a refusal takes no page and stores nothing",
    ),
    "a refused sequence counts as stored": (
        "cache.py",
        REFUSAL,
        "        if not self.has_room(id, end):\n            self.lengths[id] = end\n            return False\n",
        "a refusal takes no page and stores nothing",
    ),
    "pages are not given back": (
        "cache.py",
        DROPPED,
        "        self.block_tables.pop(id, None)\n",
        "b has 1 page, 3 positions; yours has 4, 3",
    ),
    "the first page is given back first": (
        "cache.py",
        DROPPED,
        DROPPED.replace("*reversed(self.block_tables.pop(id, []))", "*self.block_tables.pop(id, [])"),
        "a's pages go back last one first",
    ),
    "the first page alone is given back": (
        "cache.py",
        DROPPED,
        "        self.pool.drop(*self.block_tables.pop(id, [])[:1])\n",
        "b has 1 page, 3 positions; yours has 3, 3",
    ),
    "the first one gives way": (
        "scheduler.py",
        "            last = self.running[-1]\n",
        "            last = self.running[0]\n",
        "the first one advances in every step until it ends",
    ),
    "a sequence that gave way itself is planned": (
        "scheduler.py",
        "            if last is sequence:\n                return False\n",
        "            if last is sequence:\n                break\n",
        "PagedBatching",
    ),
    "a preempted sequence is forgotten": (
        "scheduler.py",
        WAITING,
        "        self.release(sequence)\n",
        "b",
    ),
    "a preempted sequence goes to the end of the queue": (
        "scheduler.py",
        WAITING,
        "        self.release(sequence)\n        self.waiting.append(sequence)\n",
        "after its preemption it is back before c starts",
    ),
    "a preempted sequence keeps its pages": (
        "scheduler.py",
        WAITING,
        "        self.running.remove(sequence)\n        self.free_slots.append(sequence.slot)\n"
        "        self.waiting.appendleft(sequence)\n",
        "the scheduler plans none",
    ),
    "preemptions are not counted": (
        "scheduler.py",
        "        self.preemptions += 1\n",
        "        self.preemptions += 0\n",
        "one preemption is enough here",
    ),
    "a newcomer takes the last page": (
        "scheduler.py",
        NEWCOMER,
        NEWCOMER.replace(", spare=len(self.running)", ""),
        "one preemption is enough here, of b by a; yours made 2",
    ),
    "the page number is taken for the row": (
        "attention.py",
        ROWS,
        "tables.gather(1, positions // page_size) + positions % page_size",
        "the output parts from the right one",
    ),
    "pages in the order of the positions": (
        "attention.py",
        ROWS,
        "tables[:, :1] * page_size + positions",
        "goes wrong",
    ),
    "new keys are stored after attending": (
        "attention.py",
        "        self.storage.store(layer, self.new_rows, k, v)\n        keys, values = self.storage.rows(layer)\n",
        "        keys, values = (part.clone() for part in self.storage.rows(layer))\n"
        "        self.storage.store(layer, self.new_rows, k, v)\n",
        "the output parts from the right one",
    ),
    "pages for the new positions alone": (
        "cache.py",
        MISSING,
        "return self.pages_for(max(0, end - self.stored(id)))",
        "positions 0 to 2 need pages of 4: 1; yours has 2",
    ),
    "new pages are put in front": (
        "cache.py",
        "self.block_tables.setdefault(id, []).extend(self.take(self.missing(id, end)))",
        "self.block_tables[id] = self.take(self.missing(id, end)) + self.block_tables.get(id, [])",
        "positions 0 to 3 stay on pages [1], in front; with 9 positions your table is",
    ),
    "the block table is replaced": (
        "cache.py",
        "self.block_tables.setdefault(id, []).extend(self.take(self.missing(id, end)))",
        "self.block_tables[id] = self.take(self.missing(id, end))",
        "the tables have {} (page: times), the pool counts {1: 1}",
    ),
    "one sequence gives way, and that is taken to be enough": (
        "scheduler.py",
        "        while not self.cache.has_room(sequence.id, self.end_of_span(sequence)):\n",
        "        if not self.cache.has_room(sequence.id, self.end_of_span(sequence)):\n",
        "c gives way and then b: (True, ['a']); yours: (True, ['a', 'b'])",
    ),
    "a newcomer leaves a page for itself": (
        "scheduler.py",
        "spare=len(self.running)",
        "spare=len(self.running) + 1",
        "none runs that could need one, so a starts; yours waits",
    ),
    "a refused newcomer has a table": (
        "cache.py",
        "        if not self.has_room(id, end):\n            return False\n        self.block",
        "        self.block_tables.setdefault(id, [])\n        if not self.has_room(id, end):\n"
        "            return False\n        self.block",
        "no sequence has a table, {}; yours: {'a': []}",
    ),
    "a sequence that was never seen has a table": (
        "cache.py",
        "self.block_tables.pop(id, [])",
        "self.block_tables.pop(id)",
        "b has no page, so its release changes nothing; yours raises KeyError: 'b'",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p04", name)
    assert source.count(right) == 1
    verdict = checked("p04", source.replace(right, wrong), exercise_of(phases.find("p04"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence
    assert verdict.test.startswith("tests/") and "\n" not in verdict.sentence
