"""Steps of decodes, replayed: the host launches one CUDA graph where it used to launch a few hundred kernels.

A decode step computes the same operations with the same shapes every time; only numbers in tensors differ. A CUDA graph
is such a step recorded once: the kernels, their arguments, the addresses they read and write. Replaying it costs the
host one call, and the GPU a microsecond per kernel. So a graph must find everything at fixed addresses: slots and
lengths, block tables, what was sampled last. All of it lies in tables on the device, one row per slot; for a
step, the host sends three numbers per sequence.

In the graph: the newest tokens are read from their slots, the attention's work is divided, the model runs, its logits
are sampled, and the tokens written back to their slots, where the next step finds them before the host has seen them.

Batches are padded to the next captured size with rows that belong to no sequence: a slot of their own, page 0,
length 0.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.cache import TableChange
from gradus.device.transfer import current
from gradus.engine.plan import Decodes, Plan
from gradus.execution.capturing import Captured, Inputs, Numbers, Recorder, Report, ways
from gradus.execution.runner import LatestTokens, ModelRunner, kernel_logits
from gradus.execution.step import StepResult
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.step.decode_inputs import newest
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler, SlotDraw


class GraphAttention(AttentionBackend, Protocol):
    """An attention backend whose step can be set up on the device alone.

    padded: rows that a step set up by the host was padded to; 0 for none.
    """

    padded: int

    def update_tables(self, slots: Sequence[int], changes: Sequence[TableChange | None]) -> None:
        """Before a replay: what has changed in block tables, as in `Batch`."""

    def wipe(self, pages: Sequence[int]) -> None:
        """Before a replay: fill pages with zeros."""

    def prepare_decodes(self, slots: Tensor, lengths: Tensor) -> None:
        """Inside the graph: one row for each of these slots, int32 [B], whose lengths, int32 [B], count the new token.

        A length of 0 is padding: its row attends to nothing, and in the last slot it is stored in page 0.
        """


class GraphRunner:
    """Replays steps of decodes; of steps with a prompt, at most the model's pass (`prompt_graphs.py`).

    eager: runs those; its sampler, latest tokens and attention are the graphs' as well.
    """

    def __init__(self, eager: ModelRunner, graphs: "DecodeGraphs") -> None:
        self.eager = eager
        self.graphs = graphs

    @property
    def attention(self) -> GraphAttention:
        return self.graphs.attention

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        if plan.spans or not self.graphs.fit(plan.decodes):
            result = self.eager.run(plan)
            result.rows = self.attention.padded or result.rows
            return result
        with current(self.graphs.device):
            self.graphs.sampler.admit(plan.admissions)
            draw = self.graphs.replay(plan.decodes, plan.wiped)
            drawn = self.graphs.sampler.told(draw, plan.decodes.slots)
            return StepResult(plan, len(draw.tokens), drawn, self.graphs.device)


class DecodeGraphs:
    """The captured decode steps of up to `slots` sequences: two per batch size.

    In one, every row asks for a temperature at most; in the other, rows may ask for anything.

    model: as the kernels see it. attention, sampler and latest have room for one slot more, which is the padding's.
    """

    def __init__(
        self,
        model: Model,
        attention: GraphAttention,
        sampler: KernelSampler,
        latest: LatestTokens,
        slots: int,
    ) -> None:
        self.model, self.device = model, model.device
        self.attention, self.sampler, self.latest = attention, sampler, latest
        self.padding = slots
        self.sizes = batch_sizes(slots)
        self.captured: dict[tuple[int, bool], Captured[SlotDraw]] = {}  # by size, and whether a row asks for more
        self.recorder = Recorder(self.device)
        self.inputs = Inputs(3, slots, self.device)  # slots, lengths, token ids

    @property
    def count(self) -> int:
        """How many sizes there are to capture."""
        return len(self.sizes)

    # -- once, at the start --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Go through every launch that `capture` will record, for kernels to be compiled."""
        for size in self.sizes:
            nothing = torch.zeros(size, dtype=torch.int64, device=self.device)
            for early in ways(size, self.device):
                self._inputs(size)
                hidden = self._forward(size, nothing, nothing, early)
                for asked in (False, True):
                    self._draw(size, hidden, early, asked)

    @torch.inference_mode()
    def capture(self, report: Report = lambda done, total: None, *, length: int) -> None:
        """Record a graph for every size, largest first: the smaller ones then fit into the memory of the largest.

        report(done, total) is called after each. length: of the sequences that graphs are tried out with, positions
        that the padding's block table has room for. Nothing else may run on the GPU meanwhile.
        """
        with self.recorder.counting():
            for number, size in enumerate(reversed(self.sizes), start=1):
                self._send([self.padding] * size, [length] * size, [0] * size, size)
                plain, asked = self.recorder.both(size, partial(self._step, size))
                self.captured[size, False], self.captured[size, True] = plain, asked
                report(number, len(self.sizes))

    def _step(self, size: int, early: bool, asked: bool) -> SlotDraw:
        """One decode step of `size` rows, all of it on the device."""
        return self._draw(size, self._forward(size, *self._inputs(size), early), early, asked)

    def _inputs(self, size: int) -> tuple[Tensor, Tensor]:
        """Token ids and positions, [size] each."""
        slots, lengths, given = self.inputs.values[:, :size]
        return newest(slots, lengths, given, self.latest.tokens)

    def _forward(self, size: int, token_ids: Tensor, positions: Tensor, early: bool) -> Tensor:
        slots, lengths, _ = self.inputs.values[:, :size]
        self.attention.prepare_decodes(slots, lengths)
        with early_launches(early):
            return self.model(token_ids, positions, self.attention)

    def _draw(self, size: int, hidden: Tensor, early: bool, asked: bool) -> SlotDraw:
        slots, lengths, _ = self.inputs.values[:, :size]
        logits = kernel_logits(self.model, hidden)
        with early_launches(early):
            return self.sampler.draw_slots(logits, slots, lengths, self.latest.tokens, asked=asked)

    # -- every step ----------------------------------------------------------------------------------------------------

    def fit(self, decodes: Decodes) -> bool:
        return 0 < len(decodes) <= self.padding and (self._size(len(decodes)), False) in self.captured

    def _size(self, count: int) -> int:
        return self.sizes[bisect_left(self.sizes, count)]

    def replay(self, decodes: Decodes, wiped: Sequence[int]) -> SlotDraw:
        """Launch a step. wiped: pages to fill with zeros first."""
        if wiped:
            self.attention.wipe(wiped)
        if decodes.pages:
            self.attention.update_tables(*zip(*decodes.pages, strict=True))
        size = self._size(len(decodes))
        self._send(decodes.slots, decodes.starts + 1, decodes.tokens, size)
        return self.captured[size, self.sampler.asked(decodes.slots)].replay()

    def _send(self, slots: Numbers, lengths: Numbers, token_ids: Numbers, size: int) -> None:
        """What each row is, and padding up to `size`."""
        self.inputs.send(size, (slots, self.padding), (lengths, 0), (token_ids, 0))


def batch_sizes(most: int) -> list[int]:
    """Padded batch sizes up to `most`, the last: so dense that at most 3 rows in 8 are padding (5 sequences in 8 rows).

    A padding row costs its share of the products and nothing in attention; a size costs a capture.
    """
    sizes = [1, 2, 4, 8, 12, 16, *range(24, 65, 8), *range(80, 257, 16), *range(288, 513, 32), *range(576, most, 64)]
    return [size for size in sizes if size < most] + [most]
