"""Rows of one sequence attend as a block, and many rows are multiplied in panels: as the torch forward does."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from gradus.kernels.cpu.activations import MOST_ROWS
from gradus.kernels.cpu.attention.block import MOST_TOGETHER, TILE
from gradus.kernels.cpu.outer import PANEL, SQUARE
from gradus.kernels.cpu.vectors import BY_PAIRS
from gradus.models.precision import NarrowLinear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear
from tests.kernels.cpu.steps import Pages, Step, close, made, poison, same, widened
from tests.phases.conftest import FAMILIES

FEWEST = SQUARE  # rows of a block


@pytest.mark.parametrize(
    "counts",
    [[FEWEST], [MOST_ROWS], [MOST_TOGETHER + 9, 3, MOST_TOGETHER - 17], [1, 13, 1, 8], [FEWEST - 1, FEWEST + 1, 30]],
)
@pytest.mark.parametrize("shape", FAMILIES)
def test_a_prompts_rows_beside_those_of_others(shape, counts):
    model = made(shape, context_length=512)
    step, pages = Step(model, [3, 0, 60, 17][: len(counts)], counts), Pages(model)
    decode = pages.decode_model(model)
    close(step.compiled(decode), step.in_torch(model, Pages(model)))
    assert decode.step.spans["rows"][0].max() == min(max(counts), MOST_TOGETHER)


@pytest.mark.parametrize("context", [0, 1, TILE - 9, TILE - 8, TILE, 200, 1300])
@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-llama", "tiny-gemma3"])
def test_every_edge_of_tiles_windows_and_spans(shape, context):
    model = made(shape, context_length=1400)
    step = Step(model, [context], [19])
    found = step.compiled(Pages(model).decode_model(model))
    close(found, step.in_torch(model, Pages(model)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("head_dim", "heads", "kv_heads"), [(64, 6, 2), (24, 5, 1), (40, 2, 2), (80, 4, 2), (20, 2, 1)]
)
def test_query_heads_that_share_keys(head_dim, heads, kv_heads, dtype):
    """Panels that several heads fill, and one that stays half empty; and heads of 20, which are no whole squares."""
    model = made("tiny-llama", head_dim=head_dim, num_heads=heads, num_kv_heads=kv_heads)
    step, pages, exact = Step(model, [20], [12]), Pages(model, dtype=dtype), Pages(model)
    for name in ("keys", "values"):
        getattr(exact.storage, name).copy_(getattr(pages.storage, name))
    decode = pages.decode_model(model)
    close(step.compiled(decode), step.in_torch(model, exact), 1e-4 if dtype == torch.float32 else 2e-2)
    assert (decode.step.spans["rows"][0, 0] == 12) == (head_dim % SQUARE == 0)


def test_softly_capped_scores():
    model = made("tiny-llama")
    model.config = replace(model.config, attention_softcap=2.0)
    step = Step(model, [50], [24])
    close(step.compiled(Pages(model).decode_model(model)), step.in_torch(model, Pages(model)))


@pytest.mark.parametrize("page_size", [1, 7, 100])
def test_it_stores_the_new_keys_and_values_and_nothing_else(page_size):
    model = made("tiny-gemma3")
    step, mine, theirs, before = (
        Step(model, [30, 2], [40, 9]), Pages(model, page_size), Pages(model, page_size), Pages(model, page_size)
    )  # fmt: skip
    step.compiled(mine.decode_model(model))
    step.in_torch(model, theirs)
    for name in ("keys", "values"):
        found, expected, old = (getattr(pages.storage, name) for pages in (mine, theirs, before))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(found == old, expected == old)


@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-llama", "tiny-gemma3"])
def test_nothing_of_an_earlier_step_is_read(shape):
    model = made(shape)
    step = Step(model, [37], [21])
    expected = step.compiled(Pages(model).decode_model(model))
    pages = Pages(model)
    seen = torch.zeros(pages.storage.keys.shape[1:3], dtype=torch.bool)
    for table in pages.attention.tables:
        at = torch.arange(37)
        seen[table[step.slots[0], at // 16], at % 16] = True
    for kept in (pages.storage.keys, pages.storage.values):
        kept[:, ~seen] = float("nan")
    decode = pages.decode_model(model)
    poison(decode)
    same(step.compiled(decode), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_sequence_that_is_not_finite_stays_alone_and_can_be_seen(bad):
    model = made("tiny-llama")
    step = Step(model, [31, 20], [16, 16])
    expected = step.compiled(Pages(model).decode_model(model))
    pages = Pages(model)
    pages.storage.values[:, pages.attention.tables[0, step.slots[1], 1], 3] = bad  # position 19 of the second
    found = step.compiled(pages.decode_model(model))
    assert not found[16:].isfinite().any()
    assert torch.equal(found[:16], expected[:16])


@pytest.mark.parametrize("rows", [PANEL, PANEL + 5, 2 * PANEL, MOST_ROWS])
@pytest.mark.parametrize(
    ("linear", "tolerance", "later"),  # later: of rows from the 65th on
    [
        (partial(NarrowLinear, widen_from=1 << 30), 1e-4, 1e-4),
        (partial(Int4Linear, group=32), *2 * [1e-3 if BY_PAIRS else 1e-4]),  # AVX2 rounds activations to int16
        (Int8Linear, 0.05, 0.07),  # rounds activations to int8: of 128 rows, the worst is off by 0.065
    ],
    ids=["bfloat16", "int4", "int8"],
)
def test_kinds_of_matrices_times_many_rows(linear, tolerance, later, rows):
    model = made("tiny-llama", linear)
    step = Step(model, [0], [min(rows, MOST_ROWS)])
    found, expected = step.compiled(Pages(model).decode_model(model)), step.in_torch(widened(model), Pages(model))
    close(found[:64], expected[:64], tolerance)
    close(found[64:], expected[64:], later)


def test_heads_leave_their_sums_where_rows_expect_them():
    """Each partial that a block's rows own is written, and no other."""
    model = made("tiny-llama", context_length=1024)
    decode = Pages(model).decode_model(model)
    poison(decode)
    Step(model, [700, 5], [10, 1]).compiled(decode)
    end = decode.step.span_starts[0, 11]
    written = ~np.isnan(decode.step.partials).any(axis=(1, 2))
    assert written[:end].all() and not written[end:].any()
