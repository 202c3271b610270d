"""The promises of p10's graphs: a replayed step computes what a launched one would, and padding leaves no trace.

No GPU: steps are recorded by `recording.py`, which has a CUDA graph's rules, around the kernel's torch reference.
"""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.cache import TableChange
from gradus.config.options import EngineOptions
from gradus.course.probe import EngineProbe
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Span
from gradus.execution.layout import lay_out
from gradus.sampling.sampler import Sampler
from phases.p04_paged_cache.attention import PageTensors
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p09_triton_attention.paged_attention import paged_attention_reference
from phases.p10_cuda_graphs.graph_runner import GraphAttention, GraphRunner, batch_sizes
from phases.p10_cuda_graphs.recording import Recording
from phases.p10_cuda_graphs.runner import AheadRunner
from phases.p10_cuda_graphs.scheduler import PlanningAhead
from tests.phases.conftest import about, limits_of, of, tiny_model

PAGE, SLOTS = 4, 6  # recorded: 1, 2, 4 and 6 rows


def graphed(shape: str, lag: int = 1, cache_tokens: int = 120, slots: int = SLOTS) -> Engine:
    """p10's engine on a CPU, with its graphs."""
    model, limits = tiny_model(shape), limits_of(shape)
    options = EngineOptions(limits, slots, page_size=PAGE, cache_tokens=cache_tokens, token_budget=8)
    storage = PageTensors(model.config, options.cache_blocks, PAGE, model.dtype, model.device)
    attention = GraphAttention(model.config, storage, paged_attention_reference)
    sampler, pages = Sampler(model.config.vocab_size, model.device), -(-limits.context_length // PAGE)
    runner = GraphRunner(model, attention, sampler, slots, pages, Recording.of)
    scheduler = PlanningAhead(PrefixCache(options.cache_blocks, PAGE), slots, 8)
    return Engine(scheduler, runner, limits, lag=lag)


def decodes(*spans: tuple[int, int, tuple[int, ...]]) -> Plan:
    """(slot, position, pages) of each; the token is 5 everywhere."""
    return Plan([Span(None, slot, at, (5,), 1, TableChange(0, (pages,))) for slot, at, pages in spans])


@of("p10")
@about("graph_runner")
def test_a_replay_computes_what_a_launch_would(phase):
    """Two sequences at other positions, on other pages, than when the step was recorded; then one of them alone."""
    replayed, launched = graphed("tiny-llama").runner, graphed("tiny-llama").runner
    for plan in (decodes((0, 0, (3,)), (1, 0, (2,))), decodes((0, 1, (3,)), (1, 1, (2,))), decodes((1, 2, (2,)))):
        batch = lay_out(plan, torch.device("cpu"))
        with torch.inference_mode():
            found, expected = replayed.forward(batch), AheadRunner.forward(launched, batch)
        off = float((found[: len(expected)] - expected).norm() / expected.norm())
        assert off < 1e-5, f"a replay gives what was recorded, not what the inputs hold now: off by {off:.1e}"


@of("p10")
@about("graph_runner")
def test_padding_writes_to_page_0_alone(phase):
    """Six sequences, then three of them: the fourth row is padding, and where it was the other three's pages stay."""
    engine = graphed("tiny-llama")
    runner, (keys, _) = engine.runner, EngineProbe(engine).memory()
    plan = decodes(*((slot, 2, (slot + 1,)) for slot in range(6)))
    with torch.inference_mode():
        runner.forward(lay_out(plan, torch.device("cpu")))
        before = [layer[4:].clone() for layer in keys]
        runner.forward(lay_out(Plan(plan.spans[:3]), torch.device("cpu")))
    same = all(torch.equal(layer[4:], old) for layer, old in zip(keys, before, strict=True))
    assert same, "a padded row wrote to a page of a sequence that is not in this step"


@of("p10")
@about("graph_runner")
def test_a_step_with_a_prompt_is_launched_and_one_of_decodes_is_replayed(phase):
    runner, replayed = graphed("tiny-llama").runner, []
    for size, replay in runner.replays.items():
        runner.replays[size] = lambda size=size, replay=replay: replayed.append(size) or replay()
    prompt = Span(None, 1, 0, (5, 6), 1, TableChange(0, ((2,),)))
    for spans in ([*decodes((0, 2, (1,))).spans, prompt], decodes((0, 3, (1,))).spans):
        with torch.inference_mode():
            runner.forward(lay_out(Plan(list(spans)), torch.device("cpu")))
    assert replayed == [1], f"the second step is replayed, in the graph of one row; yours: {replayed}"


@of("p10")
@about("graph_runner")
def test_padding_sees_nothing(phase):
    """Six sequences, then three of them: the fourth row has what the fourth sequence left there, or length 0."""
    runner, plan = graphed("tiny-llama").runner, decodes(*((slot, 2, (slot + 1,)) for slot in range(6)))
    for spans in (plan.spans, plan.spans[:3]):
        with torch.inference_mode():
            runner.forward(lay_out(Plan(spans), torch.device("cpu")))
    lengths = runner.lengths[:4].tolist()
    assert lengths == [3, 3, 3, 0], f"three sequences of 3 tokens and a padded row: [3, 3, 3, 0]; yours {lengths}"


@of("p10")
@about("graph_runner")
def test_every_size_is_recorded_once_the_largest_first(phase):
    assert batch_sizes(1) == [1] and batch_sizes(6) == [1, 2, 4, 6]
    assert batch_sizes(40) == [1, 2, 4, 8, 12, 16, 24, 32, 40]
    runner = graphed("tiny-llama").runner
    assert list(runner.replays) == [6, 4, 2, 1]


def test_a_recording_does_what_was_noted_and_nothing_that_python_computed_in_between():
    held, factor = torch.tensor([1.0, 2.0]), 3
    replay = Recording.of(lambda: (held * factor)[:1] + 1)
    held += 10
    factor = 100
    assert replay().tolist() == [34.0]
