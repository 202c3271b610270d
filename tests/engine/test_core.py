"""The line between front ends and engines: every engine satisfies it, and only plain data crosses."""

import dataclasses
import json
import pickle

import pytest

from gradus import LLM, SamplingParams
from gradus.assembly.guard import GuardedCore
from gradus.engine.core import Core
from gradus.engine.request import Request
from gradus.engine.sequence import Output

PROMISED = {name for name in vars(Core) if not name.startswith("_")}


class Only:
    """A core of which nothing can be used but what the protocol promises; what crosses is copied byte by byte."""

    def __init__(self, core) -> None:
        self._core = core

    def __getattr__(self, name):
        assert name in PROMISED, f"{name} is not part of the protocol"
        found = getattr(self._core, name)
        return (lambda *given, **named: copied(found(*copied(given), **copied(named)))) if callable(found) else found


def copied(data):
    return pickle.loads(pickle.dumps(data))


@pytest.fixture(params=["p00", "p01", "p02", "p03", "p04", "p05", "p06", "p07", "p08", None])
def engine(request):
    llm = LLM("random:tiny-llama", phase=request.param, device="cpu", dtype="float32", max_sequences=4)
    return llm.engine


def test_the_protocol_is_what_a_front_end_needs():
    calls = {"submit", "step", "cancel", "metrics", "device_seconds", "check"}
    assert {"limits", "has_work", "waiting_count"} | calls == PROMISED


def test_an_engine_runs_by_the_protocol_alone_and_only_data_crosses(engine):
    core = Only(engine)
    params = SamplingParams(max_tokens=3, n=2, logprobs=1, logit_bias={5: 1.0}, ignore_eos=True)
    core.submit(Request.create("a", [1, 2, 3], params, core.limits))
    core.submit(Request.create("b", [4], SamplingParams(max_tokens=400, ignore_eos=True), core.limits))
    outputs = []
    while sum(output.finish_reason is not None for output in outputs) < 2:
        assert core.has_work
        outputs += core.step()
    outputs += core.cancel("b", reason="timeout")
    while core.has_work:
        outputs += core.step()
    core.check()
    ended = {(output.request_id, output.index): output.finish_reason for output in outputs if output.finish_reason}
    assert ended == {("a", 0): "length", ("a", 1): "length", ("b", 0): "timeout"}
    assert all(isinstance(output, Output) for output in outputs)
    assert [len(output.logprobs) for output in outputs] == [
        len(output.tokens) * (output.request_id == "a") for output in outputs
    ]
    plain = [dataclasses.replace(output, logprobs=tuple(output.logprobs), prompt_logprobs=()) for output in outputs]
    json.dumps([dataclasses.asdict(output) for output in plain])  # numbers and texts, nothing else
    assert core.metrics().completed == 2 and core.metrics().cancelled == 1


def test_every_engine_divides_the_time_of_its_steps_among_its_samples(engine):
    core = Only(engine)
    core.submit(Request.create("a", [1, 2, 3], SamplingParams(max_tokens=3, n=2, ignore_eos=True), core.limits))
    core.submit(Request.create("b", [4], SamplingParams(max_tokens=5, ignore_eos=True), core.limits))
    paid = {}
    while core.has_work:
        outputs = core.step()
        paid |= {(each.request_id, each.index): each.timings.device_s for each in outputs if each.finish_reason}
        running = {(name, index): seconds for name, index, seconds in core.device_seconds()}
        assert not running.keys() & paid.keys()
        assert sum(running.values()) + sum(paid.values()) == pytest.approx(core.metrics().busy_s)
    assert paid.keys() == {("a", 0), ("a", 1), ("b", 0)} and min(paid.values()) > 0


def test_one_sample_of_a_request_can_be_ended(engine):
    engine.submit(Request.create("a", [1], SamplingParams(max_tokens=5, n=2, ignore_eos=True), engine.limits))
    engine.step()
    (last,) = engine.cancel("a", 1, "stop")
    assert (last.index, last.finish_reason) == (1, "stop") and last.timings is not None
    assert engine.cancel("a", 1, "stop") == []
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert {output.index for output in outputs} == {0}


def test_a_guarded_core_keeps_the_protocol():
    own = {"core", "close", "compiler", "parts"}
    assert {name for name in dir(GuardedCore) if not name.startswith("_")} == PROMISED | own
