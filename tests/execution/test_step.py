"""The tokens that a step's rows draw, by the places of its decodes."""

import numpy as np
import torch

from gradus.engine.plan import UNDRAFTED
from gradus.execution.step import DecodeStep
from gradus.kernels.step import plain
from gradus.kernels.step.rows import VerifyRows
from gradus.sampling.sampler import SlotDraw
from gradus.scheduling.draft_shapes import DraftShape


class Step(DecodeStep):
    """A step whose history holds nothing."""

    def __init__(self) -> None:
        self.states = None

    def _accept(self, slots, rows, drawn, hidden, shape, early):
        history, known = np.zeros((4, 8), np.int64), np.zeros(4, np.int64)
        return plain.accept_drafts(slots, rows, drawn, history, known, shape.drafts)


def test_decodes_that_may_store_no_more_have_places_for_log_probabilities_and_no_rows():
    """Both sequences have reached their limits in steps under way, and a prompt joins them."""
    nothing = np.zeros(0, np.int64)
    rows = VerifyRows(**dict.fromkeys(VerifyRows._fields, nothing) | {"query_start": np.zeros(3, np.int64)})
    draw = SlotDraw(nothing, torch.zeros(0, 3, 2, dtype=torch.int32), {})
    accepted = Step().accept(np.array([0, 1]), rows, draw, None, DraftShape(2, 0))
    assert accepted.tokens.tolist() == [[UNDRAFTED] * 3] * 2
    assert accepted.pairs.shape == (6, 3, 2)
