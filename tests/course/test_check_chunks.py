"""The mistakes that counting a long prompt invites are caught, and the check says in a sentence what is wrong."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

FILE = "chunks.py"
PAIRS = "count * start + count * (count + 1) // 2"
FLOPS = "return 2 * sizes.weights * count + 4 * sizes.width * pairs(start, count)"
ROOT = "max(1, (isqrt(linear * linear + 4 * square * limit) - linear) // (2 * square))"
LINEAR = "linear = 2 * sizes.weights + 4 * sizes.width * start + square"
COUNT = "min(most_tokens(sizes, start, limit), end - start)"

WRONG = {
    # the file, the right text, the wrong text, what the sentence must say
    "a token does not see itself": (
        FILE, PAIRS, "count * start + count * (count - 1) // 2", "the first token sees itself: 1; yours: 0",
    ),
    "all tokens see the whole chunk": (FILE, PAIRS, "count * (start + count)", "1 + 2 + 3 + 4: 10; yours: 16"),
    "tokens see the chunk alone": (FILE, PAIRS, "count * (count + 1) // 2", "the 7 before it, and itself: 8; yours: 1"),
    "tokens see what came before alone": (FILE, PAIRS, "count * start", "the first token sees itself: 1; yours: 0"),
    "a pair has one product": (
        FILE, FLOPS, FLOPS.replace("4 *", "2 *"), "200 for 100 weights, 4 · 5 for one pair: 220; yours: 210",
    ),
    "a weight is one operation": (FILE, FLOPS, FLOPS.replace("2 *", "1 *"), "one pair: 220; yours: 120"),
    "weights count once for a chunk": (FILE, FLOPS, FLOPS.replace(" * count +", " +"), ": 1000; yours: 400"),
    "the even position is a prompt's": (
        FILE, "sizes.weights / (2 * sizes.width)", "sizes.weights / sizes.width", "position 10; yours: 20",
    ),
    "every token costs what the first one does": (
        FILE, ROOT, "max(1, limit // flops(sizes, start, 1))", "4 tokens cost 1000, one too many: 3; yours: 4",
    ),
    "the limit must not be reached": (FILE, "* limit)", "* (limit - 1))", "just 1000: 4; yours: 3"),
    "a chunk may be one token too long": (FILE, ROOT, f"1 + {ROOT}", "4 tokens cost just 1000: 4; yours: 5"),
    "a chunk may be empty": (FILE, ROOT, ROOT.replace("max(1,", "max(0,"), "but a prompt must advance: 1; yours: 0"),
    "the root is a float": (
        FILE, ROOT, "max(1, int(((linear**2 + 4 * square * limit) ** 0.5 - linear) / (2 * square)))",
        "Integers stay exact, floats do not",
    ),
    "the start does not count": (
        FILE, LINEAR, LINEAR.replace("* start ", "* 0 "), "3 tokens cost just 1140: 3; yours: 4",
    ),
    "the triangle's diagonal is left out": (FILE, LINEAR, LINEAR.replace(" + square", ""), "one too many: 3; yours: 4"),
    "the last chunk is as long as the limit allows": (
        FILE, COUNT, "most_tokens(sizes, start, limit)", "the rest 400: [(0, 4), (4, 3), (7, 2), (9, 1)]; yours: ",
    ),
    "all chunks are as long as the first": (
        FILE, COUNT, "min(most_tokens(sizes, 0, limit), end - start)", "yours: [(0, 4), (4, 4), (8, 2)]",
    ),
    "a prompt always begins at 0": (
        FILE, "    chunks = []\n", "    chunks = []\n    start = 0\n", "limit 5000: the limit allows more than is left",
    ),
    "the start stays where it is": (FILE, "start += count", "start += 0", "cut goes on and on"),
    "an empty chunk follows the last one": (FILE, "while start < end:", "while start <= end:", "cut goes on and on"),
    "the rest is left out": (
        FILE, "while start < end:", "while start + most_tokens(sizes, start, limit) <= end:", "the rest 400",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p09", name)
    assert source.count(right) == 1
    verdict = checked("p09", source.replace(right, wrong), exercise_of(phases.find("p09"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises_chunks.py") and "\n" not in verdict.sentence
