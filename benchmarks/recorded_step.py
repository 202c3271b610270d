"""A decode step of an engine on a GPU, recorded for sequences of any length: what benchmarks of attention replay."""

from collections.abc import Sequence
from functools import partial

from gradus.execution.gpu.capturing import Captured
from gradus.execution.gpu.step_graphs import StepGraphs
from gradus.execution.step import Accepted
from gradus.scheduling.draft_shapes import NO_SHAPE


def set_length(graphs: StepGraphs, slots: Sequence[int], length: int) -> None:
    """Have each of these slots' sequences be this long. A replay makes it one token longer."""
    graphs.step.history.lengths[list(slots)] = length
    graphs.inputs.send(len(slots), (slots, graphs.padding), ([1 << 30] * len(slots), 0), ([], 0))


def recorded_step(graphs: StepGraphs, slots: Sequence[int], length: int) -> Captured[Accepted]:
    """Record a step of these slots, of sequences that are this long, as attention is set up now."""
    set_length(graphs, slots, length)
    captured = graphs.recorder.fastest(len(slots), partial(graphs.run, len(slots), NO_SHAPE))
    set_length(graphs, slots, length)
    return captured
