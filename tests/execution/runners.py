"""Runners put together by hand, from parts that a test has chosen."""

import torch

from gradus.attention.paged import PagedAttention
from gradus.execution.passes import TorchPass
from gradus.execution.result import Handed
from gradus.execution.runner import Runner
from gradus.execution.step import DecodeStep
from gradus.kernels.step.plain import PLAIN
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History


def in_torch(model: Model, attention: PagedAttention, sampler: Sampler) -> Runner:
    """A runner without drafts, whose attention has a slot more than run at once."""
    slots = attention.tables.shape[1] - 1
    history = History(slots, model.config.context_length, torch.device("cpu"), whole=False, on_host=True)
    return Runner(DecodeStep(TorchPass(model, attention, sampler), history, PLAIN, Handed()))


def on_kernels(
    view: Model,
    attention,
    sampler,
    history: History,
    drafter: Drafter | None = None,
    states: torch.Tensor | None = None,
    drafts: int = 0,
) -> Runner:
    """A runner on a GPU's kernels, without graphs. drafts: the most that a sequence verifies."""
    from gradus.execution.gpu.kernel_pass import KernelPass
    from gradus.execution.gpu.masked_draws import MaskedDraws
    from gradus.execution.gpu.results import Results
    from gradus.kernels.step.launches import LAUNCHES

    results = Results(len(history.lengths) * (1 + drafts), view.device, timed=drafter is not None)
    step = DecodeStep(KernelPass(view, attention, sampler), history, LAUNCHES, results, drafter, states)
    constraints, slots = sampler.constraints, len(history.lengths) - 1
    return Runner(step, None, None if constraints is None else MaskedDraws(constraints, sampler, history, slots))
