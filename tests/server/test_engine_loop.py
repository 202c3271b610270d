"""The loop that owns the engine: what a turn costs beyond the step, and what it reports."""

import queue

import numpy as np

from gradus.bench.predict.simulation import Simulation, short_requests
from gradus.engine.outputs import Outputs
from gradus.engine.request import Request, SamplingParams
from gradus.server.engine import loop as engine_loop
from gradus.server.engine.loop import EngineLoop
from gradus.server.engine.messages import Report, Submit
from tests.server.scripted import ScriptedCore


class Clock:
    """A replacement for the module `time`: a millisecond passes at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1e-3
        return self.now


def loop_over(core) -> tuple[EngineLoop, queue.SimpleQueue, list[Report]]:
    commands, reports = queue.SimpleQueue(), []
    return EngineLoop(core, commands, reports.append), commands, reports


def test_metrics_come_ten_times_a_second_and_when_the_engine_rests(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(engine_loop, "time", clock)
    core = ScriptedCore()
    loop, commands, reports = loop_over(core)
    commands.put(Submit(Request.create("a", [1], SamplingParams(max_tokens=500), core.limits), sent=0.0))
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
    for name in "abc":
        commands.put(Submit(Request.create(name, [1], SamplingParams(max_tokens=2), core.limits)))
    while not reports or reports[-1].busy:
        loop._turn()
    assert [report.waiting for report in reports] == [2, 2, 1, 1, 0, 0]


def test_a_step_of_many_decodes_is_reported_in_columns(monkeypatch):
    """Objects, one per token, are made by the reader: the engine's side hands over what the step gave."""
    simulation = Simulation(batch=64, pages=64 * 8)
    for request in short_requests(64, 32, (40, 40)):
        simulation.engine.submit(request)
    while simulation.scheduler.columns.count < 64:
        simulation.step()
    loop, _, reports = loop_over(simulation.engine)
    monkeypatch.setattr(Outputs, "__iter__", None)
    loop._turn()
    (report,) = reports
    assert isinstance(report.outputs, Outputs) and report.outputs.plain == 64
    assert np.all(report.outputs.tokens >= 0)
