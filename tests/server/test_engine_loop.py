"""The loop that owns the engine: what a turn costs beyond the step, and what it reports."""

import queue

import numpy as np
import pytest

from gradus.bench.predict.simulation import Simulation, short_requests
from gradus.engine.logprobs import PAIR, Logprobs
from gradus.engine.outputs import Outputs
from gradus.engine.request import Request, SamplingParams, unpacked_ids
from gradus.engine.sequence import Output
from gradus.server.engine import loop as engine_loop
from gradus.server.engine.loop import EngineLoop
from gradus.server.engine.messages import Cancel, Ping, Report, SampleOutput, SelfChecked, Submit, packed, unpacked
from gradus.server.engine.wire import WireError, frame, hello_and_messages
from tests.server.scripted import ScriptedCore


class Clock:
    """A replacement for the module `time`: a millisecond passes at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1e-3
        return self.now


def submit(name: str, limits, handle: int = 1, **params) -> Submit:
    return Submit.of(handle, Request.create(name, [1], SamplingParams(**params), limits))


def loop_over(core) -> tuple[EngineLoop, queue.SimpleQueue, list[Report]]:
    commands, reports = queue.SimpleQueue(), []
    return EngineLoop(core, commands, reports.append), commands, reports


def test_metrics_come_ten_times_a_second_and_when_the_engine_rests(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(engine_loop, "time", clock)
    core = ScriptedCore()
    loop, commands, reports = loop_over(core)
    commands.put(submit("a", core.limits, max_tokens=500))
    started = clock.now
    while not reports or reports[-1].busy:
        loop._turn()
    measured = [report.metrics for report in reports if report.metrics is not None]
    seconds = clock.now - started
    assert len(reports) == 500 and seconds > 1
    assert 10 * seconds - 2 <= len(measured) <= 10 * seconds + 2
    assert reports[-1].metrics is not None and reports[-1].metrics.steps == 500


def test_how_many_wait_is_said_in_every_report():
    core = ScriptedCore(slots=1)
    loop, commands, reports = loop_over(core)
    for handle, name in enumerate("abc"):
        commands.put(submit(name, core.limits, handle, max_tokens=2))
    while not reports or reports[-1].busy:
        loop._turn()
    assert [report.waiting for report in reports] == [2, 2, 1, 1, 0, 0]


def test_a_step_of_many_decodes_is_reported_in_columns(monkeypatch):
    """Objects, one per token, are made by the reader: the engine's side hands over what the step gave."""
    simulation = Simulation(batch=64, pages=64 * 8)
    loop, commands, reports = loop_over(simulation.engine)
    for number, request in enumerate(short_requests(64, 32, (40, 40))):
        commands.put(Submit.of(100 + number, request))
    while simulation.scheduler.columns.count < 64:
        loop._turn()
    monkeypatch.setattr(Outputs, "__iter__", None)
    loop._turn()
    report = reports[-1]
    assert sorted(unpacked(report.handles)) == list(range(100, 164)) and not report.others
    tokens = list(unpacked_ids(report.tokens))
    assert report.width == 1 and len(tokens) == 64 and min(tokens) >= 0


def test_rows_with_several_tokens_and_log_probabilities_keep_them_together():
    """Of four rows one is exceptional; the others have one or two of two tokens, and their log-probabilities."""
    core = ScriptedCore()
    loop, commands, _ = loop_over(core)
    for handle, name in ((10, "a"), (20, "b")):
        commands.put(submit(name, core.limits, handle, n=2, max_tokens=5))
    loop._turn()
    owners = np.empty(4, object)
    owners[:] = [Output("a", 0), Output("a", 1), Output("b", 0), Output("b", 1)]
    pairs = [PAIR.pack(token, -1.0) for token in range(8)]
    pairs[1] = b""
    rows = np.array([[0, -1], [2, 3], [4, 5], [6, 7]])
    report = Report()
    loop._add(Outputs(owners, rows, [1], pairs), report)
    assert unpacked(report.handles) == [10, 20, 21]
    assert list(unpacked_ids(report.tokens)) == [0, -1, 4, 5, 6, 7] and report.width == 2
    assert report.logprobs == [pairs[0], b"", *pairs[4:]]


