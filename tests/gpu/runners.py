"""Typed access to the parts of an engine on a GPU: its runner, its model's view, its graphs.

An engine promises no more than `Runner.run`. Tests that look further do it here, so that mypy sees what they read.
"""

from gradus import LLM
from gradus.engine.engine import Engine
from gradus.execution.gpu.prompt_graphs import PromptGraphs
from gradus.execution.gpu.step_graphs import StepGraphs
from gradus.execution.runner import Runner
from gradus.models import Model


def runner_of(engine: Engine) -> Runner:
    assert isinstance(engine.runner, Runner)
    return engine.runner


def model_of(llm: LLM) -> Model:
    """The kernels' view of the model."""
    return runner_of(llm.engine).step.passes.model


def graphs_of(engine: Engine) -> StepGraphs:
    """The graphs of decodes."""
    graphs = runner_of(engine).graphs
    assert graphs is not None
    return graphs


def prompt_graphs_of(engine: Engine) -> PromptGraphs:
    """The graphs of short prompts."""
    graphs = runner_of(engine).step.passes.run_model
    assert isinstance(graphs, PromptGraphs)
    return graphs
