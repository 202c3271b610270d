"""Behavior that every phase must have, whatever its design: later phases, the final engine and students' files too."""

import traceback
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.course.probe import EngineProbe
from gradus.engine.request import Request, SamplingParams
from gradus.models import Model
from tests.phases.conftest import CONTENDERS, build_engine, limits_of, rounded_otherwise
from tests.phases.drive import Answers, Ending, compare, record, run, step

SHAPE = "tiny-llama"
LIMITS = limits_of(SHAPE)


def ask(name: str, prompt=(5, 6, 7), **params) -> Request:
    return Request.create(name, prompt, SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **params}), LIMITS)


def alone(phase: str, request: Request, model: Model | None = None) -> dict[tuple[str, int], Ending]:
    return run(build_engine(phase, SHAPE, model=model), [request])


@cache
def by_p00(prompt: tuple[int, ...], params: tuple, model: Model | None = None) -> dict[int, Ending]:
    """How each sample of a request ends in p00. Contenders get the same random requests, so answers are kept."""
    done = alone("p00", ask("a", prompt, **dict(params)), model)
    return {index: ending for (_, index), ending in done.items()}


def test_an_idle_engine_has_no_work_and_a_step_does_nothing(phase):
    engine = build_engine(phase, SHAPE)
    plan = EngineProbe(engine).scheduler.schedule()
    assert plan is None, f"no sequence runs or waits, so schedule returns None; yours returns {plan}"
    assert not engine.has_work and list(engine.step()) == [] and engine.metrics().steps == 0


def test_a_sequence_ends_at_its_stop_token_which_is_kept(phase):
    tokens = alone(phase, ask("a", max_tokens=8))["a", 0].tokens
    stop = tokens[4]
    engine = build_engine(phase, SHAPE)
    engine.submit(ask("a", max_tokens=8, stop_token_ids=[stop]))
    outputs = []
    while engine.has_work:
        outputs += step(engine)
    assert outputs[-1].finish_reason == "stop" and outputs[-1].stop_reason == stop
    assert sum((output.tokens for output in outputs), ()) == tokens[: tokens.index(stop) + 1]


def test_end_of_sequence_stops_unless_ignored(phase):
    engine = build_engine(phase, SHAPE)
    eos = LIMITS.eos_token_ids[0]
    forced = {"logit_bias": {eos: 100}, "max_tokens": 3}
    done = run(engine, [ask("a", ignore_eos=False, **forced), ask("b", **forced)])
    assert done["a", 0] == Ending((eos,), "stop") and done["b", 0] == Ending((eos,) * 3, "length")


def test_min_tokens_holds_the_end_back(phase):
    eos = LIMITS.eos_token_ids[0]
    request = ask("a", ignore_eos=False, logit_bias={eos: 100}, max_tokens=9, min_tokens=4)
    tokens = alone(phase, request)["a", 0].tokens
    assert len(tokens) == 5 and tokens[-1] == eos and eos not in tokens[:-1]


def test_samples_of_one_request_differ_and_the_first_is_what_n_1_gives(phase):
    params = {"temperature": 1.5, "seed": 11, "max_tokens": 12}
    done = alone(phase, ask("a", n=3, **params))
    assert sorted(done) == [("a", 0), ("a", 1), ("a", 2)]
    assert done["a", 0] == alone(phase, ask("b", **params))["b", 0]
    assert len({ending.tokens for ending in done.values()}) == 3


def test_requests_start_in_the_order_they_came(phase):
    engine = build_engine(phase, SHAPE)
    for name in "abc":
        engine.submit(ask(name))
    first_seen = []
    while engine.has_work:
        for output in step(engine):
            if output.request_id not in first_seen:
                first_seen.append(output.request_id)
    assert first_seen == ["a", "b", "c"]