@pytest.mark.parametrize("plain", [True, False])
def test_an_engine_without_columns_has_its_plain_tokens_put_into_them(plain):
    core = ScriptedCore()
    loop, commands, _ = loop_over(core)
    commands.put(submit("a", core.limits, 7, n=2, max_tokens=5))
    loop._turn()
    logprobs = {} if plain else {"logprobs": Logprobs((PAIR.pack(3, -1.0),))}
    report = Report()
    loop._add([Output("a", 1, (3,), **logprobs)], report)
    assert (unpacked(report.handles), [told.handle for told in report.others]) == (([8], []) if plain else ([], [8]))


def test_a_request_is_forgotten_with_its_last_sample_and_its_handle_means_nothing_then():
    core = ScriptedCore()
    loop, commands, reports = loop_over(core)
    commands.put(submit("a", core.limits, 5, n=3, max_tokens=100))
    loop._turn()
    assert reports[-1].accepted == [5] and reports[-1].requests == 1
    commands.put(Cancel(5, "stop", 1))
    loop._turn()
    assert [(told.handle, told.finish_reason) for told in reports[-1].others] == [(6, "stop")]
    commands.put(Cancel(5, "cancelled"))
    loop._turn()
    assert reports[-1].ended == 2 and reports[-1].requests == 0 and not reports[-1].busy
    assert not loop._running and not loop._names
    commands.put(Cancel(5, "cancelled"))
    commands.put(Cancel(999, "cancelled"))
    loop._turn()
    assert not reports[-1].others


def test_a_bug_while_a_request_is_queued_refuses_this_request_alone_and_withdraws_it(caplog):
    class Panic(BaseException):
        """Stands for pyo3's PanicException."""

    class Bad(ScriptedCore):
        def submit(self, request):
            super().submit(request)
            if request.id == "bad":
                raise Panic("secret detail")

    core = Bad()
    loop, commands, reports = loop_over(core)
    commands.put(submit("a", core.limits, 1, max_tokens=3))
    commands.put(submit("bad", core.limits, 2, n=2, max_tokens=3))
    loop._turn()
    assert reports[-1].accepted == [1]
    assert [(handle, failure.kind, failure.message) for handle, failure in reports[-1].refused] == [(2, "Panic", None)]
    assert reports[-1].samples_taken == 3 and "secret detail" in caplog.text
    while reports[-1].busy:
        loop._turn()
    assert core.seen == ["a"] and not loop._running


def test_a_report_that_no_frame_holds_is_split_and_says_everything_once(monkeypatch):
    core = ScriptedCore()
    loop, _, _ = loop_over(core)
    posted = []
    loop._post = lambda report: posted.extend(hello_and_messages().feed(frame(report)))
    scores = tuple(PAIR.pack(7, -1.0) * 21 for _ in range(100_000))  # of a prompt; 5 of them are beyond a frame
    outputs = [SampleOutput(handle, (handle,), prompt_logprobs=scores) for handle in range(5)]
    with pytest.raises(WireError):
        frame(Report(others=list(outputs)))
    loop._report(Report(others=list(outputs), ended=2, step_s=0.5, accepted=[9], handles=packed([8]), tokens=b"abcd"))
    assert [one for report in posted for one in report.others] == outputs
    first, *more = posted
    assert (first.ended, first.step_s, first.accepted, unpacked(first.handles)) == (2, 0.5, [9], [8])
    assert more and all(report == Report(turn=1, others=report.others) for report in more)


def test_a_sign_of_life_is_answered_and_checks_nothing():
    core = ScriptedCore()
    loop, commands, reports = loop_over(core)
    loop._unchecked = False
    for turn in (1, 2):
        commands.put(Ping())
        loop._turn()
        assert (reports[-1].turn, reports[-1].commands_taken, reports[-1].busy) == (turn, turn, False)
    assert not loop._unchecked and not core.checks


def test_a_request_that_the_loop_has_kept_without_need_is_a_book_that_does_not_balance():
    core = ScriptedCore()
    loop, commands, posted = loop_over(core)
    commands.put(submit("a", core.limits, 5, max_tokens=100))
    loop._turn()
    core.cancel("a")  # not by the loop, so it does not hear of it
    loop._check()
    assert posted[-1] == SelfChecked(passed=False)
