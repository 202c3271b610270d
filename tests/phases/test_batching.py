"""Batching in p02 and p03: which sequences share a step, which ones wait, and how many rows that costs."""

import pytest

from gradus.course.probe import EngineProbe
from gradus.engine.request import Request, SamplingParams
from tests.phases.conftest import build_engine, limits_of, reached
from tests.phases.drive import next_step, run, step, submit

SHAPE = "tiny-llama"


def ask(name: str, prompt: int, answer: int) -> Request:
    params = SamplingParams(max_tokens=answer, ignore_eos=True)
    return Request.create(name, [3] * prompt, params, limits_of(SHAPE))


def steps_until(engine, name: str) -> int:
    """How many steps until the request's last token."""
    steps = 0
    while True:
        steps += 1
        if any(output.request_id == name and output.finish_reason for output in step(engine)):
            return steps


def test_a_static_batch_computes_a_rectangle_until_its_longest_answer_is_done():
    engine = build_engine("p02", SHAPE, max_sequences=2)
    run(engine, [ask("a", prompt=5, answer=2), ask("b", prompt=2, answer=6)])
    metrics = engine.metrics()
    assert metrics.steps == 6
    assert metrics.rows == 2 * 5 + 5 * 2  # the prefill is 2 x 5, then both rows run in each of five decodes
    assert metrics.padding_rows == 3 + 4  # b's prompt is 3 short, and a has ended for the last 4 steps


def test_a_static_batch_admits_no_sequence_before_all_of_it_has_ended():
    engine = build_engine("p02", SHAPE, max_sequences=2)
    for request in (ask("a", 3, 2), ask("b", 3, 9), ask("c", 3, 1)):
        engine.submit(request)
    assert steps_until(engine, "c") == 9 + 1


def test_the_next_static_batch_has_its_own_size():
    engine = build_engine("p02", SHAPE, max_sequences=3)
    run(engine, [ask(str(i), 2, 2) for i in range(4)])
    assert engine.metrics().rows == 3 * 2 + 3 + 2 + 1


def test_continuous_batching_lets_the_next_one_in_when_a_slot_is_free():
    engine = build_engine("p03", SHAPE, max_sequences=2)
    for request in (ask("a", 3, 2), ask("b", 3, 9), ask("c", 3, 1)):
        engine.submit(request)
    assert steps_until(engine, "c") == 3
    assert engine.metrics().active == 1


def test_a_prompt_and_decodes_share_a_step():
    engine = build_engine("p03", SHAPE, max_sequences=2)
    engine.submit(ask("a", 4, 5))
    step(engine)
    engine.submit(ask("b", 7, 2))
    before = engine.metrics().rows
    assert {output.request_id for output in step(engine)} == {"a", "b"}
    assert engine.metrics().rows - before == 1 + 7


def test_slots_are_reused_and_nothing_is_allocated_again():
    engine = build_engine("p03", SHAPE, max_sequences=2)
    probe = EngineProbe(engine)
    addresses = [layer.data_ptr() for kept in probe.memory() for layer in kept]
    run(engine, [ask(str(i), 1 + i % 5, 1 + i % 4) for i in range(20)])
    assert addresses == [layer.data_ptr() for kept in probe.memory() for layer in kept]
    submit(engine, [ask("a", 3, 1), ask("b", 3, 1)])
    assert [span.slot for span in next_step(engine).spans] == [0, 1]


@pytest.mark.parametrize("phase", [name for name in reached("p02") if name != "p08"])  # its steps may give more tokens
def test_batching_takes_fewer_steps_than_one_at_a_time(phase):
    requests = [ask(str(i), 4, 8) for i in range(6)]
    engine, single = build_engine(phase, SHAPE), build_engine("p01", SHAPE)
    run(engine, requests)
    run(single, requests)
    assert engine.metrics().steps == 16 and single.metrics().steps == 48
    assert engine.metrics().max_batch == 3 and engine.metrics().average_batch == 3
