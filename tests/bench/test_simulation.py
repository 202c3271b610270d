"""The scheduler without a model: tokens by rule, time by the roofline, the same on every machine."""

import math

import numpy as np
import pytest

from gradus.bench import __main__ as plain
from gradus.bench import command
from gradus.bench.predict import simulation
from gradus.bench.predict.roofline import SpanShape, step_cost
from gradus.bench.predict.simulation import BFLOAT16, H200, Simulation, VirtualClock, short_requests, tokens_at
from gradus.bench.record import results
from gradus.bench.studies import scheduling
from gradus.models.shapes import SHAPES
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture

WALL = {
    "scheduler_s", "wall_s", "requests_s", "tokens_s", "add_us", "schedule_us", "commit_us", "step_us", "sequence_us",
}  # fmt: skip


def run(pages: int, batch: int = 4, budget: int = 64) -> tuple[dict[str, tuple[int, ...]], Simulation]:
    simulation_ = Simulation(batch, pages, token_budget=budget)
    for request in short_requests(12, 40, (10, 30)):
        simulation_.engine.submit(request)
    tokens: dict[str, tuple[int, ...]] = {}
    while simulation_.has_work:
        for output in simulation_.step():
            tokens[output.request_id] = tokens.get(output.request_id, ()) + output.tokens
        simulation_.scheduler.check()
    return tokens, simulation_


def test_tokens_follow_from_seed_and_position_whatever_the_pool_and_the_batch():
    wide, _ = run(pages=1000)
    tight, simulation_ = run(pages=8)
    alone, _ = run(pages=1000, batch=1, budget=7)
    assert wide == tight == alone and simulation_.scheduler.preemptions > 0
    request = next(short_requests(1, 40, (10, 30)))
    seeds = np.full(request.max_tokens, request.seed, np.uint64)
    assert wide["0"] == tuple(tokens_at(seeds, 40 + np.arange(request.max_tokens, dtype=np.uint64)).tolist())


def test_a_step_takes_as_long_as_the_roofline_says():
    clock = VirtualClock()
    simulation_ = Simulation(2, 100)
    for request in short_requests(2, 40, (10, 30)):
        simulation_.engine.submit(request)
    simulation_.step()
    whole = step_cost(SHAPES[simulation.SHAPE], [SpanShape(0, 40), SpanShape(0, 40)], BFLOAT16).seconds(H200)
    assert simulation_.clock.now == pytest.approx(whole) and clock.now == 0


@pytest.mark.parametrize("policy", ["fcfs", "priority", "deadline"])
def test_everything_but_the_wall_clock_is_the_same_again(policy):
    first, second = (simulation.serve(40, 8, policy)[1] for _ in range(2))
    assert {key: value for key, value in first.items() if key not in WALL} == {
        key: value for key, value in second.items() if key not in WALL
    }
    assert first["latency_s"]["p50"] >= first["wait_s"]["p50"] > 0 and first["queue"]["p100"] > 8
    assert math.isclose(first["tokens_s"] * first["scheduler_s"], first["tokens"], rel_tol=0.01)
    assert bool(first["deadline_misses"]) == (policy == "deadline")


def test_a_full_batch_stays_full_while_it_decodes_and_while_others_come():
    sample = simulation.steady(16, 10, prompt=600)
    assert sample["steps"] == 10 and sample["batch"]["p0"] == sample["batch"]["p100"] == 16.0
    assert not sample["add_us"]
    sample = simulation.queued(50, 16, 20)
    assert sample["steps"] == 20 and sample["batch"]["p0"] == 16.0 and sample["add_us"]["p50"] > 0


def test_the_command_writes_results_and_a_report_that_is_checked(gradus, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(scheduling, "STEADY_BATCH", 8)
    asked = ["--quick", "--out", str(tmp_path)]
    done = gradus("bench", "scheduler", *asked, "--requests", "40", "--batch", "4", "--batch", "8")
    assert done.code == 0, done.err
    folder = tmp_path / "cpu" / "scheduler"
    assert done.out.strip() == str(folder / "report.md")
    assert plain.main(["scheduler", *asked, "--requests", "30", "--batch", "4", "--policy", "priority"]) == 0
    found = results.read(folder / "results.json")
    assert [run.dtype for run in found.runs] == ["simulated, fcfs", "simulated, priority"]
    assert [cell.row for cell in found.runs[0].of("requests")] == ["4", "8"]
    assert (folder / "results.json").stat().st_size < results.MAX_BYTES
    text = (folder / "report.md").read_text()
    assert "not to be quoted" in text and "| 4 | 40 |" in text and "10 waiting" in text
    assert command.report(tmp_path, check=True) == 0


@pytest.mark.parametrize("windows", [(None,), (None, 64)])
def test_a_page_is_measured_in_a_fresh_pool_and_in_a_full_one(windows):
    sample = simulation.pages(256 * 12 * len(windows) + 64, windows, waves=1)
    assert 0 < sample["fresh_us"] < 1000 and 0 < sample["full_us"] < 1000
    assert sample["more_us"] == pytest.approx(sample["full_us"] - sample["fresh_us"], abs=0.01)
