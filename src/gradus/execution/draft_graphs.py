"""Steps that verify drafts, replayed: a graph for each number of sequences and of drafts, as in `graphs.py`.

Inputs are slots and limits; lengths, drafts and what stands are on the device from step to step. A batch is padded to
the next captured size, and a number of drafts that was not captured becomes the next smaller one.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import torch

from gradus.engine.plan import Decodes
from gradus.execution.capturing import REPLAYS, ROUNDS, Captured, Inputs, Numbers, Recorder, Report, ways
from gradus.execution.draft_steps import DraftStep, Verified
from gradus.execution.graphs import batch_sizes
from gradus.scheduling.drafting import MOST_ROWS

Shape = tuple[int, int]  # sequences, drafts of each


def shapes(slots: int, choices: Sequence[int]) -> list[Shape]:
    """Those captured, the largest first: for decodes without drafts every size, with drafts those of not too many rows.

    choices: how many drafts a step may verify, 0 among them.
    """
    found = [
        (size, drafts)
        for size in batch_sizes(slots)
        for drafts in choices
        if not drafts or _rows(size, drafts) <= MOST_ROWS
    ]
    return sorted(found, key=lambda shape: _rows(*shape), reverse=True)


def _rows(sequences: int, drafts: int) -> int:
    return sequences * (1 + drafts)


class DraftGraphs:
    """Captured steps of up to `slots` sequences: two of each shape, as in `DecodeGraphs`."""

    def __init__(self, step: DraftStep, slots: int, choices: Sequence[int]) -> None:
        self.step, self.padding = step, slots
        self.device = step.model.device
        self.shapes, self.batches = shapes(slots, choices), batch_sizes(slots)
        self.captured: dict[tuple[int, int, bool], Captured[Verified]] = {}  # by shape, and whether a row asks for more
        self.recorder = Recorder(self.device)
        self.inputs = Inputs(2, slots, self.device)  # slots, limits

    @property
    def count(self) -> int:
        """How many shapes there are to capture."""
        return len(self.shapes)

    # -- once, at the start --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Go through every launch that `capture` will record, for kernels to be compiled."""
        self._send([], [], self.padding)
        for size, drafts in self.shapes:
            slots, limits = self.inputs.values[:, :size]
            for early in ways(_rows(size, drafts), self.device):
                self.step.rehearse(slots, limits, drafts, early)

    @torch.inference_mode()
    def capture(self, report: Report = lambda done, total: None, *, length: int) -> None:
        """Record two graphs for every shape, largest first: the smaller ones then fit into the memory of the largest.

        report(done, total) is called after each. length: of the sequences that graphs are tried out with, which the
        history has room for. Nothing else may run on the GPU meanwhile.
        """
        with self.recorder.counting():
            for number, (size, drafts) in enumerate(self.shapes, start=1):
                self._try_out(length)
                plain, asked = self.recorder.both(_rows(size, drafts), partial(self._run, size, drafts))
                self.captured[size, drafts, False], self.captured[size, drafts, True] = plain, asked
                report(number, len(self.shapes))
            self.step.history.lengths[self.padding] = 1  # as it was

    def _try_out(self, length: int) -> None:
        """Rows like those of sequences of about that length, all of them in padding's slot.

        Each run makes the sequence longer, so it begins with room for a token from every run of both ways to launch.
        """
        room = self.step.history.tokens.shape[1] - 1
        self.step.history.lengths[self.padding] = max(1, min(length, room - 2 * (2 + ROUNDS * REPLAYS)))
        self._send([self.padding] * self.padding, [room] * self.padding, self.padding)

    def _run(self, size: int, drafts: int, early: bool, asked: bool) -> Verified:
        slots, limits = self.inputs.values[:, :size]
        return self.step.run(slots, limits, drafts, early=early, asked=asked)

    # -- every step ----------------------------------------------------------------------------------------------------

    def replay(self, decodes: Decodes, asked: bool) -> Verified:
        """Launch a step whose block tables are up to date. Its number of drafts may be smaller than the plan allows."""
        assert decodes.limits is not None
        size = self.batches[bisect_left(self.batches, len(decodes))]
        drafts = next(each for each in range(decodes.drafts, -1, -1) if (size, each, asked) in self.captured)
        self._send(decodes.slots, decodes.limits, size)
        return self.captured[size, drafts, asked].replay()

    def _send(self, slots: Numbers, limits: Numbers, size: int) -> None:
        """What each sequence is, and padding up to `size`."""
        self.inputs.send(size, (slots, self.padding), (limits, 0))
