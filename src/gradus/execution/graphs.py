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

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.cache import TableChange
from gradus.device.capability import capability
from gradus.device.transfer import Arrival, current
from gradus.engine.plan import Column, Decodes, Plan
from gradus.execution.runner import LatestTokens, ModelRunner
from gradus.execution.step import StepResult
from gradus.kernels.decode_inputs import newest
from gradus.kernels.overlap import early_launches
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler, SlotDraw

log = logging.getLogger(__name__)

Numbers = Column | Sequence[int]

BUFFERS = 3  # steps whose numbers may be on their way at once; more wait
EARLY = 64  # rows of a step up to which it is tried whether launches should start while the ones before them drain
REPLAYS, ROUNDS = 10, 4  # of each graph, to see which is faster


class GraphAttention(AttentionBackend, Protocol):
    """An attention backend whose step can be set up on the device alone."""

    def update_tables(self, slots: Sequence[int], changes: Sequence[TableChange | None]) -> None:
        """Before a replay: what has changed in block tables, as in `Batch`."""

    def wipe(self, pages: Sequence[int]) -> None:
        """Before a replay: fill pages with zeros."""

    def prepare_decodes(self, slots: Tensor, lengths: Tensor) -> None:
        """Inside the graph: one row for each of these slots, int32 [B], whose lengths, int32 [B], count the new token.

        A length of 0 is padding: its row attends to nothing, and in the last slot it is stored in page 0.
        """


@dataclass(frozen=True)
class Captured:
    """A graph of a step of so many rows. early: whether its launches start early."""

    graph: torch.cuda.CUDAGraph
    rows: int
    early: bool


Graph = TypeVar("Graph", bound=Captured)


@dataclass(frozen=True)
class CapturedDecodes(Captured):
    """draw: where it leaves what it draws. Not the logits: kept for each size, they would be most of the memory."""

    draw: SlotDraw


