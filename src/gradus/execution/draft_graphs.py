"""Steps that verify drafts, replayed: a graph for each number of sequences and of drafts, as in `graphs.py`.

Inputs are slots and limits; lengths, drafts and what stands are on the device from step to step. A batch is padded to
the next captured size, and a number of drafts that was not captured becomes the next smaller one.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gradus.device.capability import capability
from gradus.device.transfer import Arrival
from gradus.engine.plan import Decodes
from gradus.execution.draft_steps import DraftStep, Verified
from gradus.execution.graphs import BUFFERS, EARLY, REPLAYS, ROUNDS, Captured, Numbers, batch_sizes, fastest
from gradus.scheduling.drafting import MOST_ROWS

log = logging.getLogger(__name__)

Shape = tuple[int, int]  # sequences, drafts of each


def shapes(slots: int, choices: Sequence[int]) -> list[Shape]:
    """Those captured, the largest first: for decodes without drafts every size, with drafts those of not too many rows.

    choices: how many drafts a step may verify, 0 among them.
    """
    found = [
        (size, drafts)
        for size in batch_sizes(slots)
        for drafts in choices
        if not drafts or size * (1 + drafts) <= MOST_ROWS
    ]
    return sorted(found, key=lambda shape: shape[0] * (1 + shape[1]), reverse=True)


@dataclass(frozen=True)
class CapturedStep(Captured):
    """verified: where it leaves what stands."""

    verified: Verified


class DraftGraphs:
    """Captured steps of up to `slots` sequences: two of each shape, as in `DecodeGraphs`."""

    def __init__(self, step: DraftStep, slots: int, choices: Sequence[int]) -> None:
        self.step, self.padding = step, slots
        self.device = step.model.device
        self.shapes, self.batches = shapes(slots, choices), batch_sizes(slots)
        self.captured: dict[tuple[int, int, bool], CapturedStep] = {}
        self.captured_bytes = 0
        self.pool = torch.cuda.graph_pool_handle()  # one graph runs at a time, so all share their memory
        self.inputs = torch.zeros(2, slots, dtype=torch.int32, device=self.device)  # slots, limits
        self.buffers = [torch.zeros(2, slots, dtype=torch.int32, pin_memory=True) for _ in range(BUFFERS)]
        self.arrivals: list[Arrival | None] = [None] * BUFFERS
        self.turn = 0

    @property
    def count(self) -> int:
        """How many shapes there are to capture."""
        return len(self.shapes)

    # -- once, at the start --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Go through every launch that `capture` will record, for kernels to be compiled."""
        self._fill([], [], self.padding)
        for size, drafts in self.shapes:
            slots, limits = self.inputs[:, :size]
            for early in self._ways(size, drafts):
                self.step.rehearse(slots, limits, drafts, early)

    @torch.inference_mode()
    def capture(self, report: Callable[[int, int], None] = lambda done, total: None, *, length: int) -> None:
        """Record two graphs for every shape, largest first: the smaller ones then fit into the memory of the largest.

        report(done, total) is called after each. length: of the sequences that graphs are tried out with, which the
        history has room for. Nothing else may run on the GPU meanwhile.
        """
        before = torch.cuda.memory_reserved(self.device)
        for number, (size, drafts) in enumerate(self.shapes, start=1):
            ways = self._ways(size, drafts)
            self._try_out(length)
            plain = fastest([self._capture(size, drafts, early, asked=False) for early in ways])
            self.captured[size, drafts, False] = plain
            self.captured[size, drafts, True] = self._capture(size, drafts, plain.early, asked=True)
            report(number, len(self.shapes))
        self.step.history.lengths[self.padding] = 1  # as it was
        self.captured_bytes = torch.cuda.memory_reserved(self.device) - before
        log.info("captured %d CUDA graphs in %d MiB", len(self.captured), self.captured_bytes >> 20)

    def _try_out(self, length: int) -> None:
        """Rows like those of sequences of about that length, all of them in padding's slot.

        Each run makes the sequence longer, so it begins short enough to run out of room last.
        """
        room = self.step.history.tokens.shape[1] - 1
        self.step.history.lengths[self.padding] = max(1, min(length, room - 2 * (2 + ROUNDS * REPLAYS)))
        self._fill([self.padding] * self.padding, [room] * self.padding, self.padding)

    def _ways(self, size: int, drafts: int) -> tuple[bool, ...]:
        """Whether launches start early: for small steps both ways are tried, where the device can."""
        small = size * (1 + drafts) <= EARLY
        return (False, True) if small and capability(self.device).starts_early else (False,)

    def _capture(self, size: int, drafts: int, early: bool, asked: bool) -> CapturedStep:
        self._run(size, drafts, early, asked)  # compiles kernels and sets them up, none of which a graph could record
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            verified = self._run(size, drafts, early, asked)
        return CapturedStep(graph, size * (1 + drafts), early, verified)

    def _run(self, size: int, drafts: int, early: bool, asked: bool) -> Verified:
        slots, limits = self.inputs[:, :size]
        return self.step.run(slots, limits, drafts, early=early, asked=asked)

    # -- every step ----------------------------------------------------------------------------------------------------

    def replay(self, decodes: Decodes, asked: bool) -> Verified:
        """Launch a step whose block tables are up to date. Its number of drafts may be smaller than the plan allows."""
        assert decodes.limits is not None
        size = next(size for size in self.batches if size >= len(decodes))
        drafts = max(each for each in range(decodes.drafts + 1) if (size, each, asked) in self.captured)
        self._fill(decodes.slots, decodes.limits, size)
        captured = self.captured[size, drafts, asked]
        captured.graph.replay()
        return captured.verified

    def _fill(self, slots: Numbers, limits: Numbers, size: int) -> None:
        """Send what each sequence is, and padding up to `size`."""
        turn, self.turn = self.turn, (self.turn + 1) % BUFFERS
        if (arrival := self.arrivals[turn]) is not None:
            arrival.wait()  # for the step that used this buffer to have read it, as it nearly always has
        numbers = self.buffers[turn].numpy()
        for row, (values, padding) in enumerate(((slots, self.padding), (limits, 0))):
            numbers[row, : len(values)] = values
            numbers[row, len(values) : size] = padding
        self.inputs.copy_(self.buffers[turn], non_blocking=True)
        self.arrivals[turn] = Arrival(self.device)