def test_a_request_cancelled_while_it_waits_never_runs(phase):
    engine = build_engine(phase, SHAPE)
    engine.submit(ask("a"))
    engine.submit(ask("b", n=2))
    ended = engine.cancel("b")
    assert [(output.request_id, output.index, output.finish_reason) for output in ended] == [
        ("b", 0, "cancelled"),
        ("b", 1, "cancelled"),
    ]
    done: dict[tuple[str, int], Ending] = {}
    while engine.has_work:
        record(done, step(engine))
    assert set(done) == {("a", 0)}
    assert engine.metrics().cancelled == 2 and engine.metrics().completed == 1


def test_a_request_cancelled_while_it_runs_frees_its_place_at_once(phase):
    engine = build_engine(phase, SHAPE)
    engine.submit(ask("a", max_tokens=50))
    engine.submit(ask("b"))
    done: dict[tuple[str, int], Ending] = {}
    for _ in range(1 + engine.lag):  # until its first token is there
        record(done, step(engine))
    record(done, engine.cancel("a", reason="timeout"))
    EngineProbe(engine).check()
    while engine.has_work:
        record(done, step(engine))
    assert done["a", 0].finish_reason == "timeout" and len(done["a", 0].tokens) == 1
    assert done["b", 0] == alone(phase, ask("b"))["b", 0]


def test_one_sample_can_be_ended_without_its_siblings(phase):
    engine = build_engine(phase, SHAPE)
    engine.submit(ask("a", n=3))
    assert [output.index for output in engine.cancel("a", 1, "stop")] == [1]
    assert engine.cancel("a", 1) == []
    done: dict[tuple[str, int], Ending] = {}
    while engine.has_work:
        record(done, step(engine))
    assert sorted(done) == [("a", 0), ("a", 2)]


def test_cancelling_what_is_unknown_or_over_does_nothing(phase):
    engine = build_engine(phase, SHAPE)
    run(engine, [ask("a")])
    assert engine.cancel("a") == [] and engine.cancel("never") == []
    assert engine.metrics().cancelled == 0


def test_the_longest_request_that_the_context_allows_is_served(phase):
    prompt = [3] * (LIMITS.context_length - 2)
    assert len(alone(phase, ask("a", prompt, max_tokens=2))["a", 0].tokens) == 2


def test_a_short_sequence_sees_nothing_of_the_long_ones_before_it(phase):
    engine = build_engine(phase, SHAPE)
    run(engine, [ask(f"long{i}", [9 + i] * 30, max_tokens=6) for i in range(3)])
    done = run(engine, [ask("short", [5], max_tokens=12), ask("other", [6, 7], max_tokens=3)])
    assert done["short", 0] == alone(phase, ask("short", [5], max_tokens=12))["short", 0]


def test_every_row_is_computed_for_a_token_unless_the_phase_pads(phase):
    engine = build_engine(phase, SHAPE)
    run(engine, [ask("a", [1] * 9), ask("b", [2], max_tokens=9)])
    metrics = engine.metrics()
    assert metrics.rows >= 10 + 3 + 8
    assert (metrics.padding_rows > 0) == (phase == "p02")


def test_a_step_makes_every_tensor_on_the_device_of_the_model(phase):
    """Without a GPU no other test notices: here a tensor made without `device=` is on "meta", not on the CPU."""
    requests = [ask("a", [1] * 9, temperature=1.0, seed=3), ask("b", [2], max_tokens=6)]
    engine = build_engine(phase, SHAPE)
    where = "so on a GPU it is made on the CPU"
    try:
        with torch.device("meta"):
            found = run(engine, requests)
    except (NotImplementedError, RuntimeError) as error:  # made so and then moved or read: "meta" has no numbers
        if "meta tensor" not in str(error):
            raise
        raise AssertionError(f"{_own_line(error)}: a tensor is made without device=, {where} and then copied") from None
    same = found == run(build_engine(phase, SHAPE), requests)
    assert same, f"a tensor is made without device=, {where}, and the model is not there"


