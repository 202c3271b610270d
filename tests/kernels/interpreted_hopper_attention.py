"""Long prompts on Hopper, without a GPU: test_paged_attention.py runs this in a process where Triton interprets.

Warp groups are threads, kept apart by the kernel's barriers alone (`interpreted_warp_groups.py`). Pages and queries
hold NaN where nothing may be read. The last test breaks the kernel, to show that the others would fail.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from triton.runtime.errors import InterpreterError

from gradus.kernels.attention import hopper
from gradus.kernels.attention.launch import HOPPER_LAUNCHES
from gradus.kernels.attention.widen import WidenedPrompts
from tests.kernels import interpreted_warp_groups
from tests.kernels.cases import Step
from tests.pairwise import each_once

# prompts, chunks behind cached positions, a token, lengths that end within a page and at its end
SPANS = [(37, 37), (50, 200), (16, 16), (1, 130), (70, 85)]
PROGRAMS = 3  # with several tiles each, so that they go round their rings


def step_of(spans: list[tuple[int, int]], head_dim: int, group: int = 4, heads: int = 2, **options) -> Step:
    return Step(spans, heads=heads, group=group, head_dim=head_dim, dtype=torch.bfloat16, **options).in_product()


def attended(step: Step, kernel: ModuleType = hopper, programs: int = PROGRAMS) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        interpreted_warp_groups.interpret(kernel, patch)
        out = torch.full(step.q.shape, float("nan"), dtype=step.dtype)
        prompts = kernel.HopperPrompts({5: (step.keys, step.values)}, programs)
        work = step.work(HOPPER_LAUNCHES[step.head_dim])
        prompts.attend(5, step.q, step.tables.long(), work, out, 0.3, step.sink_logits)
        return out


def is_close(found: Tensor, step: Step) -> bool:
    expected = step.expected()
    off = (found.double() - expected).norm(dim=-1)  # a wrong row must not hide among good ones
    return bool((off <= 0.01 * expected.norm(dim=-1).mean()).all() and off.norm() <= 3e-3 * expected.norm())


@pytest.mark.parametrize(("head_dim", "group"), each_once([64, 128, 256], [1, 4, 7, 8]))
def test_groups_and_uneven_spans(head_dim, group):
    step = step_of(SPANS, head_dim, group)
    assert is_close(attended(step), step)


# windows of a block, of one key, of keys that end within pages, and of several blocks, some of them without a mask
@pytest.mark.parametrize(
    ("head_dim", "group", "window", "sinks"),
    each_once([(64, 8, 128), (128, 4, 1), (256, 4, 70), (128, 8, 200), (64, 4, 1000)], [False, True]),
)
def test_windows_and_sinks(head_dim, group, window, sinks):
    step = step_of([(30, 420), (17, 17), (3, 129)], head_dim, group, window=window, sinks=sinks)
    assert is_close(attended(step), step)


def test_sinks_of_a_padded_group():
    step = step_of([(30, 100), (3, 3)], 64, 7, sinks=True)
    assert is_close(attended(step), step)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_every_end_of_a_page_and_of_a_block(head_dim):
    step = step_of([(min(length, 2), length) for length in (1, 15, 16, 17, 63, 64, 65, 127, 128, 129)], head_dim)
    assert is_close(attended(step), step)


def test_results_are_the_same_bits_whichever_program_has_a_tile():
    step = step_of(SPANS, 64)
    assert torch.equal(attended(step, programs=1), attended(step, programs=7))


STALE = 0x7FC5  # the bits of a NaN that no arithmetic makes


class Kept(NamedTuple):
    """A cache of 8 bits with one layer."""

    step: Step

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.step.keys, self.step.values

    def scales(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.step.scales


@pytest.mark.parametrize(
    ("spans", "window", "sinks"),
    [
        ([(1, 40), (37, 200), (1, 9)], None, False),
        ([(70, 70)], None, True),
        ([(1, 40), (20, 180)], 50, False),
        ([(20, 165)], 50, True),
    ],
    ids=["a chunk beside decodes", "a prompt", "a window from the last row of a page", "from the first"],
)
def test_a_long_prompt_over_8_bits_is_widened_in_its_tables_order(spans, window, sinks):
    """Widened pages are stale, and the cache is NaN, wherever the prompt must not read."""
    step = step_of(spans, 64, window=window, sinks=sinks, fp8=True)
    (long, length), number = max((span, number) for number, span in enumerate(spans))
    first, out = step.query_start[number], torch.full(step.q.shape, float("nan"), dtype=step.dtype)
    launch, width = HOPPER_LAUNCHES[64], step.tables.shape[1]
    pages = torch.full((2, width, 16, step.heads, 64), STALE, dtype=torch.int16).view(torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch:
        interpreted_warp_groups.interpret(hopper, patch)
        prompts = WidenedPrompts(Kept(step), pages, hopper.HopperPrompts({0: (pages[0], pages[1])}, PROGRAMS))
        prompts.begin(step.numbers(step.slots), step.numbers(step.lengths), [count for count, _ in spans])
        prompts.attend(0, step.q, step.tables.long(), step.work(launch, fewest=2), out, 0.3, step.sink_logits)
    mine = slice(first, first + long)
    off = (out[mine].double() - step.expected()[mine]).norm(dim=-1)
    assert (off <= 0.01 * step.expected()[mine].norm(dim=-1).mean()).all()
    assert out[:first].isnan().all() and out[first + long :].isnan().all()
    filled = (pages.view(torch.int16) != STALE).flatten(2).all(2).tolist()
    oldest = 0 if window is None else (length - long - window + 1) // 16
    assert filled[0] == filled[1] == [oldest <= place < -(-length // 16) for place in range(width)]


BLOCKED, UNFINISHED = "wait for each other forever", "'Product.*' object has no attribute"
TWICE, TOO_MANY = "a barrier turned twice", "more arrivals than the barrier counts"
WRONG = "values"

# by what is wrong with the kernel: the passage, what it becomes, and what then comes out
BROKEN = {
    "a place is given back before its products are done": (
        """        seen, total, weights = warpgroup_mma_wait(0, deps=[seen, total, weights_after])
        _done_with(ring, n, SHAPE)
