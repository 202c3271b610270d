"""Captures steps as CUDA graphs: inputs at fixed addresses, and graphs that are recorded and raced.

A graph reads and writes the addresses that it was recorded with. Inputs that change from step to step are therefore
written to the same place each time (`Inputs`), and a step is given as a function that reads them there (`Recorder`).
"""

import logging
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from gradus.device.capability import capability
from gradus.device.transfer import Staging, numbered
from gradus.engine.plan import Column

log = logging.getLogger(__name__)

Agree = Callable[[Sequence[float]], Sequence[float]]
"""Turns measurements into those to decide by: rank 0's on ranks that share a model, since all must launch the same."""

Report = Callable[[int, int], None]
"""Called with (done, total) as CUDA graphs are captured, first with 0."""
Numbers = Column | Sequence[int]
Result = TypeVar("Result")

EARLY = 64  # most rows of a step for which launches that start while the ones before them drain are tried
REPLAYS, ROUNDS = 10, 4  # of each graph, to find the faster one


class Inputs:
    """The buffer from which graphs read a step's inputs: a few kinds of numbers per sequence, sent by the host.

    Arrays that were sent last are not sent again, and must not change: the same sequences decode for many steps, in the
    same arrays (see `Columns.advance`), and a copy costs the host more than the launch of a graph.

    values: int32 [kinds, sequences], on the device.
    """

    def __init__(self, kinds: int, sequences: int, device: torch.device) -> None:
        self.values = torch.zeros(kinds, sequences, dtype=torch.int32, device=device)
        self._staging = Staging(self.values.shape, torch.int32, device)
        self._size, self._sent = 0, list[Numbers]()

    def send(self, size: int, *kinds: tuple[Numbers, int]) -> None:
        """Send each kind's (numbers, padding): the numbers of a step's sequences, then padding up to `size`."""
        given = [values for values, _ in kinds]
        if size == self._size and all(map(operator.is_, given, self._sent)):
            return
        self._size, self._sent = size, given
        numbers = self._staging.fill()
        for row, (values, padding) in zip(numbers, kinds, strict=True):
            row[: len(values)] = values
            row[len(values) : size] = padding
        self._staging.send(self.values)


@dataclass(frozen=True)
class Captured(Generic[Result]):
    """A graph of a step of `rows` rows. early: True if its launches start early. result: the tensors that replays write
    to. They should be small: logits, kept for each size, would take most of the memory."""

    graph: torch.cuda.CUDAGraph
    rows: int
    early: bool
    result: Result

    def replay(self) -> Result:
        self.graph.replay()
        return self.result


class Recorder:
    """Records steps as CUDA graphs. A step is a function of (early, full): whether launches start early, and whether
    rows may ask for more than a temperature. Its inputs must be in place. agree: of the ranks that share the model."""

    def __init__(self, device: torch.device, agree: Agree = list) -> None:
        self.device, self.agree = device, agree
        self.pool = torch.cuda.graph_pool_handle()  # one graph runs at a time, so all share their memory
        # Torch's default capture stream serves the whole process, and belongs to the GPU that captured first.
        self.stream = _stream(self, device)
        self.recorded = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Log how many graphs were recorded, and how much memory they took. Nothing else may run meanwhile."""
        before, recorded = self._bytes_in_use(), self.recorded
        yield
        taken = self._bytes_in_use() - before
        log.info("captured %d CUDA graphs in %d MiB", self.recorded - recorded, taken >> 20)

    def _bytes_in_use(self) -> int:
        """Count the bytes that torch cannot give back: those of tensors, and of graphs.

        Every capture begins with an empty cache, so what earlier steps left in it must not count before the first one.
        """
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self.device)

    def both(self, rows: int, step: Callable[[bool, bool], Result]) -> tuple[Captured[Result], Captured[Result]]:
        """Record two graphs: for temperatures alone, and for full sampling. Launches start early if that is faster."""
        plain = self.fastest(rows, step)
        return plain, self._record(rows, step, plain.early, full=True)

    def record(self, rows: int, step: Callable[[], Result]) -> Captured[Result]:
        """Record a graph of a step that has one form."""
        return self._record(rows, lambda early, full: step(), False, full=False)

    def fastest(self, rows: int, step: Callable[[bool, bool], Result]) -> Captured[Result]:
        """Record a graph for temperatures alone, with launches that start early if that is faster."""
        return fastest([self._record(rows, step, early, full=False) for early in ways(rows, self.device)], self.agree)

    def _record(self, rows: int, step: Callable[[bool, bool], Result], early: bool, full: bool) -> Captured[Result]:
        step(early, full)  # compiles kernels and sets them up, which cannot happen during capture
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread of the program may allocate meanwhile
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            result = step(early, full)
        self.recorded += 1
        return Captured(graph, rows, early, result)


_idle_streams: dict[int, list[torch.cuda.Stream]] = {}  # by GPU, left behind by deleted recorders


def _stream(owner: object, device: torch.device) -> torch.cuda.Stream:
    """Return a stream to capture on, which belongs to `owner` alone for its lifetime.

    Streams are reused: cuBLAS takes another 32 MiB for each new one, and keeps them.
    """
    idle = _idle_streams.setdefault(numbered(device).index or 0, [])
    stream = idle.pop() if idle else torch.cuda.Stream(device)
    weakref.finalize(owner, idle.append, stream)
    return stream


def ways(rows: int, device: torch.device) -> tuple[bool, ...]:
    """List the values of `early` to try: both for small steps, if the device can start launches early."""
    return (False, True) if rows <= EARLY and capability(device).starts_early else (False,)


def fastest(candidates: Sequence[Captured[Result]], agree: Agree = list) -> Captured[Result]:
    """Pick the graph that replays in the least time: starting launches early pays for most sizes of most models.

    The choice is measured, not derived, since it depends on how the programs of neighboring launches fit on the GPU
    together (on an H200, between 10 % gained and 8 % lost). All candidates compute the same, to the last bit.
    """
    if len(candidates) == 1:
        return candidates[0]
    times = [[replay_ms(captured.graph) for captured in candidates] for _ in range(ROUNDS)]
    best = agree([min(column) for column in zip(*times, strict=True)])
    log.debug("%d rows: %.3f ms, with early launches %.3f", candidates[0].rows, *best)
    return candidates[best.index(min(best))]


def replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    """Measure the mean time of a replay, over REPLAYS in a row."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / REPLAYS
