"""Replays steps of decodes: the host launches one CUDA graph instead of a few hundred kernels.

A step of B sequences computes the same operations with the same shapes every time; only numbers in tensors differ. A
CUDA graph is such a step recorded once: the kernels, their arguments, the addresses they read and write. Replaying it
costs the host one call, and the GPU a microsecond per kernel. So a graph must find everything at fixed addresses: the
host's inputs (`Inputs`), and the tables by slot that each step passes on to the next.

Each batch size and shape of drafts (`gradus.scheduling.draft_shapes`) has two graphs: in one, every row asks for a
temperature at most; in the other, rows may ask for anything. Without drafts, each batch size has two more, for steps
with masked rows: one up to the model's hidden states, and one that draws from them. A batch is padded to the next size
with dummy sequences, which share a slot of their own and page 0, and may store no position.
"""

from bisect import bisect_left
from functools import partial

import torch
from torch import Tensor

from gradus.attention.graph_paged import GraphPagedAttention
from gradus.engine.plan import NO_DRAFTS, Decodes
from gradus.execution.gpu.capturing import (
    REPLAYS,
    ROUNDS,
    Agree,
    Captured,
    Inputs,
    Numbers,
    Recorder,
    Report,
    replay_ms,
    ways,
)
from gradus.execution.gpu.results import Results
from gradus.execution.step import Accepted, DecodeStep
from gradus.kernels.step.rows import StepRows
from gradus.scheduling.draft_shapes import NO_SHAPE, DraftShape, DraftShapes, batch_sizes
from gradus.scheduling.step_times import StepTimes

Begun = tuple[StepRows, Tensor]  # what `DecodeStep.begin` returns
Key = tuple[int, DraftShape, bool]  # batch size, shape of drafts, whether rows may ask for more than a temperature


