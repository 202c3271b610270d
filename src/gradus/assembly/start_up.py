"""Compiles a GPU's kernels, captures its graphs and runs them once, before the first request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gradus.attention.graph_paged import GraphPagedAttention
from gradus.config.options import EngineConfig
from gradus.execution.gpu.capturing import Recorder, Report
from gradus.execution.gpu.prompt_graphs import PromptGraphs
from gradus.execution.gpu.step_graphs import StepGraphs
from gradus.execution.gpu.warm_up import warm_up
from gradus.execution.passes import RunModel
from gradus.kernels.core.compiling import compiled_together
from gradus.models import Model
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.scheduling.step_times import StepTimes

USUAL_LENGTH = 512  # tokens of the sequences in the graphs' trial runs


class Reader(Protocol):
    """Reads prompts by calling `run_model` in place of the model."""

    run_model: RunModel


@dataclass(frozen=True, slots=True)
class Reading:
    """A model that reads prompts through `reader`. longest: the most tokens of one sequence that it reads at once."""

    reader: Reader
    model: Model
    attention: GraphPagedAttention
    longest: int


def start_up(
    readings: Sequence[Reading],
    graphs: StepGraphs | None,
    sampler: KernelSampler,
    config: EngineConfig,
    report: Report,
    times: StepTimes,
    written: Tensor | None,
) -> None:
    """Compile all kernels in parallel, then capture steps, and run the launches that are not captured.

    graphs: None for an engine without any; then short prompts have none either. times: learns the cost of drafts.
    written: where draws without drafts write their tokens.
    """
    budget = config.budget(sampler.device.type)

    def warm() -> None:
        for each in readings:
            most = min(budget or each.longest, each.longest)
            model, run_model = each.model, each.reader.run_model
            crowd = config.max_sequences
            warm_up(model, run_model, each.attention, sampler, most=most, crowd=crowd, written=written)

    prompts = [] if graphs is None else [prompt_graphs(each, graphs.recorder, budget) for each in readings]
    with compiled_together():
        warm()
        for short in prompts:
            short.rehearse(config.max_sequences)
        if graphs is not None:
            graphs.rehearse()
    for short in prompts:
        short.capture()
    warm()
    if graphs is not None:
        report(0, len(graphs.shapes))
        graphs.capture(report, length=min(USUAL_LENGTH, config.limits.context_length), times=times)


def prompt_graphs(reading: Reading, recorder: Recorder, budget: int | None) -> PromptGraphs:
    """Make the reader run its model through prompt graphs: passes over short prompts are replayed once captured."""
    graphs = PromptGraphs(reading.model, reading.attention, recorder, longest=reading.longest, budget=budget)
    reading.reader.run_model = graphs
    return graphs
