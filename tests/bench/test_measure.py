"""The driver, on real engines over a tiny model; and how repeats take turns."""

import time

import pytest
import torch

from gradus.bench.contenders.workbench import Room
from gradus.bench.declare.declaration import Goal
from gradus.bench.measure import drive as driver
from gradus.bench.measure.drive import ContenderFailed, Repeats, Run, compare, drive
from gradus.bench.measure.idle import IdleWatch, Step
from gradus.bench.measure.memory import tensor_bytes
from gradus.bench.record.metrics import METRICS
from gradus.bench.workloads import Arrival, burst, conversations, poisson, shared_prefix
from tests.bench.virtual import VirtualTime

CPU = torch.device("cpu")


def arrivals(*jobs: tuple[float, int, int]) -> list[Arrival]:
    return [Arrival(at, tuple(range(1, prompt + 1)), output) for at, prompt, output in jobs]


@pytest.mark.parametrize("phase", ["p00", "p01", "p02", "p03"])
def test_every_request_gets_its_tokens_and_its_rows_are_counted(bench, phase):
    work = poisson(5, 200.0, (4, 12), (2, 9))
    run = drive(bench.engine(phase, Room(work.longest, 3)), work.arrivals(320), CPU)
    assert [len(times) for times in run.token_times] == [job.output for job in work.jobs]
    assert all(times == sorted(times) for times in run.token_times)
    useful = sum(job.prompt + job.output - 1 for job in work.jobs)
    if phase in ("p01", "p03"):
        assert (run.rows, run.padding_rows) == (useful, 0)
    if phase == "p02":
        assert run.rows - run.padding_rows == useful
    if phase == "p00":
        assert run.rows == sum(job.output * job.prompt + job.output * (job.output - 1) // 2 for job in work.jobs)


def test_static_batching_wastes_the_rows_that_it_should(bench):
    """Prompts of 4 and 2, answers of 2 and 5: a rectangle of 2 x 4, then four steps of 2 rows."""
    run = drive(bench.engine("p02", Room(7, 2)), arrivals((0, 4, 2), (0, 2, 5)), CPU)
    assert run.rows == 2 * 4 + 4 * 2
    assert run.padding_rows == run.rows - (4 + 1) - (2 + 4)


def test_nothing_starts_before_it_arrives_and_nobody_waits_for_the_driver(bench):
    engine = bench.engine("p01", Room(20, 1))
    started = time.perf_counter()
    run = drive(engine, arrivals((0, 3, 2), (0.15, 3, 2)), CPU)
    first, second = (times[0] for times in run.token_times)
    assert second >= 0.15
    assert time.perf_counter() - started < 10
    latencies = [first, second - 0.15]  # from its arrival, not from the start
    assert run.sample()["ttft_ms"]["p100"] == pytest.approx(1e3 * max(latencies), rel=1e-3)


def test_a_request_that_waits_for_another_pays_for_it_in_its_latency(bench):
    """Open loop: the second arrives while the first runs, one at a time, and its clock starts at once."""
    run = drive(bench.engine("p01", Room(300, 1)), arrivals((0, 3, 60), (0.001, 3, 2)), CPU)
    first, second = run.token_times
    assert second[0] > first[-1]
    assert run.sample()["ttft_ms"]["p100"] == pytest.approx(1e3 * (second[0] - 0.001), rel=1e-3)


def test_a_sample_says_what_happened():
    """Two requests: tokens after 1, 2 and 4 s; and, arrived at 1 s, after 2 and 3 s."""
    run = Run(arrivals((0, 3, 3), (1, 3, 2)), [[1, 2, 4], [2, 3]], steps=4, rows=10, padding_rows=2, host_s=0.004)
    sample = run.sample(Goal(ttft=1.0, tpot=1.2))
    assert (sample["seconds"], sample["output_tokens"], sample["completed"]) == (4, 5, 2)
    assert (sample["ttft_ms"]["p0"], sample["ttft_ms"]["p100"]) == (1000, 1000)
    assert (sample["itl_ms"]["p0"], sample["itl_ms"]["p100"]) == (1000, 2000)
    assert (sample["tpot_ms"]["p0"], sample["tpot_ms"]["p100"]) == (1000, 1500)
    assert (sample["e2e_ms"]["p0"], sample["e2e_ms"]["p100"]) == (2000, 4000)
    assert sample["host_us"] == 1000
    assert sample["good"] == 1  # the first takes 1.5 s a token
    assert sample["requests"] == [[1000, 4000], [1000, 2000]]
    assert "tokens_at_once" not in sample and METRICS["tokens_at_once"].read(sample) == 1
    assert "good" not in run.sample()


def test_tokens_that_come_together_are_one_gap_and_are_counted_beside_it():
    """Five tokens: one after 1 s, three after 2 s, one after 4 s."""
    sample = Run(arrivals((0, 3, 5)), [[1, 2, 2, 2, 4]], steps=3, rows=9, padding_rows=0).sample()
    assert (sample["itl_ms"]["p0"], sample["itl_ms"]["p100"]) == (1000, 2000)
    assert sample["tokens_at_once"] == pytest.approx(5 / 3, rel=1e-2) and sample["tpot_ms"]["p50"] == 750
    assert METRICS["sequence_tok_s"].read(sample) == pytest.approx(5 / 3 / 1.5, rel=1e-2)


def test_a_run_with_a_missing_token_does_not_count():
    with pytest.raises(ContenderFailed, match="request 1 got 1 tokens instead of 2"):
        Run(arrivals((0, 3, 2), (0, 3, 2)), [[1, 2], [1]]).check()


# -- taking turns ------------------------------------------------------------------------------------------------------


class Scripted:
    """Writes down what is done to it."""

    def __init__(self, name: str, log: list[str], needed_bytes: int = 1, fails_at: int = 0, takes: float = 0.0) -> None:
        self.name, self.log, self.needed_bytes, self.fails_at, self.takes = name, log, needed_bytes, fails_at, takes
        self.runs = 0

    def build(self) -> None:
        self.log.append(f"build {self.name}")

    def run(self, arrivals, *, watch_memory=False):
        self.runs += 1
        self.log.append(f"warm {self.name}" if watch_memory else self.name)
        if self.runs == self.fails_at:
            raise RuntimeError("out of\nmemory")
        driver.time.sleep(self.takes)  # the driver's, which may be virtual
        return Run(arrivals, [[0.1] * arrival.max_tokens for arrival in arrivals], peak_bytes=100)

    def close(self) -> None:
        self.log.append(f"close {self.name}")


WORK = arrivals((0, 3, 2))


@pytest.fixture
def only_contenders_take_time(monkeypatch):
    monkeypatch.setattr(driver, "time", VirtualTime())


TURNS = ["build A", "warm A", "build B", "warm B", "A", "B", "B", "A", "A", "B", "close A", "close B"]
BLOCKS = ["build A", "warm A", "A", "A", "close A", "build B", "warm B", "B", "B", "close B"]
"""Where memory forbids two at once, and then one more run of each."""


@pytest.mark.parametrize(("free_bytes", "begun"), [(2, TURNS), (1, BLOCKS)], ids=["side by side", "in blocks"])
def test_contenders_take_turns_as_far_as_memory_allows(free_bytes, begun):
    log: list[str] = []
    trials = compare([Scripted("A", log), Scripted("B", log)], WORK, WORK, Repeats(3, 3), free_bytes)
    assert log[: len(begun)] == begun and [log.count(name) for name in "AB"] == [3, 3]
    assert [len(trial.samples) for trial in trials] == [3, 3]


@pytest.mark.parametrize("fails_at", [1, 3])
def test_a_contender_that_fails_leaves_a_reason_and_no_samples_and_the_others_go_on(fails_at):
    log: list[str] = []
    broken, sound = compare(
        [Scripted("A", log, fails_at=fails_at), Scripted("B", log)], WORK, WORK, Repeats(3, 3), free_bytes=2
    )
    assert (broken.failed, broken.samples) == ("RuntimeError: out of memory", [])
    assert (sound.failed, len(sound.samples)) == (None, 3)
    assert "close A" in log


@pytest.mark.usefixtures("only_contenders_take_time")
def test_a_slow_cell_is_run_less_often():
    quick, slow = Scripted("A", []), Scripted("B", [], takes=0.02)
    assert len(compare([quick], WORK, WORK, Repeats(5, 3, slow_s=60), 9)[0].samples) == 5
    assert len(compare([slow], WORK, WORK, Repeats(5, 3, slow_s=0.01), 9)[0].samples) == 3
    assert len(compare([quick], WORK, WORK, Repeats(5, 3, slow_s=60, floor_s=61), 9)[0].samples) == 3


@pytest.mark.usefixtures("only_contenders_take_time")
@pytest.mark.parametrize("free_bytes", [9, 1], ids=["side by side", "in blocks"])
def test_a_contender_whose_warm_up_is_slow_runs_once_and_the_others_go_on(free_bytes):
    slow, quick = Scripted("A", [], takes=0.05), Scripted("B", [])
    trials = compare([slow, quick], WORK, WORK, Repeats(3, 3, once_s=0.04), free_bytes)
    assert [len(trial.samples) for trial in trials] == [1, 3]


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memory_counts_every_storage_once():
    class Cache:
        def __init__(self) -> None:
            self.keys = torch.zeros(10, 4)
            self.views = [self.keys[i] for i in range(10)]
            self.inner = {"values": torch.zeros(5)}

    assert tensor_bytes(Cache()) == 160 + 20


def test_a_phase_holds_its_weights_and_room_for_what_is_asked(bench):
    work = burst(2, 8, 4)
    contender = bench.contender("p02", Room(work.longest, 2))
    contender.build()
    peak = contender.run(work.arrivals(320), watch_memory=True).peak_bytes
    config = bench.model.config
    cache = 2 * config.num_layers * 2 * config.num_kv_heads * (work.longest + 1) * config.head_dim * 4
    assert peak >= bench.weight_bytes + cache
    assert peak < bench.weight_bytes + cache + 20_000  # masks and indices of a step, nothing larger


def test_what_sequences_hold_of_a_cache_is_watched(bench):
    """Three sequences of 13 positions and room for 40: slots hold all of it, pages of 16 hardly more than needed."""
    held = {}
    for phase in ("p03", "p04"):
        contender = bench.contender(phase, Room(40, 3))
        contender.build()
        run = contender.run(burst(3, 8, 6).arrivals(320), watch_memory=True)
        held[phase] = run.cache_bytes / bench.bytes_a_position
        stored = 3 * (8 + 9 + 10 + 11 + 12) / 5  # on average over the steps; the last token is never stored
        if phase == "p03":
            assert run.cache_waste == pytest.approx(100 * (1 - stored / held[phase]))
    assert held == {"p03": 3 * 41, "p04": 3 * 16}


def test_a_conversation_goes_on_with_what_was_said(bench):
    chat = conversations(2, 3, first=5, question=4, answer=3, pause=0.01)
    run = drive(bench.engine("p03", Room(chat.longest, 2)), chat.arrivals(320), CPU)
    lengths = [len(arrival.prompt) for arrival in run.arrivals]
    assert lengths == [job.prompt for job in chat.whole] == [5, 5, 12, 12, 19, 19]
    for index in (2, 3, 4, 5):
        before, now = run.arrivals[index - 2], run.arrivals[index]
        assert now.prompt[: len(before.prompt)] == before.prompt
        assert now.at == pytest.approx(run.token_times[index - 2][-1] + 0.01)


def test_a_repeat_finds_no_prefix_of_the_run_before(bench):
    contender = bench.contender("p05", Room(60, 2))
    contender.build()
    work = shared_prefix(3, 1000.0, 40, 4, 2, lead=0.05).arrivals(320)
    hits = [contender.run(work).cached_tokens for _ in range(2)]
    assert hits[0] == hits[1] == 2 * 32


def test_the_same_memory_holds_fewer_slots_than_sequences_on_pages(bench):
    room = Room(context=40, batch=8, cache_tokens=96)
    assert bench.engine("p03", room).scheduler.max_sequences == 2
    assert bench.engine("p04", room).scheduler.max_sequences == 8
    with pytest.raises(ContenderFailed, match="30 positions hold no sequence of 40"):
        bench.engine("p03", Room(40, 8, cache_tokens=30))


# -- does the GPU wait for the host? -----------------------------------------------------------------------------------


class At:
    """An event at a given number of milliseconds."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def elapsed_time(self, other: "At") -> float:
        return other.ms - self.ms


def test_the_gpu_waited_only_where_the_step_before_had_ended_when_the_next_was_handed_over(monkeypatch):
    """Steps of 2 ms: the second comes in time, the third 0.5 ms late and 40 µs in the making."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    watch = IdleWatch(runner=None)
    watch.steps = [
        Step(8, At(0.0), At(2.0), 30.0, late=True),
        Step(8, At(2.0), At(4.0), 30.0, late=False),
        Step(8, At(4.5), At(6.5), 40.0, late=True),
        Step(5, At(9.0), At(9.5), 30.0, late=True),  # a step that is not full says little
        Step(0, At(9.9), At(20.0), 30.0, late=True),  # a prompt
    ]
    assert watch.idle_us() == pytest.approx([0.0, 540.0])
