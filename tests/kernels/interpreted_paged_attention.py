"""Run by test_paged_attention.py in a process of its own, where Triton interprets: the kernels on the CPU, step by step.

Tiny on purpose: the interpreter takes tens of milliseconds a program.
"""

import pytest
import torch

from gradus.kernels.attention_work import Launch
from tests.kernels.cases import Step

SMALL = Launch(rows=16, keys=16, warps=4, stages=2, programs=8)
LARGE = Launch(rows=64, keys=32, warps=4, stages=2, programs=8, unmasked=True)
MIXED = [(1, 37), (3, 3), (0, 0), (20, 45), (1, 1), (1, 0)]  # decode, prefill, padding twice, a chunk, a first token


@pytest.mark.parametrize(
    "step",
    [
        Step(MIXED),
        Step(MIXED, window=7),
        Step(MIXED, softcap=1.5, page=24),
        Step([(40, 70), (1, 100)], group=3, head_dim=24),
        Step([(2, 90)], heads=1, group=5, head_dim=20, window=50, dtype=torch.float16),
    ],
    ids=["mixed", "window", "softcap", "odd group and width", "float16, split verification in a window"],
)
def test_the_kernels_attend_as_torch_does(step):
    found, expected = step.attend(SMALL, LARGE), step.expected()
    tolerance = 1e-5 if step.dtype == torch.float32 else 3e-3
    assert (found.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("window", [None, 40])
def test_every_visible_key_is_in_exactly_one_item_of_its_tile(window):
    step = Step([(1, 300), (9, 9), (1, 20), (0, 0), (30, 150)], heads=1, window=window)
    work = step.work(Launch(rows=16, keys=16, warps=4, stages=2, programs=32))
    tiles = {}
    for row, tokens, position, slot, *part in work.items.tolist():
        if tokens:
            tiles.setdefault((row, tokens, position, slot), []).append(part)
    rows = [row + i for row, tokens, *_ in tiles for i in range(tokens)]
    assert sorted(rows) == list(range(step.query_start[-1]))  # each row in one tile
    places = []
    for (_, tokens, position, _), parts in tiles.items():
        parts.sort(key=lambda part: part[2])
        assert [part[2:] for part in parts] == [[n, len(parts), parts[0][4]] for n in range(len(parts))]
        covered = [key for low, high, *_ in parts for key in range(low, high)]
        assert covered == list(range(covered[0], position + tokens))
        assert covered[0] <= max(0, position - (window or 1 << 30) + 1)
        if len(parts) > 1:
            places += [partial + split for _, _, split, _, partial in parts]
    assert len(set(places)) == len(places) > 0 and max(places) < 2 * work.most
