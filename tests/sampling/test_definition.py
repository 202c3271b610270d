"""Every sampler does what the definition says (cases.py): any parameters, in any mixture, on any shape of logits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.engine.request import SamplingParams
from tests.pairwise import first
from tests.sampling.cases import SHAPES, Ask, batches, check, define, large_batch, near_cut, shaped


@given(batches())
@settings(deadline=None)
def test_mixed_batches_follow_the_definition(make_sampler, batch):
    check(make_sampler(len(batch[0].logits), len(batch)), batch)


@given(batches(poisons=True), st.data())
@settings(deadline=None)
def test_a_row_is_sampled_as_if_it_were_alone_whatever_its_neighbors(make_sampler, batch, data):
    vocab_size = len(batch[0].logits)
    alone = [check(make_sampler(vocab_size, 1), [ask])[0] for ask in batch]
    order = data.draw(st.permutations(range(len(batch))))
    assert check(make_sampler(vocab_size, len(batch)), [batch[i] for i in order]) == [alone[i] for i in order]


def test_draws_from_few_tokens_meet_every_token_that_a_cut_leaves(make_sampler):
    batch = near_cut(100)
    tokens = check(make_sampler(10, len(batch)), batch)
    for start in range(0, len(batch), 100):
        kept = define(batch[start]).kept
        probabilities = np.exp(batch[start].logits) * kept / np.exp(batch[start].logits)[kept].sum()
        likely = set(np.flatnonzero(probabilities > 0.1).tolist())
        assert likely <= set(tokens[start : start + 100]), batch[start].params


@pytest.mark.parametrize("shape", first(SHAPES, 3))
def test_a_large_vocabulary_follows_the_definition(make_sampler, shape):
    batch = large_batch(shape, 49_152)
    check(make_sampler(49_152, len(batch)), batch)


# -- the definition itself, on rows small enough to check by hand ------------------------------------------------------

QUARTERS = np.log(np.array([8, 4, 2, 1, 1], np.float32) / 16)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (dict(), [0, 1, 2, 3, 4]),
        (dict(top_k=2), [0, 1]),
        (dict(top_k=4), [0, 1, 2, 3, 4]),  # the fifth ties with the fourth
        (dict(top_p=0.4), [0]),
        (dict(top_p=0.6), [0, 1]),
        (dict(top_p=0.8), [0, 1, 2]),
        (dict(top_p=0.9), [0, 1, 2, 3, 4]),
        (dict(top_k=2, top_p=0.6), [0]),  # 8 of 12
        (dict(top_k=2, top_p=0.7), [0, 1]),
        (dict(min_p=0.2), [0, 1, 2]),
        (dict(min_p=0.6, top_p=0.9), [0]),
        (dict(min_p=1.0), [0]),
    ],
)
def test_the_definition_keeps_what_it_should(params, kept):
    found = define(Ask(QUARTERS, SamplingParams(temperature=1.0, **params)))
    assert np.flatnonzero(found.kept).tolist() == kept and not found.edge.any()


def test_the_definition_tells_a_wrong_token():
    """A checker that allows anything would let every sampler pass."""
    greedy = define(Ask(QUARTERS, SamplingParams()))
    assert [greedy.allows(token) for token in range(-1, 5)] == [False, True, False, False, False, False]
    narrow = define(Ask(QUARTERS, SamplingParams(temperature=1.0, top_k=2, seed=0)))
    assert sum(narrow.allows(token) for token in range(5)) == 1 and not narrow.allows(-1)
    ended = define(Ask(np.array([math.nan, 1], np.float32), SamplingParams()))
    assert ended.allows(-1) and not ended.allows(1)


def test_tokens_at_the_edge_may_go_either_way():
    row = np.log(np.array([0.5, 0.25, 0.25 - 1e-7, 1e-7], np.float32))
    assert np.flatnonzero(define(Ask(row, SamplingParams(temperature=1.0, top_p=0.5))).edge).tolist() == [1]
    assert not define(Ask(shaped("normal", 50, 1), SamplingParams(temperature=1.0, top_p=0.5))).edge.any()
