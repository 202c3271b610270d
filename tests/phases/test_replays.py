"""p10's engine with its graphs, run whole on a CPU: replayed steps give the tokens of p06."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.engine.request import Request, SamplingParams
from gradus.models import ModelConfig
from phases.p04_paged_cache.attention import PageTensors
from phases.p09_triton_attention.paged_attention import paged_attention_reference
from phases.p10_cuda_graphs import engine as wiring
from phases.p10_cuda_graphs import graph_runner
from phases.p10_cuda_graphs.graph_runner import GraphAttention
from tests.pairwise import first
from tests.phases.conftest import EVERY_FAMILY, FAMILIES, MIXTURES, NEWER, build_engine, limits_of, of, tiny_model
from tests.phases.drive import run
from tests.phases.test_promises_graphs import PAGE, SLOTS, graphed


def asked(shape: str, **params) -> list[Request]:
    """Five at once, of answers that end one after the other: 5, 4, 3, 2 and 1 rows."""
    prompts = [[7 * i % 300 for i in range(18)], [5], [9, 8, 7], [7 * i % 300 for i in range(21)], [4] * 5]
    lengths = (14, 12, 10, 8, 6)
    return [
        Request.create(f"r{i}", prompt, SamplingParams(max_tokens=length, ignore_eos=True, **params), limits_of(shape))
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


# a graph replays what the layers launch: windows, heads of two sizes and shared keys differ, most families do not
@of("p10")
@pytest.mark.parametrize("shape", first(dict.fromkeys(["tiny-gemma4-e", "tiny-gemma3", *FAMILIES, *NEWER]), 5))
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


@pytest.mark.parametrize("shape", EVERY_FAMILY)
def test_models_with_experts_are_those_that_no_graph_holds(shape):
    assert (wiring.unrecordable(tiny_model(shape)) is not None) == (shape in MIXTURES)


def test_a_model_with_experts_is_launched_where_others_are_replayed(monkeypatch, caplog):
    """The wiring is a GPU's; the kernel is its torch reference."""
    monkeypatch.setattr(wiring, "missing", lambda device: None)
    monkeypatch.setattr(graph_runner, "GraphAttention", in_torch)
    shape = "tiny-mixtral"
    launching = build_engine("p10", shape, SLOTS, page_size=PAGE)
    assert run(launching, asked(shape)) == run(build_engine("p06", shape, SLOTS), asked(shape))
    assert [record.getMessage() for record in caplog.records] == [
        "the phase runs without graphs: the host reads how many rows each expert of mixtral has (the final engine's "
        "does not)"
    ]
    assert launching.metrics().padding_rows == 0


def in_torch(config: ModelConfig, storage: PageTensors) -> GraphAttention:
    return GraphAttention(config, storage, paged_attention_reference)


def test_no_graph_can_hold_experts():
    """A replay multiplies as many rows as each expert had while it was recorded, and other rows choose otherwise."""
    replaying = graphed("tiny-mixtral")
    with pytest.raises(RuntimeError, match=r"size|shape|index"):
        run(replaying, asked("tiny-mixtral"))
