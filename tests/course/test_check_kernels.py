"""The mistakes that a first kernel invites are caught in the interpreter, and the check says what is wrong."""

import pytest

pytest.importorskip("triton")

from tests.course.conftest import reference

CENTERED = "x = tl.where(inside, x - tl.sum(x, 0) / D, 0.0)"
STORED = "        tl.store(x_ptr + here, x, mask=inside)\n"

WRONG = {
    # the right text, the wrong text, what the sentence must say
    "lanes beyond the row count": (CENTERED, "x = x - tl.sum(x, 0) / D", "takes the mean of the row alone"),
    "the block is taken for the row": ("tl.sum(x * x, 0) / D + eps", "tl.sum(x * x, 0) / 128 + eps", "y is off by"),
    "the sum is forgotten": (STORED, "", "x, which is to be x + delta afterwards, is off by"),
    "eps is made up": (
        "_moments(x.to(tl.float32), inside, D, CENTER, eps)",
        "_moments(x.to(tl.float32), inside, D, CENTER, 1.0)",
        "y is off by",
    ),
    "every program writes the first row": (
        "here = tl.program_id(0).to(tl.int64) * D + column",
        "here = column",
        "y has values that nobody wrote",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_kernel_is_caught_and_explained(checked, mistake):
    right, wrong, says = WRONG[mistake]
    source = reference("p09")
    assert source.count(right) == 1
    verdict = checked("p09", source.replace(right, wrong))
    assert not verdict.passed
    assert says in verdict.sentence
    assert verdict.test.startswith("tests/kernels/") and "\n" not in verdict.sentence
