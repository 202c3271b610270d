"""The memory that an engine with a long context takes is compared with the plan of that engine, not of another one."""

import torch

from benchmarks import context_memory
from gradus.config.options import SERVED_STEP_TARGETS
from gradus.execution.memory.plan import MemoryPlan


def test_the_engine_is_the_one_that_was_planned(monkeypatch):
    """A server's, whose step target decides about longer steps on a GPU."""
    opened, plans, LLM, planned = [], list[MemoryPlan](), context_memory.LLM, context_memory.planned

    def opening(**settings):
        opened.append(LLM(**settings))
        return opened[0]

    def planning(settings, checkpoint):
        plans.append(planned(settings, checkpoint)[0])
        return plans[0], None

    monkeypatch.setattr(context_memory, "LLM", opening)
    monkeypatch.setattr(context_memory, "planned", planning)
    found = context_memory._engine("tiny-llama", torch.device("cpu"), sequences=3)
    options = opened[0].options
    assert options.step_target == SERVED_STEP_TARGETS["cpu"]
    assert (options.max_sequences, options.budget("cpu")) == (plans[0].max_sequences, plans[0].step_tokens)
    assert found["sessions"] == plans[0].sequences_by_length == {512: 3}
    assert found["prompt_tokens"] == 512 - context_memory.ANSWER