class GraphRunner:
    """Replays steps of decodes; steps with a prompt run eagerly.

    eager: runs the rest; its sampler, latest tokens and attention are the graphs' as well.
    """

    def __init__(self, eager: ModelRunner, graphs: "DecodeGraphs") -> None:
        self.eager = eager
        self.graphs = graphs

    @property
    def attention(self) -> AttentionBackend:
        return self.eager.attention

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        if plan.spans or not self.graphs.fit(plan.decodes):
            return self.eager.run(plan)
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
        self.captured: dict[tuple[int, bool], CapturedDecodes] = {}  # by size, and whether a row asks for more
        self.captured_bytes = 0
        self.pool = torch.cuda.graph_pool_handle()  # one graph runs at a time, so all share their memory
        self.inputs = torch.zeros(3, slots, dtype=torch.int32, device=self.device)  # slots, lengths, token ids
        self.buffers = [torch.zeros(3, slots, dtype=torch.int32, pin_memory=True) for _ in range(BUFFERS)]
        self.arrivals: list[Arrival | None] = [None] * BUFFERS
        self.turn = 0

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
            for early in self._ways(size):
                self._inputs(size)
                hidden = self._forward(size, nothing, nothing, early)
                for asked in (False, True):
                    self._draw(size, hidden, early, asked)

    @torch.inference_mode()
    def capture(self, report: Callable[[int, int], None] = lambda done, total: None, *, length: int) -> None:
        """Record a graph for every size, largest first: the smaller ones then fit into the memory of the largest.

        report(done, total) is called after each. length: of the sequences that graphs are tried out with, positions
        that the padding's block table has room for. Nothing else may run on the GPU meanwhile.
        """
        before = torch.cuda.memory_reserved(self.device)
        for number, size in enumerate(reversed(self.sizes), start=1):
            self._fill([self.padding] * size, [length] * size, [0] * size, size)
            plain = fastest([self._capture(size, early, asked=False) for early in self._ways(size)])
            self.captured[size, False] = plain
            self.captured[size, True] = self._capture(size, plain.early, asked=True)
            report(number, len(self.sizes))
        self.captured_bytes = torch.cuda.memory_reserved(self.device) - before
        log.info("captured %d CUDA graphs in %d MiB", len(self.captured), self.captured_bytes >> 20)

    def _ways(self, size: int) -> tuple[bool, ...]:
        """Whether launches start early: for small steps both ways are tried, where the device can."""
        return (False, True) if size <= EARLY and capability(self.device).starts_early else (False,)

    def _capture(self, size: int, early: bool, asked: bool) -> CapturedDecodes:
        self._step(size, early, asked)  # compiles kernels and sets them up, none of which a graph could record
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            draw = self._step(size, early, asked)
        return CapturedDecodes(graph, size, early, draw)

    def _step(self, size: int, early: bool, asked: bool) -> SlotDraw:
        """One decode step of `size` rows, all of it on the device."""
        return self._draw(size, self._forward(size, *self._inputs(size), early), early, asked)

    def _inputs(self, size: int) -> tuple[Tensor, Tensor]:
        """Token ids and positions, [size] each."""
        slots, lengths, given = self.inputs[:, :size]
        return newest(slots, lengths, given, self.latest.tokens)

    def _forward(self, size: int, token_ids: Tensor, positions: Tensor, early: bool) -> Tensor:
        slots, lengths, _ = self.inputs[:, :size]
        self.attention.prepare_decodes(slots, lengths)
        with early_launches(early):
            return self.model(token_ids, positions, self.attention)

    def _draw(self, size: int, hidden: Tensor, early: bool, asked: bool) -> SlotDraw:
        slots, lengths, _ = self.inputs[:, :size]
        model = self.model
        # the kernel widens each logit as it reads it: no second matrix of them
        logits = model.head(hidden) if model.config.final_softcap is None else model.logits(hidden)
        with early_launches(early):
            return self.sampler.draw_slots(logits, slots, lengths, self.latest.tokens, asked=asked)

    # -- every step ----------------------------------------------------------------------------------------------------

    def fit(self, decodes: Decodes) -> bool:
        return 0 < len(decodes) <= self.padding and (self._size(len(decodes)), False) in self.captured

    def _size(self, count: int) -> int:
        return next(size for size in self.sizes if size >= count)

    def replay(self, decodes: Decodes, wiped: Sequence[int]) -> SlotDraw:
        """Launch a step. wiped: pages to fill with zeros first."""
        if wiped:
            self.attention.wipe(wiped)
        if decodes.pages:
            self.attention.update_tables(*zip(*decodes.pages, strict=True))
        size = self._size(len(decodes))
        self._fill(decodes.slots, decodes.starts + 1, decodes.tokens, size)
        captured = self.captured[size, self.sampler.asked(decodes.slots)]
        captured.graph.replay()
        return captured.draw

    def _fill(self, slots: Numbers, lengths: Numbers, token_ids: Numbers, size: int) -> None:
        """Send what each row is, and padding up to `size`."""
        turn, self.turn = self.turn, (self.turn + 1) % BUFFERS
        if (arrival := self.arrivals[turn]) is not None:
            arrival.wait()  # for the step that used this buffer to have read it, as it nearly always has
        numbers = self.buffers[turn].numpy()
        for row, (values, padding) in enumerate(((slots, self.padding), (lengths, 0), (token_ids, 0))):
            numbers[row, : len(values)] = values
            numbers[row, len(values) : size] = padding
        self.inputs.copy_(self.buffers[turn], non_blocking=True)
        self.arrivals[turn] = Arrival(self.device)


def fastest(candidates: Sequence[Graph]) -> Graph:
    """The graph that replays in the least time: starting launches early pays for most sizes of most models.

    Measured and not derived, since it turns on how the programs of neighboring launches fit beside each other (on an
    H200 between 10 % gained and 8 % lost). What they compute is the same to the last bit.
    """
    if len(candidates) == 1:
        return candidates[0]
    times = [[_replay_ms(captured.graph) for captured in candidates] for _ in range(ROUNDS)]
    best = [min(column) for column in zip(*times, strict=True)]
    log.debug("%d rows: %.3f ms, with early launches %.3f", candidates[0].rows, *best)
    return candidates[best.index(min(best))]


def _replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / REPLAYS


def batch_sizes(most: int) -> list[int]:
    """Padded batch sizes up to `most`, the last: so dense that at most 3 rows in 8 are padding (5 sequences in 8 rows).

    A padding row costs its share of the products and nothing in attention; a size costs a capture.
    """
    sizes = [1, 2, 4, 8, 12, 16, *range(24, 65, 8), *range(80, 257, 16), *range(288, 513, 32), *range(576, most, 64)]
    return [size for size in sizes if size < most] + [most]