def _own_line(error: Exception) -> str:
    """The innermost line of an exception's way that is not torch's own: "padded.py, line 31"."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}"


def test_metrics_count_what_happened(phase):
    engine = build_engine(phase, SHAPE)
    run(engine, [ask("a", n=2), ask("b", prompt=[1])])
    metrics = engine.metrics()
    assert (metrics.completed, metrics.failed, metrics.cancelled) == (3, 0, 0)
    assert (metrics.prompt_tokens, metrics.generated_tokens) == (4, 12)
    assert (metrics.waiting, metrics.active) == (0, 0)
    assert metrics.batch_total >= metrics.generated_tokens / metrics.max_batch and metrics.average_batch >= 1


def test_a_row_that_is_not_finite_ends_its_sequence_and_the_next_one_runs(phase, monkeypatch):
    engine = build_engine(phase, SHAPE)
    model, poisoned = EngineProbe(engine).model(), []
    embed = model.embed

    def poison_once(tokens, positions):
        rows = embed(tokens, positions)
        if not poisoned:
            poisoned.append(True)
            rows[0] = float("nan")
        return rows

    monkeypatch.setattr(model, "embed", poison_once)
    done = run(engine, [ask("a"), ask("b")])
    assert done["a", 0].finish_reason == "error" and done["a", 0].tokens == ()
    assert done["b", 0] == alone(phase, ask("b"))["b", 0]
    assert engine.metrics().failed == 1


# -- random schedules --------------------------------------------------------------------------------------------------


@st.composite
def workloads(draw):
    """Requests with follow-up turns, when they arrive, and which are cancelled when."""
    count = draw(st.integers(1, 5))
    plan = []
    for i in range(count):
        plan.append(
            dict(
                name=f"r{i}",
                prompt=draw(st.lists(st.integers(0, LIMITS.vocab_size - 1), min_size=1, max_size=9)),
                params=dict(
                    max_tokens=draw(st.integers(1, 6)),
                    temperature=draw(st.sampled_from([0.0, 1.0])),
                    seed=i,
                    n=draw(st.integers(1, 2)),
                    presence_penalty=draw(st.sampled_from([0.0, 1.0])),
                ),
                arrives=draw(st.integers(0, 8)),
                follow_up=draw(st.booleans()),
                cancelled=draw(st.none() | st.integers(0, 12)),
            )
        )
    return plan


@pytest.mark.parametrize("phase_name", CONTENDERS)
@settings(max_examples=max(5, settings.default.max_examples // 2))
@given(plan=workloads())
def test_whatever_comes_when_each_request_gets_its_own_tokens(phase_name, plan):
    engine = build_engine(phase_name, SHAPE)
    requests = {item["name"]: ask(item["name"], item["prompt"], **item["params"]) for item in plan}
    drawn = {f"{item['name']}{turn}": tuple(item["params"].items()) for item in plan for turn in ("", "-next")}
    arrivals = [(item["arrives"], requests[item["name"]]) for item in plan]
    cancels = [(item["cancelled"], item["name"]) for item in plan if item["cancelled"] is not None]
    follow_ups = {item["name"]: item for item in plan if item["follow_up"]}
    done: dict[tuple[str, int], Ending] = {}
    tick = 0
    while arrivals or engine.has_work:
        for due in [arrival for arrival in arrivals if arrival[0] <= tick]:
            engine.submit(due[1])
            arrivals.remove(due)
        for when, name in cancels:
            if when == tick:
                record(done, engine.cancel(name))
                EngineProbe(engine).check()
        outputs = step(engine)
        record(done, outputs)
        for output in outputs:
            if output.finish_reason in ("stop", "length") and output.index == 0 and output.request_id in follow_ups:
                item = follow_ups.pop(output.request_id)
                longer = [*item["prompt"], *done[output.request_id, 0].tokens, 9]
                name = item["name"] + "-next"
                requests[name] = ask(name, longer, **item["params"])
                arrivals.append((tick + 1, requests[name]))
        tick += 1
        assert tick < 400, "livelock"

    def answers(model: Model | None = None) -> Answers:
        known = {name: by_p00(requests[name].prompt, drawn[name], model) for name, _ in done}
        return {(name, index): known[name][index] for name, index in done}

    compare(requests, done, answers(), lambda: map(answers, rounded_otherwise(SHAPE)))
    assert engine.metrics().waiting == engine.metrics().active == 0
