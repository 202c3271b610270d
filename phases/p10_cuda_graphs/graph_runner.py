"""A decode step recorded once and replayed: one call of the host, where every kernel used to be one.

All decode steps of one batch size run the same kernels with the same shapes; only the numbers in their tensors differ.
A CUDA graph is such a step as a recording: kernels, their arguments, and the addresses that they read and write. So a
graph has three rules. What changes from step to step lies in tensors that stay where they are. Nothing in it may ask
the host, or follow from a number that the host knows. And a batch between two recorded sizes is filled up with rows of
padding.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p09_triton_attention.attention import TritonAttention, uploaded_tables
from phases.p10_cuda_graphs.runner import AheadRunner

# Runs a recorded step again, on its inputs' present values. Returns the same tensor every time, with new numbers.
Replay = Callable[[], Tensor]
# Records a step.
Recorder = Callable[[Callable[[], Tensor]], Replay]


class CudaGraphs:
    """The recorder of a GPU. One graph runs at a time, so all share one pool of memory for their results."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], Tensor]) -> Replay:
        step()  # compiles kernels and loads libraries, which no graph can record
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Operations are noted and not run inside. thread_local: other threads may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            out = step()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


class GraphAttention(TritonAttention):
    def prepare_decodes(self, tables: Tensor, positions: Tensor, lengths: Tensor) -> None:
        """Set up a step with one row per sequence, all on the device: see `paged_attention`. It can be recorded."""
        assert len(tables) == len(positions) == len(lengths), "a block table, a position and a length for each row"
        query_start = torch.arange(len(tables) + 1, device=tables.device)
        self.set_up(tables, positions, tables, query_start, lengths, longest=1)


class GraphRunner(AheadRunner):
    """Replays steps of decodes. A step with a prompt in it is launched kernel by kernel, as usual.

    slots: how many sequences run at once. pages: of the longest block table.
    """

    attention: GraphAttention

    def __init__(
        self, model: Model, attention: GraphAttention, sampler: Sampler, slots: int, pages: int, record: Recorder
    ) -> None:
        super().__init__(model, attention, sampler, slots)
        # A graph reads these: rows after the batch's are padding. Length 0 sees nothing, and page 0 is no sequence's.
        self.token_ids = torch.zeros(slots, dtype=torch.int64, device=model.device)
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=model.device)
        self.tables = torch.zeros(slots, pages, dtype=torch.int64, device=model.device)
        self.sizes = batch_sizes(slots)
        self.replays = self.record_all(record)

    @torch.inference_mode()
    def record_all(self, record: Recorder) -> dict[int, Replay]:
        """A graph per batch size, the largest first: the others then fit into the memory that it frees."""
        return {size: record(partial(self.step, size)) for size in reversed(self.sizes)}

    def step(self, size: int) -> Tensor:
        """The recorded part of a step: from `size` tokens to hidden states, [size, D]."""
        positions = (self.lengths[:size] - 1).clamp(min=0)
        self.attention.prepare_decodes(self.tables[:size], positions, self.lengths[:size])
        return self.model(self.token_ids[:size], positions, self.attention)

    def forward(self, batch: Batch) -> Tensor:
        if max(batch.counts) > 1:
            return super().forward(batch)
        size = next(size for size in self.sizes if size >= len(batch.slots))
        self.fill(batch, size)
        return self.replays[size]()

    def fill(self, batch: Batch, size: int) -> None:
        """Copy the batch to where the graph reads, followed by padding up to row `size`."""
        count, tables = len(batch.slots), uploaded_tables(batch)
        self.token_ids[:count] = batch.token_ids
        self.lengths[:count] = batch.positions + 1
        self.tables[:count, : tables.shape[1]] = tables
        self.token_ids[count:size] = 0
        self.lengths[count:size] = 0
        self.tables[count:size] = 0


def batch_sizes(most: int) -> list[int]:
    """Recorded sizes up to `most`, the last one. At most 3 rows in 8 are padding: 5 sequences in 8 rows."""
    sizes = [1, 2, 4, 8, 12, *range(16, most, 8)]
    return [size for size in sizes if size < most] + [most]
