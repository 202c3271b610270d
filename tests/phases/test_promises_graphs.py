"""What p10 promises of its graphs: a replayed step gives the tokens of a launched one, padding included.

No GPU: steps are recorded by `recording.py`, which has a CUDA graph's rules, around the kernel's torch reference.
"""

import pytest
import torch

pytest.importorskip("triton")

from gradus.cache import TableChange
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Span
from gradus.engine.request import Request, SamplingParams
from gradus.execution.runner import lay_out
from gradus.sampling.sampler import Sampler
from phases.p04_paged_cache.attention import PageTensors
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p09_triton_attention.paged_attention import paged_attention_reference
from phases.p10_cuda_graphs.graph_runner import GraphAttention, GraphRunner, batch_sizes
from phases.p10_cuda_graphs.recording import Recording
from phases.p10_cuda_graphs.scheduler import PlanningAhead
from tests.phases.conftest import FAMILIES, build_engine, limits_of, of, tiny_model
from tests.phases.drive import run

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


def asked(shape: str, **params) -> list[Request]:
    """Five at once, of answers that end one after the other: 5, 4, 3, 2 and 1 rows."""
    prompts = [[7 * i % 300 for i in range(18)], [5], [9, 8, 7], [7 * i % 300 for i in range(21)], [4] * 5]
    lengths = (14, 12, 10, 8, 6)
    return [
        Request.create(f"r{i}", prompt, SamplingParams(max_tokens=length, ignore_eos=True, **params), limits_of(shape))
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


@of("p10")
@pytest.mark.parametrize("shape", FAMILIES)
def test_replayed_steps_give_the_tokens_of_p06(phase, shape):
    expected = run(build_engine("p06", shape, max_sequences=SLOTS), asked(shape))
    engine = graphed(shape)
    found = run(engine, asked(shape))
    for name, ending in expected.items():
        assert found[name].tokens == ending.tokens, f"{name[0]} should get {ending.tokens}; yours: {found[name].tokens}"
    padded = engine.metrics().padding_rows
    assert padded > 0, "steps of 5 and 3 sequences are replayed as 6 and 4 rows, and none of yours was padded"


@of("p10")
@pytest.mark.parametrize("lag", [0, 2])
def test_replayed_steps_sample_preempt_and_resume_like_p06(phase, lag):
    """A pool that holds two of them: pages change hands all the while, and graphs read them where they are now."""
    shape, params = "tiny-llama", {"temperature": 1.0, "seed": 3}
    expected = run(build_engine("p06", shape), asked(shape, **params))
    engine = graphed(shape, lag, cache_tokens=52)
    found = run(engine, asked(shape, **params))
    assert found == expected, "the tokens part from p06's"
    assert engine.metrics().preemptions > 0


def decodes(*spans: tuple[int, int, tuple[int, ...]]) -> Plan:
    """(slot, position, pages) of each; the token is 5 everywhere."""
    return Plan([Span(None, slot, at, (5,), 1, TableChange(0, (pages,))) for slot, at, pages in spans])


@of("p10")
def test_padding_writes_to_page_0_alone(phase):
    """Six sequences, then three of them: the fourth row is padding, and where it was the other three's pages stay."""
    runner = graphed("tiny-llama").runner
    plan = decodes(*((slot, 2, (slot + 1,)) for slot in range(6)))
    with torch.inference_mode():
        runner.forward(lay_out(plan, torch.device("cpu")))
        keys = runner.attention.storage.keys
        before = keys[:, 4:].clone()
        runner.forward(lay_out(Plan(plan.spans[:3]), torch.device("cpu")))
    assert torch.equal(keys[:, 4:], before), "a padded row wrote to a page of a sequence that is not in this step"


@of("p10")
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
def test_every_size_is_recorded_once_the_largest_first(phase):
    assert batch_sizes(6) == [1, 2, 4, 6] and batch_sizes(40) == [1, 2, 4, 8, 16, 32, 40] and batch_sizes(1) == [1]
    assert list(graphed("tiny-llama").runner.replays) == [6, 4, 2, 1]


def test_a_recording_does_what_was_noted_and_nothing_that_python_computed_in_between():
    held, factor = torch.tensor([1.0, 2.0]), 3
    replay = Recording.of(lambda: (held * factor)[:1] + 1)
    held += 10
    factor = 100
    assert replay().tolist() == [34.0]
    with pytest.raises(RuntimeError, match="asks for a tensor's value"):
        Recording.of(lambda: held * held.sum().item())
