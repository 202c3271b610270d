"""The kernel's sums over 32,768 keys in 8 bits, in Triton's interpreter: see test_long_sums.py."""

from dataclasses import replace

import pytest
import torch

from gradus.kernels.attention.launch import Launch
from gradus.quantization.kv import to_e4m3
from tests.kernels import long_sums
from tests.kernels.cases import Step

KEYS = 32_768
WHOLE = Launch(rows=16, keys=256, warps=4, stages=2, live=1, processors=1)
SPLIT = Launch(rows=16, keys=256, warps=4, stages=2, live=1, processors=8)


def step_of(q, k, v) -> Step:
    """One decode that reads these keys and values from pages that lie anywhere."""
    step = Step([(1, len(k))], heads=1, group=1, head_dim=long_sums.WIDTH, fp8=True)
    step.q = q
    pages = step.tables[step.slots[0], : len(k) // step.page].long()
    for name, part, kept in (("keys", k, 0), ("values", v, 1)):
        bits, scales = to_e4m3(part)
        getattr(step, name).view(torch.uint8)[pages] = bits.view(torch.uint8).unflatten(0, (-1, step.page))
        step.scales[kept][pages] = scales.unflatten(0, (-1, step.page)).transpose(1, 2)
    return step


IN_HALVES = replace(SPLIT, halves=True)


@pytest.mark.parametrize(
    ("launch", "depth"), [(WHOLE, 0.1), (SPLIT, 0.9), (IN_HALVES, 0.1)], ids=["in one sum", "in splits", "in float16"]
)
def test_a_needle_of_a_five_hundredth_survives_the_sum(launch, depth):
    q, k, v, at = long_sums.haystack(KEYS, depth)
    step = step_of(q, k, v)
    expected, missed = step.expected(), long_sums.missed(q, k, v, at)
    assert torch.allclose(expected[0, 0], long_sums.weights(q, k) @ v[:, 0].double(), rtol=1e-9)
    assert (step.attend(launch).double() - expected).abs().max() <= 0.01 * missed.abs().min()
