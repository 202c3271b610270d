"""The mistakes that first kernels invite are caught in the interpreter, and the check says what is wrong."""

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

STORED = "    tl.store(x_ptr + here, x, mask=inside)\n"
BASE = '    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen yet: -inf - -inf would be NaN\n'
WEIGHT = "    weight = tl.exp(score - base[:, None])\n    shrink = tl.exp(peak - base)"
WEIGHT += "  # a greater score makes everything before it smaller\n"

WRONG = {
    # file, the right text, the wrong text, what the sentence must say
    "lanes beyond the row count": (
        "norm.py",
        "x = tl.load(x_ptr + here, mask=inside, other=0.0).to(tl.float32)",
        "x = tl.load(x_ptr + here, mask=inside, other=1.0).to(tl.float32)",
        "y, 3 random rows of width 80: at [",
    ),
    "the weight is loaded without a mask": (
        "norm.py",
        "tl.load(weight_ptr + column, mask=inside, other=0.0)",
        "tl.load(weight_ptr + column)",
        "80 numbers of x, delta and weight are 960 bytes, and a program of yours reads 1152: every load needs a mask",
    ),
    "what lies beyond the row is read, and then hidden": (
        "norm.py",
        "x = tl.load(x_ptr + here, mask=inside, other=0.0).to(tl.float32)",
        "x = tl.where(inside, tl.load(x_ptr + here), 0.0).to(tl.float32)",
        "a program of yours reads 1152",
    ),
    "the sum is read back": (
        "norm.py",
        "    x = x.to(tl.float32)\n",
        "    x = tl.load(x_ptr + here, mask=inside, other=0.0).to(tl.float32)\n",
        "a program of yours reads 1280",
    ),
    "y is stored without a mask": (
        "norm.py",
        ".to(y_ptr.dtype.element_ty), mask=inside)",
        ".to(y_ptr.dtype.element_ty))",
        "80 numbers of x and y are 640 bytes, and a program of yours writes 832: every store needs a mask",
    ),
    "lanes beyond the row are left undefined": (
        "norm.py",
        "delta = tl.load(delta_ptr + here, mask=inside, other=0.0)",
        "delta = tl.load(delta_ptr + here, mask=inside)",
        "where a masked load without `other` leaves anything",
    ),
    "the block is taken for the row": (
        "norm.py",
        "tl.sum(x * x, 0) / D + eps",
        "tl.sum(x * x, 0) / BLOCK + eps",
        "y, 3 random rows of width 80: at [",
    ),
    "the sum is forgotten": (
        "norm.py",
        STORED,
        "",
        "x, which is to be x + delta afterwards, 3 random rows of width 80: at [",
    ),
    "the sum is normalized before it is rounded": (
        "norm.py",
        "x = (x + delta).to(x_ptr.dtype.element_ty)",
        "x = x + delta",
        "of the rounded sums 2048 and 2052, y is 0.9990 and 1.0010; yours",
    ),
    "every program writes the first row": (
        "norm.py",
        "here = tl.program_id(0).to(tl.int64) * D + column",
        "here = column",
        "y has values that nothing wrote",
    ),
    "the sums are not scaled down": (
        "paged_attention.py",
        "shrink = tl.exp(peak - base)",
        "shrink = tl.exp(peak - peak)",
        "a step attends as the formula says",
    ),
    "the total is forgotten when a greater score comes": (
        "paged_attention.py",
        "total = total * shrink + tl.sum(weight, 1)",
        "total = total + tl.sum(weight, 1)",
        "decodes: at [",
    ),
    "a row that has seen nothing": (
        "paged_attention.py",
        BASE,
        "    base = new_peak\n",
        "a row that has seen no key has a peak of -inf, and -inf - -inf is NaN",
    ),
    "a row that has seen nothing passes a peak of 0 on": (
        "paged_attention.py",
        "return seen, total, new_peak",
        "return seen, total, base",
        "the peak of a row that has seen no key stays -inf, whatever you subtract: off by",
    ),
    "no score is subtracted": (
        "paged_attention.py",
        WEIGHT,
        "    weight = tl.exp(score)\n    shrink = tl.exp(base - base)\n",
        "exp(score) overflows or is 0 unless the greatest score is subtracted",
    ),
    "the last block is left out": (
        "splits.py",
        "blocks = tl.cdiv(length, KEYS)",
        "blocks = length // KEYS",
        "1 keys, 1 parts: key 0 is to be read once, and is read 0 times: [(0, 0)]",
    ),
    "parts overlap by a key": (
        "splits.py",
        "return start, tl.minimum(stop, length)",
        "return tl.maximum(start - 1, 0), tl.minimum(stop, length)",
        "is read 2 times",
    ),
    "a part goes on behind the end": (
        "splits.py",
        "return start, tl.minimum(stop, length)",
        "return start, stop",
        "1 keys, 1 parts: none may end behind the last key, and yours are [(0, 32)]",
    ),
    "the last part takes what is left over": (
        "splits.py",
        "    stop = (part + 1) * blocks // PARTS * KEYS\n",
        "    start = part * (blocks // PARTS) * KEYS\n"
        "    stop = tl.where(part == PARTS - 1, length, (part + 1) * (blocks // PARTS) * KEYS)\n",
        "so with 4 parts none needs more than 1 of them; one of yours takes 2",
    ),
    "one part has all the keys": (
        "splits.py",
        "return start, tl.minimum(stop, length)",
        "return length * 0, tl.where(part == 0, length, 0)",
        "none needs more than 1 of them; one of yours takes 2",
    ),
    "parts count alike, whatever their totals": (
        "splits.py",
        "    return tl.sum(seen * shrink[:, None], 0) / tl.where(total == 0.0, 1.0, total)",
        "    return tl.sum(seen / total, 0)",
        "12 keys, halves, scores around 0, against the softmax over all keys: at [",
    ),
    "each part is divided before they are added": (
        "splits.py",
        "    total = tl.sum(total * shrink, 0)\n",
        "    seen = seen / tl.where(total == 0.0, 1.0, total)[:, None]\n    total = tl.sum(shrink, 0)\n",
        "against the softmax over all keys",
    ),
    "sums are added without a common peak": (
        "splits.py",
        'shrink = tl.exp(peak - tl.where(highest == float("-inf"), 0.0, highest))  # -inf - -inf would be NaN',
        'shrink = tl.where(peak == float("-inf"), 0.0, 1.0)',
        "against the softmax over all keys",
    ),
    "the common peak is never below 0": (
        "splits.py",
        'tl.exp(peak - tl.where(highest == float("-inf"), 0.0, highest))',
        "tl.exp(peak - tl.maximum(highest, 0.0))",
        "scores around -200, against the softmax over all keys: at [",
    ),
    "no part has a key": (
        "splits.py",
        'tl.exp(peak - tl.where(highest == float("-inf"), 0.0, highest))',
        "tl.exp(peak - highest)",
        "no part has a key: every peak is -inf, and -inf - -inf is NaN",
    ),
    "nothing is divided by nothing": (
        "splits.py",
        "tl.where(total == 0.0, 1.0, total)",
        "total",
        "no part has a key",
    ),
    "no eps": (
        "norm.py",
        "/ D + eps)",
        "/ D)",
        "the row [1, 1, 1, 1] with eps 3: 1 / √(1 + 3) is 0.5; yours: [1.0",
    ),
    "a part starts behind the end": (
        "splits.py",
        "    start = part * blocks // PARTS * KEYS\n    stop = (part + 1) * blocks // PARTS * KEYS\n",
        "    start = part * tl.cdiv(blocks, PARTS) * KEYS\n    stop = start + tl.cdiv(blocks, PARTS) * KEYS\n",
        "start and stop of a part without keys are equal; yours: [(",
    ),
    "keys are counted, not weighed": (
        "paged_attention.py",
        "tl.sum(weight, 1)",
        'tl.sum((score > float("-inf")).to(tl.float32), 1)',
        "decodes: at [",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_kernel_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p09", name)
    assert source.count(right) == 1
    verdict = checked("p09", source.replace(right, wrong), exercise_of(phases.find("p09"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/kernels/") and "\n" not in verdict.sentence