""",
        """        _done_with(ring, n, SHAPE)
        seen, total, weights = warpgroup_mma_wait(0, deps=[seen, total, weights_after])
""",
        WRONG,
    ),
    "a place is never given back": ("            _done_with(ring, n, SHAPE)\n", "", BLOCKED),
    "queries are given back before they are read": (
        "            mbarrier.wait(queries.full, taken & 1)\n",
        "            mbarrier.wait(queries.full, taken & 1)\n            mbarrier.arrive(queries.empty)\n",
        TWICE,
    ),
    "queries are never given back": ("            mbarrier.arrive(queries.empty)\n", "", BLOCKED),
    "keys are not waited for": ("    _until_full(ring, n, SHAPE)\n    return", "    return", TOO_MANY),
    "the producer waits for the other parity": (
        "((n // SHAPE.stages) & 1) ^ 1)", "(n // SHAPE.stages) & 1)", BLOCKED,
    ),
    "consumers wait for the other parity": (
        "(n // SHAPE.stages) & 1)\n", "((n // SHAPE.stages) & 1) ^ 1)\n", TOO_MANY,
    ),
    "one consumer's arrival is enough": ("_barriers(STAGES, SHAPE.consumers)", "_barriers(STAGES, 1)", TWICE),
    "too few bytes are expected": ("SHAPE.keys * SHAPE.head_dim * 4", "SHAPE.keys * SHAPE.head_dim * 2", WRONG),
    "too many bytes are expected": ("SHAPE.keys * SHAPE.head_dim * 4", "SHAPE.keys * SHAPE.head_dim * 5", BLOCKED),
    "scores are taken before they are there": ("warpgroup_mma_wait(2,", "warpgroup_mma_wait(3,", UNFINISHED),
    "sums are taken before they are there": (
        "warpgroup_mma_wait(0, deps=[seen, total])", "warpgroup_mma_wait(1, deps=[seen, total])", UNFINISHED,
    ),
    "a window has one key more": ("> position[:, None] - SHAPE.window", ">= position[:, None] - SHAPE.window", WRONG),
    "a window's first block has no mask": (" + KEYS - 1) // KEYS, middle)", ") // KEYS, middle)", WRONG),
    "a row sees the key behind it": ("(key[None, :] <= position", "(key[None, :] - 1 <= position", WRONG),
    "a block too many has no mask": ("(start + 1 - origin) // KEYS", "(start + KEYS - origin) // KEYS", WRONG),
    "pages are shifted by a row too many": (
        "high - (place + i + 1) * PAGE, -PAGE)", "high - (place + i + 1) * PAGE - 1, -PAGE)", WRONG,
    ),
    "values are those of the next keys": (
        "full, stage, pages, place, high, head, SHAPE)\n                    place -=",
        "full, stage, nexts, place - BLOCK_PAGES, high, head, SHAPE)\n                    place -=",
        WRONG,
    ),
    "boxes of two columns change places": (
        "(stage * COLUMNS + column) * BLOCK_PAGES + i", "(stage * BLOCK_PAGES + i) * COLUMNS + column", WRONG,
    ),
    "all parts have the first one's queries": ("parts.index(PART)", "parts.index(0)", WRONG),
    "older sums do not shrink": (
        "total = total * gl.convert_layout(shrink, per_row(ONES))[:, None]", "total = total", WRONG,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_found_out(name, tmp_path):
    """One program has three tiles, with blocks at a window's start, within it and at its end, and a last page that is
    not full."""
    step = step_of([(60, 300)], 128, group=8, heads=1, window=180)
    before, after, outcome = BROKEN[name]
    kernel = changed(before, after, tmp_path)
    if outcome == WRONG:
        assert not is_close(attended(step, kernel, programs=1), step)
    else:
        with pytest.raises(InterpreterError, match=outcome):
            attended(step, kernel, programs=1)


def changed(before: str, after: str, folder: Path) -> ModuleType:
    """Load the kernel's module with a passage replaced."""
    source = Path(hopper.__file__).read_text(encoding="utf-8")
    assert before in source, "the kernel is written in another way by now: break that"
    path = folder / "broken_hopper.py"
    path.write_text(source.replace(before, after), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
