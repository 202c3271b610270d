"""The parts on their own: what is looked up, what stands, and what the history keeps."""

import numpy as np
import pytest
import torch

from gradus.engine.plan import REJECTED, UNDRAFTED, Admission
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.kernels.step import plain
from gradus.kernels.step.ngram_reference import look_up
from gradus.kernels.step.plain import standing
from gradus.speculative.history import History


@pytest.mark.parametrize(
    ("said", "drafts"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], [4, 9, 1, 2]),  # what followed 1 2 3
        ([1, 2, 5, 1, 2, 6, 1, 2], [6, 1, 2, 6]),  # of two matches the newer, and what follows it repeats
        ([8, 1, 2, 5, 0, 1, 2, 6, 8, 1, 2], [5, 0, 1, 2]),  # the longer match before the newer
        ([7, 7, 7], [7, 7, 7, 7]),
        ([1, 2, 3, 4, 3], [-1] * 4),  # one token alone is no match
        ([5], [-1] * 4),
        ([5, 5], [-1] * 4),
    ],
)
def test_a_draft_is_what_followed_the_longest_and_then_the_newest_match(said, drafts):
    tokens = torch.full((1, 16), 3, dtype=torch.int32)  # beyond its end a slot has what others have left
    tokens[0, : len(said)] = torch.tensor(said)
    assert look_up(tokens, torch.tensor([len(said)]), 4).tolist() == [drafts]


def test_the_longest_agreeing_prefix_stands_in_each_span():
    """Three spans: 3 drafts of which 1 is right; none; 2 drafts, all right."""
    before = np.array([0, 1, 2, 3, 0, 0, 1, 2])
    tokens = np.array([9, 5, 7, 8, 9, 9, 1, 2])
    drawn = np.array([5, 6, 8, 8, 4, 1, 2, 3])
    assert standing(drawn, tokens, before).tolist() == [True, True, False, False, True, True, True, True]


def test_a_row_without_a_finite_logit_stands_only_as_the_first_of_its_span():
    before, tokens = np.array([0, 0, 1, 2]), np.array([9, 9, 5, -1])
    assert standing(np.array([-1, 5, -1, 3]), tokens, before).tolist() == [True, True, False, False]


def test_the_history_forgets_with_its_owner_and_padding_stays_one_token_long():
    history = History(2, 10, torch.device("cpu"))
    request = Request.create("a", [4, 5], SamplingParams(max_tokens=4), ModelLimits(10, 10))
    history.admit([Admission(1, request, 0, (4, 5, 6))])
    assert history.tokens[1, :3].tolist() == [4, 5, 6] and history.lengths.tolist() == [1, 3, 1]
    history.admit([Admission(1, request, 0, (4, 5))])
    assert history.lengths.tolist() == [1, 2, 1]


def tables() -> tuple[np.ndarray, np.ndarray]:
    """Tokens and lengths of slots with 2, 3 and 1 tokens; the last is padding's."""
    tokens = np.array([[4, 5, 0, 0, 0, 0], [7, 8, 9, 0, 0, 0], [0] * 6], np.int32)
    return tokens, np.array([2, 3, 1])


def test_a_step_without_drafts_runs_the_newest_tokens_and_counts_the_next():
    """The second sequence may store no further position: its row is padding."""
    history, known = tables()
    rows = plain.decode_rows(np.array([0, 1]), np.array([2, 2]), history, known)
    assert rows.tokens.tolist() == [5, 0] and rows.positions.tolist() == [1, 0]
    assert rows.slots.tolist() == [0, 2] and rows.ends.tolist() == [2, 0] and rows.places is None
    assert known.tolist() == [3, 3, 1]


def test_a_history_of_newest_tokens_gives_the_same_rows():
    history, known = tables()
    newest = np.array([[5], [9], [0]], np.int32)
    whole = plain.decode_rows(np.array([1, 0]), np.array([6, 6]), history, known.copy())
    for one, other in zip(whole, plain.decode_rows(np.array([1, 0]), np.array([6, 6]), newest, known), strict=True):
        assert one is other is None or one.tolist() == other.tolist()


def test_drafts_are_packed_as_far_as_they_may_be_stored_and_the_agreeing_ones_are_appended():
    """The first sequence may store four positions, hence two of three drafts. One of the second's three is right."""
    history, known = tables()
    slots, limits, most = np.array([0, 1]), np.array([4, 6]), np.array([3, 3])
    drafts = np.array([[6, 7, 8], [1, 2, 3]])
    rows = plain.pack_rows(slots, limits, most, None, history, known, drafts)
    assert rows.tokens.tolist() == [5, 6, 7, 9, 1, 2, 3] and rows.positions.tolist() == [1, 2, 3, 2, 3, 4, 5]
    assert rows.query_start.tolist() == [0, 3, 7] and rows.lengths.tolist() == [4, 6]
    kept, origins = plain.accept_drafts(slots, rows, np.array([6, 7, 1, 1, 5, -1, 4]), history, known, 3)
    assert kept.tolist() == [[6, 7, 1, UNDRAFTED], [1, 5, REJECTED, REJECTED]]
    assert origins.tolist() == [[0, 1, 2, 0], [3, 4, 5, 6]]
    assert known.tolist() == [5, 5, 1]
    assert history[0, :5].tolist() == [4, 5, 6, 7, 1] and history[1, :5].tolist() == [7, 8, 9, 1, 5]


def test_a_sequence_at_its_end_has_no_row_and_a_missing_draft_ends_them():
    history, known = tables()
    slots, drafts = np.array([1, 0]), np.array([[1, 2], [6, -1]])
    rows = plain.pack_rows(slots, np.array([2, 6]), np.array([2, 2]), None, history, known, drafts)
    assert rows.tokens.tolist() == [5, 6] and rows.query_start.tolist() == [0, 0, 2]
    kept, _ = plain.accept_drafts(slots, rows, np.array([-1, 3]), history, known, 2)
    assert kept.tolist() == [[UNDRAFTED] * 3, [-1, REJECTED, UNDRAFTED]], "no finite logit: only the first row counts"
    assert known.tolist() == [3, 3, 1] and history[0, 2] == 0
