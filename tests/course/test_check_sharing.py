"""The mistakes that p05 and p06 invite are caught, and the check says in a sentence what is wrong."""

import pytest

from tests.course.conftest import PHASES, reference

MATCHED = "longest = (len(tokens) - 1) // self.page_size"
PLACED = "end = min(len(tokens), start + self.left)"

WRONG = {
    # phase, the right text, the wrong text, what the sentence must say
    "p05: a prompt is hit to its end": (
        "p05",
        MATCHED,
        "longest = len(tokens) // self.page_size",
        "a hit ends before the last token, whose row gives the logits",
    ),
    "p05: tenants share": (
        "p05",
        "cursor, found = Cursor(salt, self.root), ",
        "cursor, found = Cursor(None, self.root), ",
        "nothing is shared",
    ),
    "p05: a page is looked up by its own tokens alone": (
        "p05",
        "        hit = cursor.depth = self._usable(found)\n",
        "        if not found[0] and (pages := [page for page, node in self.owners.items() if "
        "tokens[: self.page_size] == node.tokens[(at := (node.pages[0].index(page)) * self.page_size) : "
        "at + self.page_size]]) and longest:\n"
        "            found[0].append(pages[0])\n"
        "            cursor.node, cursor.depth = self.owners[pages[0]], 1\n"
        "        hit = cursor.depth = self._usable(found)\n",
        "the same page behind another beginning has other keys",
    ),
    "p05: what a window lost is taken for found": (
        "p05",
        "hit = cursor.depth = self._usable(found)",
        "hit = cursor.depth = len(found[0])",
        "a hit stops where a window page is gone",
    ),
    "p05: two copies of a page are kept": (
        "p05",
        "            duplicates += self._merge(cursor, tables, steps)\n",
        "            self._merge(cursor, tables, steps)\n",
        "holds every page on its path",
    ),
    "p05: the cursor's place is taken for granted": (
        "p05",
        "        if not cursor.find():\n            return duplicates\n",
        "",
        "a cursor finds its place after its node was split",
    ),
    "p05: only the evicted page is forgotten, not what comes after it": (
        "p05",
        "            return self._cut(node, place)\n        node.pages",
        "            pass\n        node.pages",
        "removing a page takes what comes after it along",
    ),
    "p06: the budget is not heeded": (
        "p06",
        PLACED,
        "end = len(tokens)",
        "is (0, 8, 0); yours is (0, 19, 1)",
    ),
    "p06: the budget is not charged": (
        "p06",
        "        self.left -= end - start\n        return True",
        "        return True",
        "the budget is 8 tokens per step; yours planned",
    ),
    "p06: every chunk is sampled from": (
        "p06",
        "logits = 1 if end == len(tokens) else 0",
        "logits = 1",
        "is (0, 8, 0); yours is (0, 8, 1)",
    ),
    "p06: a prompt begins anew with every chunk": (
        "p06",
        "tokens, start = sequence.tokens, self.cache.stored(sequence.id)",
        "tokens, start = sequence.tokens, 0",
        "is (8, 8, 0); yours is (0, 8, 0)",
    ),
    "p06: prompts go before decodes": (
        "p06",
        "        self.decode()\n        for sequence in self.ready():\n"
        "            if self.left and sequence.slot >= 0:  # not sent back for the sake of one before it\n"
        "                self.place(sequence, self.make_room)\n",
        "        for sequence in self.ready():\n            if self.left and sequence.slot >= 0:\n"
        "                self.place(sequence, self.make_room)\n        self.decode()\n",
        "a sequence has one span per step; yours planned",
    ),
}


@pytest.mark.parametrize("mistake", [mistake for mistake in WRONG if WRONG[mistake][0] in PHASES])
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    phase, right, wrong, says = WRONG[mistake]
    source = reference(phase)
    assert source.count(right) == 1
    verdict = checked(phase, source.replace(right, wrong))
    assert not verdict.passed
    assert says in verdict.sentence
    assert verdict.test.startswith("tests/") and "\n" not in verdict.sentence