class StepGraphs:
    """Captures and replays steps of up to `slots` sequences. drafts: the shapes that a speculating engine uses. masked:
    whether rows may have masks. agree: see `Recorder`."""

    def __init__(
        self,
        step: DecodeStep,
        slots: int,
        drafts: DraftShapes | None = None,
        *,
        masked: bool = False,
        agree: Agree = list,
    ) -> None:
        self.step, self.padding, self.drafts, self.masked = step, slots, drafts, masked
        self.device = step.passes.model.device
        self.sizes = batch_sizes(slots)
        self.shapes = sorted(
            [(size, shape) for size in self.sizes for shape in (NO_SHAPE, *(drafts.of(size) if drafts else ()))],
            key=lambda each: each[0] + each[1].rows, reverse=True,
        )  # fmt: skip
        self.captured: dict[Key, Captured[Accepted]] = {}
        self.halves: dict[int, tuple[Captured[Begun], Captured[Accepted]]] = {}  # by batch size
        self.recorder = Recorder(self.device, agree)
        self.inputs = Inputs(3, slots, self.device)  # slots, limits, drafts

    # -- once, at the start --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Go through every launch that `capture` will record, so that its kernels are compiled."""
        self._send([], [], [], self.padding)
        for size, shape in self.shapes:
            for early in ways(size + shape.rows, self.device):
                self.step.rehearse(self.inputs.values[:, :size], shape, early)

    @torch.inference_mode()
    def capture(
        self, report: Report = lambda done, total: None, *, length: int, times: StepTimes | None = None
    ) -> None:
        """Record two graphs for every shape, largest first: the smaller ones then fit into the memory of the largest.

        report(done, total) is called after each shape. length: of the sequences in the trial runs; the history must
        have room for it. times: learns the cost of drafts from these runs. Nothing else may run on the GPU meanwhile.
        """
        took: dict[tuple[int, DraftShape], float] = {}  # milliseconds
        with self.recorder.counting():
            for number, (size, shape) in enumerate(self.shapes, start=1):
                self.try_out(size, shape, length)
                plain, full = self.recorder.both(size + shape.rows, partial(self.run, size, shape))
                self.captured[size, shape, False], self.captured[size, shape, True] = plain, full
                if self.masked and shape == NO_SHAPE:
                    self.try_out(size, shape, length)
                    self.halves[size] = self._capture_halves(size, plain.early)
                if self.drafts is not None and self.drafts.of(size):
                    self.try_out(size, shape, length)
                    took[size, shape] = replay_ms(plain.graph)
                report(number, len(self.shapes))
            attention, results = self.step.passes.attention, self.step.results
            assert isinstance(attention, GraphPagedAttention) and isinstance(results, Results)
            attention.capture_entries(lambda launch: self.recorder.record(0, launch).replay)
            self.step.history.lengths[self.padding] = 1  # as it was
            torch.cuda.synchronize(self.device)
            results.restart()
        for (size, shape), milliseconds in took.items():
            if times is not None and shape != NO_SHAPE:
                times.expect(size, shape, milliseconds / took[size, NO_SHAPE])

    def run(self, size: int, shape: DraftShape, early: bool, full: bool) -> Accepted:
        """Run a step of `size` sequences on the inputs last sent."""
        return self.step.run(self.inputs.values[:, :size], shape, early=early, full=full)

    def _capture_halves(self, size: int, early: bool) -> "tuple[Captured[Begun], Captured[Accepted]]":
        """Record a step without drafts in two graphs. The second follows the first at once or later, but no other graph
        is replayed in between: they share their memory."""
        inputs = self.inputs.values[:, :size]
        begin = self.recorder.record(size, partial(self.step.begin, inputs, NO_SHAPE, early=early))
        begin.replay()  # recording runs the second part once, on what the first has written
        end = self.recorder.record(
            size, partial(self.step.end, inputs, *begin.result, NO_SHAPE, early=early, full=True)
        )
        return begin, end

    def try_out(self, size: int, shape: DraftShape, length: int) -> None:
        """Send the inputs of a trial step: `size` sequences of about `length` tokens, all in padding's slot.

        Each run makes the sequence longer, so it starts with enough room for all runs of both ways to launch.
        """
        room, runs = self.step.history.longest - 1, 2 * (2 + ROUNDS * REPLAYS)
        self.step.history.lengths[self.padding] = max(1, min(length, room - runs * (1 + shape.drafts)))
        share, more = divmod(shape.rows, size)  # the drafts fill the shape's rows exactly
        drafts = [share + 1] * more + [share] * (size - more)
        self._send([self.padding] * size, [room] * size, drafts, size)

    # -- every step ----------------------------------------------------------------------------------------------------

    def replay(self, decodes: Decodes, full: bool) -> Accepted:
        """Launch a step whose block tables are up to date.

        If no shape has enough rows for its drafts, the step runs without them.
        """
        size = self.sizes[bisect_left(self.sizes, len(decodes))]
        drafts, shape = decodes.drafts, NO_SHAPE
        if len(drafts) and self.drafts is not None:
            shape = self.drafts.fitting(size, decodes.width - 1, decodes.rows - len(decodes)) or NO_SHAPE
        self._send(decodes.slots, decodes.limits, drafts if shape != NO_SHAPE else NO_DRAFTS, size)
        return self.captured[size, shape, full].replay()

    def begin(self, decodes: Decodes) -> tuple[int, Captured[Accepted]]:
        """Launch a step with masked rows up to its hidden states. Returns its size, and the graph of the rest."""
        size = self.sizes[bisect_left(self.sizes, len(decodes))]
        self._send(decodes.slots, decodes.limits, NO_DRAFTS, size)
        begin, end = self.halves[size]
        begin.replay()
        return size, end

    def _send(self, slots: Numbers, limits: Numbers, drafts: Numbers, size: int) -> None:
        """Send each sequence's numbers, and padding up to `size`."""
        self.inputs.send(size, (slots, self.padding), (limits, 0), (drafts, 0))
