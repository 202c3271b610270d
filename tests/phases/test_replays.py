"""p10's engine with its graphs, run whole on a CPU: replayed steps give the tokens of p06."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.engine.request import Request, SamplingParams
from phases.p10_cuda_graphs.engine import unrecordable
from tests.phases.conftest import EVERY_FAMILY, MIXTURES, build_engine, limits_of, of, tiny_model
from tests.phases.drive import run
from tests.phases.test_promises_graphs import SLOTS, graphed


def asked(shape: str, **params) -> list[Request]:
    """Five at once, of answers that end one after the other: 5, 4, 3, 2 and 1 rows."""
    prompts = [[7 * i % 300 for i in range(18)], [5], [9, 8, 7], [7 * i % 300 for i in range(21)], [4] * 5]
    lengths = (14, 12, 10, 8, 6)
    return [
        Request.create(f"r{i}", prompt, SamplingParams(max_tokens=length, ignore_eos=True, **params), limits_of(shape))
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


@of("p10")
@pytest.mark.parametrize("shape", [shape for shape in EVERY_FAMILY if shape not in MIXTURES])
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


@of("p10")
@pytest.mark.parametrize("shape", EVERY_FAMILY)
def test_a_model_with_experts_is_run_without_graphs(phase, shape):
    assert (unrecordable(tiny_model(shape)) is not None) == (shape in MIXTURES)


def test_no_graph_can_hold_experts():
    """A replay multiplies as many rows as each expert had while it was recorded, and other rows choose otherwise."""
    engine = graphed("tiny-mixtral")
    with pytest.raises(RuntimeError, match=r"size|shape|index"):
        run(engine, asked("tiny-mixtral"))
