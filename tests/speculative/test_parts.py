"""The parts on their own: what is looked up, what stands, and what the history keeps."""

import numpy as np
import pytest
import torch

from gradus.engine.plan import REJECTED, UNKNOWN, Admission
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.kernels.step.ngram_reference import look_up
from gradus.sampling.sampler import standing
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
    drafts = torch.tensor([0, 1, 2, 3, 0, 0, 1, 2])
    inputs = torch.tensor([9, 5, 7, 8, 9, 9, 1, 2])
    drawn = torch.tensor([5, 6, 8, 8, 4, 1, 2, 3])
    assert standing(drawn, inputs, drafts).tolist() == [5, 6, REJECTED, REJECTED, 4, 1, 2, 3]


def test_a_row_without_a_finite_logit_stands_only_as_the_first_of_its_span():
    drafts, inputs = torch.tensor([0, 0, 1, 2]), torch.tensor([9, 9, 5, -1])
    assert standing(torch.tensor([-1, 5, -1, 3]), inputs, drafts).tolist() == [-1, 5, REJECTED, REJECTED]


def test_the_history_grows_by_what_stands_and_forgets_with_its_owner():
    history = History(2, 10, torch.device("cpu"))
    request = Request.create("a", [4, 5], SamplingParams(max_tokens=4), ModelLimits(10, 10))
    history.admit([Admission(1, request, 0, (4, 5))])
    slots, positions = torch.tensor([1, 1, 1]), torch.tensor([2, 3, 4])
    history.record(slots, positions, torch.tensor([6, 7, REJECTED]))
    assert history.lengths.tolist()[1] == 4 and history.tokens[1, :4].tolist() == [4, 5, 6, 7]
    history.admit([Admission(1, request, 0, (4, 5))])
    assert history.lengths.tolist()[1] == 2
    assert np.all(history.lengths[2].numpy() == 1), "padding stays one token long"


@pytest.mark.parametrize("device", ["cpu", "another"])
def test_the_host_reads_and_appends_what_the_device_has(device):
    """On a CPU in its own memory, elsewhere by tensors: the same."""
    history = History(3, 10, torch.device("cpu"))
    if device != "cpu":
        history._mine = None
    request = Request.create("a", [4, 5], SamplingParams(max_tokens=4), ModelLimits(10, 10))
    history.admit([Admission(0, request, 0, (1,)), Admission(1, request, 0, (4, 5))])
    slots, positions = np.array([1, 1, 1, 0]), np.array([2, 3, 4, 1])
    history.append(slots, positions, torch.tensor([6, 7, REJECTED, UNKNOWN]))
    assert history.newest(np.array([1, 0])) == ([4, 2], [7, 0])
    assert history.tokens[1, :5].tolist() == [4, 5, 6, 7, 0]
    assert history.lengths.tolist() == [2, 4, 1, 1]
