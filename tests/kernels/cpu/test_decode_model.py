"""A decode step by the compiled kernels is the model's torch forward: every family, context, and number of rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gradus.kernels.cpu.activations import MOST_ROWS
from gradus.kernels.cpu.attention.row import LONGEST
from gradus.kernels.cpu.vectors import TOGETHER
from tests.kernels.cpu.steps import MANY, SOME, Pages, Step, close, generator, made, poison, same
from tests.phases.conftest import FAMILIES, MIXTURES, NEWER

MIXED = [5, 31, 0, 16, 63, 1, 32, 200]  # one of them a sequence's first token


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("shape", FAMILIES)
def test_every_family_at_every_number_of_rows(shape, rows):
    model = made(shape)
    step = Step(model, MIXED[:rows])
    close(step.compiled(Pages(model).decode_model(model)), step.in_torch(model, Pages(model)))


@pytest.mark.parametrize("counts", [[1], [1] * 8, [12, 1, 73, 3]], ids=["one", "eight", "blocks"])
@pytest.mark.parametrize("shape", [*NEWER, *MIXTURES])
def test_every_newer_family_in_decodes_and_prompts(shape, counts):
    model = made(shape)
    step = Step(model, MIXED[: len(counts)], counts)
    close(step.compiled(Pages(model).decode_model(model)), step.in_torch(model, Pages(model)))


@pytest.mark.parametrize("rows", [9, 11, 16, 20, 32])
@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-llama", "tiny-gemma3"])
def test_as_many_rows_as_a_step_takes(shape, rows):
    model = made(shape)
    step = Step(model, (MIXED * 4)[:rows])
    found = step.compiled(Pages(model, slots=SOME).decode_model(model))
    close(found, step.in_torch(model, Pages(model, slots=SOME)))


@pytest.mark.parametrize(
    ("rows", "eights", "fours"),
    [(3, 4, 4), (5, 8, 5), (9, 9, 9), (10, 10, 10), (11, 12, 12), (13, 16, 13), (17, 17, 17)],
)
def test_a_few_rows_more_than_eight_are_not_filled_up_to_sixteen(rows, eights, fours):
    """Eight sequences are nine rows if one verifies a draft. eights, fours: rows that are multiplied, on a processor
    that takes 8 rows at once, and on one that takes 4."""
    multiplied = eights if TOGETHER == 8 else fours
    model = made("tiny-llama")
    decode = Pages(model, slots=SOME).decode_model(model)
    poison(decode)
    Step(model, (MIXED * 4)[:rows]).compiled(decode)
    filled = [(~np.isnan(worker.rows.x[:, 0])).tolist() for worker in decode.work.workers]
    worked = [rows for rows in filled if any(rows)]  # a thread that came late has multiplied nothing
    assert worked and worked == [[row < multiplied for row in range(MOST_ROWS)]] * len(worked)


@pytest.mark.parametrize("context", [0, 1, 15, 16, 17, 30, 31, 32, 33, 63, 64, 127])
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])
def test_every_context_up_to_the_edges_of_pages_windows_and_spans(shape, context):
    model = made(shape)
    step = Step(model, [context, 3])
    close(step.compiled(Pages(model).decode_model(model)), step.in_torch(model, Pages(model)))


@pytest.mark.parametrize("contexts", [[1300], [511, 512, 513], [1399] + [700] * 7])
@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-llama", "tiny-gemma3"])
def test_contexts_of_several_spans(shape, contexts):
    model = made(shape, context_length=1400)
    pages = Pages(model)
    step, decode = Step(model, contexts), pages.decode_model(model)
    close(step.compiled(decode), step.in_torch(model, Pages(model)))
    spans = decode.step.spans[0, : decode.step.span_starts[0, len(contexts)]]
    assert (spans["high"] - spans["low"]).max() <= LONGEST and len(spans) > len(contexts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("head_dim", "heads", "kv_heads"), [(64, 6, 2), (32, 4, 1), (48, 5, 1), (64, 7, 1), (80, 4, 2)]
)
def test_query_heads_that_share_keys(head_dim, heads, kv_heads, dtype):
    """As many at once as loops are made for, and some alone; heads that are whole vectors, and one that is not."""
    model = made("tiny-llama", head_dim=head_dim, num_heads=heads, num_kv_heads=kv_heads)
    step, pages, exact = Step(model, MIXED), Pages(model, dtype=dtype), Pages(model)
    for name in ("keys", "values"):
        getattr(exact.storage, name).copy_(getattr(pages.storage, name))
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2  # its own key and value: rounded
    close(step.compiled(pages.decode_model(model)), step.in_torch(model, exact), tolerance)


@pytest.mark.parametrize("hidden", [64, 112, 120, 192])
def test_widths_of_every_loop(hidden):
    """Multiples of four vectors, of one, and others."""
    model = made("tiny-llama", hidden_size=hidden)
    for rows in (1, 3):
        step = Step(model, MIXED[:rows])
        close(step.compiled(Pages(model).decode_model(model)), step.in_torch(model, Pages(model)))


@pytest.mark.parametrize("page_size", [1, 7, 16, 100])
def test_pages_of_any_size(page_size):
    model = made("tiny-mistral")
    step = Step(model, MIXED)
    found = step.compiled(Pages(model, page_size).decode_model(model))
    close(found, step.in_torch(model, Pages(model, page_size)))


@pytest.mark.parametrize("shape", FAMILIES)
def test_it_stores_the_new_keys_and_values_and_nothing_else(shape):
    model = made(shape)
    step, mine, theirs, before = Step(model, MIXED), Pages(model), Pages(model), Pages(model)
    step.compiled(mine.decode_model(model))
    step.in_torch(model, theirs)
    for name in ("keys", "values"):
        found, expected, old = (getattr(pages.storage, name) for pages in (mine, theirs, before))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(found == old, expected == old)  # changed in the same places


def test_what_it_stores_is_read_by_the_next_steps():
    model = made("tiny-gemma3")
    pages, theirs = Pages(model), Pages(model)
    decode = pages.decode_model(model)
    for more in range(20):  # into a new page, and beyond the window
        step = Step(model, [context + more for context in (0, 14, 40)])
        close(step.compiled(decode), step.in_torch(model, theirs))


def test_keys_and_values_may_be_bfloat16():
    """Against torch in bfloat16 throughout, whose products are rounded too; and closer, where only the cache is."""
    model = made("tiny-llama")
    step = Step(model, MIXED)
    pages, exact = Pages(model, dtype=torch.bfloat16), Pages(model)
    for name in ("keys", "values"):
        getattr(exact.storage, name).copy_(getattr(pages.storage, name))
    close(step.compiled(pages.decode_model(model)), step.in_torch(model, exact), 2e-2)  # its own key and value: rounded
    narrow = made("tiny-llama", dtype=torch.bfloat16)
    expected = step.in_torch(narrow, Pages(model, dtype=torch.bfloat16))
    close(step.compiled(Pages(model, dtype=torch.bfloat16).decode_model(narrow)), expected, 6e-2)


def test_rounding_to_bfloat16_is_to_nearest_even_and_keeps_nan():
    """The values of a first token's value heads reach the cache unturned: with an identity for a matrix, any number."""
    model = made("tiny-gpt2")
    pages = Pages(model, dtype=torch.bfloat16)
    layer, width = model.layers[0], model.config.hidden_size
    numbers = torch.randn(width, generator=generator(9)) * 10 ** torch.linspace(-20, 20, width)
    numbers[:3] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)])  # halfway: to the even one
    numbers[3] = float("nan")
    layer.qkv.weight.zero_()
    layer.qkv.bias[2 * width :] = numbers
    step = Step(model, [0])
    decode = pages.decode_model(model)
    with torch.inference_mode():
        decode.run(*step.columns)
    first = pages.attention.tables[0, step.slots[0], 0] * pages.storage.page_size
    stored = pages.storage.rows(0)[1][first].flatten()
    assert stored[3].isnan() and torch.equal(stored.nan_to_num(7), numbers.bfloat16().nan_to_num(7))


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("shape", FAMILIES)
def test_nothing_of_an_earlier_step_is_read(shape, rows):
    """Buffers, and pages that the step does not reach, hold NaN; the result is the same to the last bit."""
    model = made(shape)
    step, clean, pages = Step(model, MIXED[:rows]), Pages(model), Pages(model)
    expected = step.compiled(clean.decode_model(model))
    seen = torch.zeros(pages.storage.keys.shape[1:3], dtype=torch.bool)
    for table in pages.attention.tables:
        for slot, context in zip(step.slots, step.positions.tolist(), strict=True):
            at = torch.arange(context)  # not its own: that one it stores
            seen[table[slot, at // 16], at % 16] = True
    for kept in (pages.storage.keys, pages.storage.values):
        kept[:, ~seen] = float("nan")
    decode = pages.decode_model(model)
    poison(decode)
    same(step.compiled(decode), expected)
    step_of_eight = Step(model, MIXED)  # and after rows that ended
    decode = clean.decode_model(model)
    step_of_eight.compiled(decode)
    same(step.compiled(decode), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-llama", "tiny-gemma3"])
def test_a_row_that_is_not_finite_stays_alone_and_can_be_seen(shape, bad):
    model = made(shape)
    step = Step(model, MIXED[:4])
    expected = step.compiled(Pages(model).decode_model(model))
    pages = Pages(model)
    slot = step.slots[1]
    for table in pages.attention.tables:
        pages.storage.values[:, table[slot, 1], 3] = bad  # position 19 of 31
    found = step.compiled(pages.decode_model(model))
    assert not found[1].isfinite().any()
    assert torch.equal(found[[0, 2, 3]], expected[[0, 2, 3]])


def test_a_model_has_room_for_the_longest_of_all_rows():
    """The most spans that a step can have: each row at the end of its context, on more threads than cores."""
    model = made("tiny-gpt2", context_length=600)
    pages = Pages(model, slots=MANY)
    for threads in (1, 7):
        decode = pages.decode_model(model, threads)
        step = Step(model, [599] * MOST_ROWS)
        close(step.compiled(decode), step.in_torch(model, Pages(model, slots=MANY)))


def test_softly_capped_scores():
    model = made("tiny-llama")
    model.config = replace(model.config, attention_softcap=2.0)
    step = Step(model, MIXED)
    expected = step.in_torch(model, Pages(model))
    close(step.compiled(Pages(model).decode_model(model)), expected)
    plain = made("tiny-llama")
    assert not torch.allclose(step.in_torch(plain, Pages(plain)), expected, rtol=1e-3)
