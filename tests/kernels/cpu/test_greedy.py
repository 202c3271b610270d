"""The greedy choice within the head's stage: torch's `argmax` of the same logits, of equal ones the first."""

from functools import partial

import numpy as np
import pytest
import torch
from numba import njit

from gradus.kernels.cpu import model as kernel_model
from gradus.kernels.cpu.decode_step import HEAD
from gradus.kernels.cpu.greedy import token, winner
from gradus.models import Linear
from gradus.models.precision import NarrowLinear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear
from gradus.sampling.sampler import greedy
from tests.kernels.cpu.steps import Pages, Step, generator, made, only, poison

CONTEXTS = [5, 31, 0, 16, 63, 1, 32, 200]
VOCABULARY = 310  # a chunk of 16 columns ends in 6
HEADS = {
    "float32": Linear,
    "bfloat16": partial(NarrowLinear, widen_from=1 << 30),
    "int8": Int8Linear,
    "int4": Int4Linear,
    "int4-g32": partial(Int4Linear, group=32),
}


def decodes(kind: str, distinct: int = VOCABULARY):
    """Return a model whose head repeats a number of distinct rows, and its kernels. Chunks are short."""
    model = made("tiny-gemma3", only("head", HEADS[kind]), hidden_size=128, vocab_size=VOCABULARY)
    rows = torch.arange(VOCABULARY) % distinct
    for values in model.head.parameters():
        values.copy_(values.index_select(values.shape.index(VOCABULARY), rows))
    return model, kernels(model, Pages(model))


def kernels(model, pages):
    decode = pages.decode_model(model)
    decode.step.shape["softcap"] = 0  # it would make infinity finite, as in torch
    return decode


def both(decode, step):
    """The logits of a step and, of the same step again, its tokens."""
    with torch.inference_mode():
        logits = decode.run(*step.columns).clone()
        poison(decode)
        tokens = decode.run(*step.columns, greedy=True)
    assert np.isnan(decode.step.logits).all(), "logits were written"
    return logits, tokens


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(kernel_model, "CHUNK_BYTES", 1)


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize("kind", HEADS)
def test_it_is_the_argmax(kind, rows):
    model, decode = decodes(kind)
    assert decode.step.stages["kind"][-1] == HEAD and decode.step.chunks[-1] == 20
    logits, tokens = both(decode, Step(model, CONTEXTS[:rows]))
    assert torch.equal(tokens, logits.argmax(-1)) and torch.equal(tokens, greedy(logits))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("kind", HEADS)
def test_of_equal_logits_it_is_the_first(kind, rows):
    """Within a chunk and in several of them, which threads finish in any order."""
    model, decode = decodes(kind, distinct=7)
    logits, tokens = both(decode, Step(model, CONTEXTS[:rows]))
    assert ((logits == logits.amax(-1, keepdim=True)).sum(-1) > 3).all()
    assert torch.equal(tokens, logits.argmax(-1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_logit_that_is_not_finite_is_seen(kind, bad):
    """One column in a chunk in the middle. A weight that is infinite may also make a logit that cannot win."""
    model, _ = decodes(kind)
    model.head.weight[150, 3] = bad
    logits, tokens = both(kernels(model, Pages(model)), Step(model, CONTEXTS))
    assert torch.equal(tokens, greedy(logits)) and (tokens == -1).any()
    assert not np.isnan(bad) or (tokens == -1).all()


@pytest.mark.parametrize("kind", HEADS)
def test_a_row_that_is_not_finite_has_no_token_and_stays_alone(kind):
    model, decode = decodes(kind)
    step, pages = Step(model, CONTEXTS[:4]), Pages(model)
    _, expected = both(decode, step)
    for table in pages.attention.tables:
        pages.storage.values[:, table[step.slots[1], 1], 3] = float("nan")
    _, tokens = both(kernels(model, pages), step)
    assert tokens.tolist() == [expected[0], -1, expected[2], expected[3]]


def test_of_the_rows_that_are_wanted_alone():
    model, decode = decodes("bfloat16")
    step = Step(model, CONTEXTS)
    logits, _ = both(decode, step)
    tokens = decode.run(*step.columns, wanted=np.array([6, 2]), greedy=True)
    assert tokens.tolist() == logits.argmax(-1)[[6, 2]].tolist()
    before = tokens.tolist()
    again = decode.run(*step.columns, wanted=np.array([1, 0]), greedy=True)
    assert again.tolist() == logits.argmax(-1)[[1, 0]].tolist() and tokens.tolist() == before


def test_with_softly_capped_logits():
    """The cap makes equal what was not: what is compared is what it leaves."""
    model, decode = decodes("float32")
    with torch.inference_mode():
        step = Step(model, CONTEXTS)
        first, uncapped = both(decode, step)
        decode.step.shape["softcap"] = 1e-3
        logits, tokens = both(decode, step)
    assert ((logits == logits.amax(-1, keepdim=True)).sum(-1) > 1).any() and not torch.equal(tokens, uncapped)
    assert torch.equal(tokens, logits.argmax(-1)) and torch.equal(uncapped, first.argmax(-1))


# -- words -------------------------------------------------------------------------------------------------------------

NUMBERS = np.array(
    [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, -3e38, np.inf, -np.inf, np.nan, -np.nan], np.float32
)  # fmt: skip


@njit(nogil=True)
def chosen(x, cut):
    """Choose between the results of two chunks, compared in the wrong order."""
    return token(max(winner(x[cut:], len(x) - cut, cut), winner(x, cut, 0)))


@pytest.mark.parametrize("kinds", [2, 8, 9, 12], ids=["zeros", "finite", "infinite", "all"])
def test_words_are_ordered_as_floats_are(kinds):
    """Signed zeros are equal, subnormal numbers count, and NaN is the largest, whatever its sign."""
    draws = generator(kinds)
    for length in [1, 2, 3, 15, 16, 17, 40] * 30:
        row = NUMBERS[torch.randint(kinds, (length,), generator=draws).numpy()]
        expected = greedy(torch.from_numpy(row)[None]).item()
        assert expected == (torch.from_numpy(row).argmax().item() if np.isfinite(row).all() else expected)
        assert chosen(row, int(torch.randint(length + 1, (1,), generator=draws))) == expected, row
