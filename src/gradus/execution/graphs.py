"""Steps of decodes, replayed: the host launches one CUDA graph where it used to launch a few hundred kernels.

A decode step computes the same operations with the same shapes every time; only numbers in tensors differ. A CUDA graph
is such a step recorded once: the kernels, their arguments, the addresses they read and write. Replaying it costs the
host one call, and the GPU a microsecond a kernel. So a graph must find everything at fixed addresses: who decodes and
how far, block tables, what was sampled last. All of it lies in tables on the device, a row a slot; what the host sends
for a step are three numbers a sequence.

In the graph: the newest tokens are read from their slots, the attention's work is divided, the model runs, its logits
are sampled, and the tokens written back to their slots, where the next step finds them before the host has seen them.

Batches are padded to the next captured size with rows of nobody: a slot of their own, page 0, length 0.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.cache import TableChange
from gradus.device.transfer import Arrival, to_host, upload
from gradus.engine.plan import Plan
from gradus.engine.sequence import SpanResult
from gradus.execution.runner import LatestTokens, ModelRunner, StepResult
from gradus.kernels.decode_inputs import newest
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.sampling.sampler import Row, Sampled

log = logging.getLogger(__name__)

BUFFERS = 3  # steps whose numbers may be on their way at once; more wait
EARLY = 64  # rows of a step up to which it is tried whether launches should start while the ones before them drain
REPLAYS, ROUNDS = 10, 4  # of each graph, to see which is faster


class GraphAttention(AttentionBackend, Protocol):
    """An attention backend whose step can be set up on the device alone."""

    def update_tables(self, slots: Sequence[int], changes: Sequence[TableChange | None]) -> None:
        """Before a replay: what has changed in block tables, as in `Batch`."""

    def wipe(self, pages: Sequence[int]) -> None:
        """Before a replay: fill pages with zeros."""

    def prepare_decodes(self, slots: Tensor, lengths: Tensor, *, pdl: bool) -> None:
        """Inside the graph: a row each of these slots, int32 [B], whose lengths, int32 [B], count the new token.

        A length of 0 is padding: its row is stored in page 0, if the slot's table is nobody's, and attends to nothing.
        pdl: see `gradus.kernels.overlap`.
        """


@dataclass(frozen=True)
class Captured:
    """A graph and where it leaves what it computed: hidden [B, D]; tokens, int64 [B], -1 where no logit was finite.

    Not the logits: kept for each size, they would be most of the graphs' memory.
    """

    graph: torch.cuda.CUDAGraph
    hidden: Tensor
    tokens: Tensor


class GraphRunner(ModelRunner):
    """Replays what it can and runs the rest eagerly: steps with a prompt, and with more sequences than slots.

    early: the model once more, with launches that start while the ones before them drain (`gradus.kernels.overlap`).
    slots: how many sequences run at once; the attention backend, like sampler and latest, has room for one more.
    """

    def __init__(
        self,
        model: Model,
        early: Model,
        attention: GraphAttention,
        sampler: KernelSampler,
        latest: LatestTokens,
        slots: int,
    ) -> None:
        super().__init__(model, attention, sampler, latest)
        self.early = early
        self.graph_attention, self.graph_sampler, self.graph_latest = attention, sampler, latest
        self.nobody = slots
        self.sizes = batch_sizes(slots)
        self.graphs: dict[int, Captured] = {}
        self.captured_bytes = 0
        self.pool = torch.cuda.graph_pool_handle()  # one graph runs at a time, so all share their memory
        self.inputs = torch.zeros(3, slots, dtype=torch.int32, device=model.device)  # slots, lengths, token ids
        self.buffers = [torch.zeros(3, slots, dtype=torch.int32, pin_memory=True) for _ in range(BUFFERS)]
        self.arrivals: list[Arrival | None] = [None] * BUFFERS
        self.turn = 0

    # -- once, at the start --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def capture(self, report: Callable[[int, int], None] = lambda done, total: None, *, length: int) -> None:
        """Record a graph for every size, largest first: the smaller ones then fit into the memory of the largest.

        report(done, total) is called after each. length: of the sequences that graphs are tried out with, positions
        that the block table of nobody has room for. Nothing else may run on the GPU meanwhile.
        """
        before = torch.cuda.memory_reserved(self.model.device)
        for number, size in enumerate(reversed(self.sizes), start=1):
            self._fill([self.nobody] * size, [length] * size, [0] * size, size)
            candidates = [self._capture(size, early) for early in ((False, True) if size <= EARLY else (False,))]
            self.graphs[size] = fastest(candidates)
            report(number, len(self.sizes))
        self.captured_bytes = torch.cuda.memory_reserved(self.model.device) - before
        log.info("captured %d CUDA graphs in %d MiB", len(self.graphs), self.captured_bytes >> 20)

    def _capture(self, size: int, early: bool) -> Captured:
        self._step(size, early)  # compiles kernels and sets them up, none of which a graph could record
        torch.cuda.synchronize(self.model.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            hidden, tokens = self._step(size, early)
        return Captured(graph, hidden, tokens)

    def _step(self, size: int, early: bool) -> tuple[Tensor, Tensor]:
        """One decode step of `size` rows, all of it on the device. Returns the last hidden states, and tokens."""
        slots, lengths, given = self.inputs[:, :size]
        latest = self.graph_latest.tokens
        token_ids, positions = newest(slots, lengths, given, latest)
        self.graph_attention.prepare_decodes(slots, lengths, pdl=early)
        model = self.early if early else self.model
        hidden = model(token_ids, positions, self.attention)
        # the kernel widens each logit as it reads it: no second matrix of them
        logits = model.head(hidden) if model.config.final_softcap is None else model.logits(hidden)
        tokens, _ = self.graph_sampler.draw_slots(logits, slots, lengths, latest)
        return hidden, tokens

    # -- every step ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, plan: Plan) -> "StepResult | Replayed":  # type: ignore[override]  # both are Results
        spans = plan.spans
        size = next((size for size in self.sizes if size >= len(spans)), None)
        decodes = [span for span in spans if span.logits and len(span.tokens) == 1]
        if size not in self.graphs or len(decodes) < len(spans):
            return super().run(plan)
        self.sampler.admit(plan.admissions)  # a prompt of one token is a decode
        if plan.wiped:
            self.graph_attention.wipe(plan.wiped)
        slots = [span.slot for span in spans]
        self.graph_attention.update_tables(slots, [span.pages for span in spans])
        self._fill(slots, [span.start + 1 for span in spans], [span.tokens[0] for span in spans], size)
        captured = self.graphs[size]
        captured.graph.replay()
        return self._result(plan, captured)

    def _fill(self, slots: list[int], lengths: list[int], token_ids: list[int], size: int) -> None:
        """Send what each row is, and padding up to `size`."""
        turn, self.turn = self.turn, (self.turn + 1) % BUFFERS
        if (arrival := self.arrivals[turn]) is not None:
            arrival.wait()  # the step before the last ones has read its numbers: true long since
        numbers = self.buffers[turn].numpy()
        for row, (values, padding) in enumerate(((slots, self.nobody), (lengths, 0), (token_ids, 0))):
            numbers[row, : len(values)] = values
            numbers[row, len(values) : size] = padding
        self.inputs.copy_(self.buffers[turn], non_blocking=True)
        self.arrivals[turn] = Arrival(self.model.device)

    def _result(self, plan: Plan, captured: Captured) -> "Replayed":
        """The tokens, on their way to the host. For requests that ask for more, logits are computed once again."""
        spans = plan.spans
        special, sampled = [], None
        if asking := self.graph_sampler.special:
            special = [i for i, span in enumerate(spans) if span.slot in asking]
        if special:
            where = upload(special, torch.int64, self.model.device)
            rows = [Row(spans[i].slot, spans[i].start + 1) for i in special]
            sampled = self.sampler.sample(self.model.logits(captured.hidden[where]), rows)
            self.graph_latest.record([row.slot for row in rows], sampled.tokens)
        return Replayed(len(captured.tokens), to_host(captured.tokens[: len(spans)]), special, sampled)


class Replayed:
    """The tokens of a replayed step, on their way to the host until `get`."""

    def __init__(self, rows: int, tokens: Tensor, special: list[int], sampled: Sampled | None) -> None:
        self.rows = rows
        self._tokens, self._special, self._sampled = tokens, special, sampled
        self._arrival = Arrival(torch.device("cuda"))

    def get(self) -> list[SpanResult]:
        self._arrival.wait()
        failed = SpanResult(error="the model gave no finite logit to choose from", poisoned=True)
        results = [SpanResult((token,)) if token >= 0 else failed for token in self._tokens.tolist()]
        if self._sampled is not None:
            for row, result in zip(self._special, self._sampled.get(), strict=True):
                results[row] = result
        return results


def fastest(candidates: Sequence[Captured]) -> Captured:
    """The graph that replays in the least time: starting launches early pays for most sizes of most models.

    Measured and not derived, since it turns on how the programs of neighboring launches fit beside each other (on an
    H200 between 10 % gained and 8 % lost). What they compute is the same to the last bit.
    """
    if len(candidates) == 1:
        return candidates[0]
    times = [[_replay_ms(captured.graph) for captured in candidates] for _ in range(ROUNDS)]
    best = [min(column) for column in zip(*times, strict=True)]
    log.debug("%d rows: %.3f ms, with early launches %.3f", len(candidates[0].tokens), *best)
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
