"""The ladder's workload, rehearsed: each phase's own engine on a tiny model, with a clock that counts steps and rows.

A step takes as long as the weights do (1), and a little for each of its rows. So what each idea is for can be seen
without a watch: rows, steps, filler, how long requests wait, and the worst gap between two tokens.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from gradus.bench import __main__ as plain
from gradus.bench import registry, report
from gradus.bench.contenders.workbench import Room, Workbench
from gradus.bench.declare.suites import LADDER
from gradus.bench.measure import drive as driver
from gradus.bench.measure import fingerprint
from gradus.bench.measure.drive import Run
from gradus.bench.record import results
from gradus.bench.record.prose import FIELD
from gradus.bench.record.results import Results
from gradus.bench.statistics import median
from gradus.bench.workloads import Arrival, chat_traffic, ladder
from gradus.engine.engine import Engine
from tests.bench.conftest import RATES, TINY
from tests.bench.virtual import VirtualRunner, VirtualTime

ROW = 1 / 32  # a row's time, relative to reading the weights
CONTEXT, SLOTS, BUDGET = 352, 3, 64
CHAT = chat_traffic(18, 1.5, 64, (4, 12), (6, 24), long=2, pasted=240, summary=4, lead=4.0)
PHASES = ("p00", "p01", "p02", "p03", "p04", "p05", "p06")


@dataclass
class Played:
    """A phase's run of the workload. largest: the rows of its largest step."""

    run: Run
    largest: int

    @property
    def rate(self) -> float:
        return sum(map(len, self.run.token_times)) / max(times[-1] for times in self.run.token_times)

    @property
    def wait(self) -> float:
        return median([times[0] - each.at for each, times in zip(self.run.arrivals, self.run.token_times, strict=True)])

    @property
    def worst_gap(self) -> float:
        return max(later - earlier for times in self.run.token_times for earlier, later in pairwise(times))

    @property
    def together(self) -> int:
        """The most sequences that got a token in one step."""
        return max(Counter(time for times in self.run.token_times for time in times).values())


def play(engine: Engine, arrivals: Sequence[Arrival]) -> Played:
    clock = VirtualTime()
    engine.runner = runner = VirtualRunner(engine.runner, clock, 1, ROW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "time", clock)
        return Played(driver.drive(engine, arrivals, torch.device("cpu")), runner.largest)


@pytest.fixture(scope="module")
def runs(bench: Workbench) -> dict[str, Played]:
    room = Room(CONTEXT, len(CHAT.jobs), SLOTS * CONTEXT, BUDGET)
    arrivals = CHAT.arrivals(bench.model.config.vocab_size, bench.model.config.context_length)
    return {phase: play(bench.engine(phase, room), arrivals) for phase in PHASES}


def test_a_cache_saves_rows_and_waiting(runs):
    assert runs["p01"].run.rows < runs["p00"].run.rows / 5 and runs["p01"].run.steps == runs["p00"].run.steps
    assert runs["p01"].wait < runs["p00"].wait / 2


def test_a_batch_saves_steps_and_pays_with_filler(runs):
    assert runs["p02"].run.steps < 0.6 * runs["p01"].run.steps and runs["p02"].run.padding_rows > 0
    assert runs["p02"].together == SLOTS  # no more slots fit into the memory
    assert runs["p02"].rate > 1.1 * runs["p01"].rate


def test_choosing_the_batch_anew_saves_the_filler(runs):
    assert runs["p03"].run.padding_rows == 0 and runs["p03"].run.rows == runs["p01"].run.rows
    assert runs["p03"].rate > 1.15 * runs["p02"].rate and runs["p03"].wait < runs["p02"].wait
    assert runs["p03"].together == SLOTS


def test_pages_let_more_sequences_into_the_same_memory(runs):
    assert runs["p04"].together >= 2 * SLOTS
    assert runs["p04"].rate > 1.15 * runs["p03"].rate and runs["p04"].wait < 0.8 * runs["p03"].wait


def test_a_shared_system_prompt_is_computed_once(runs):
    assert runs["p05"].run.cached_tokens >= 64 * (len(CHAT.jobs) - 1)
    assert runs["p05"].run.rows == runs["p04"].run.rows - runs["p05"].run.cached_tokens
    assert runs["p05"].rate > 1.15 * runs["p04"].rate and runs["p05"].wait < 0.6 * runs["p04"].wait


def test_chunks_close_the_worst_gap(runs):
    assert runs["p05"].largest > 240 and runs["p06"].largest <= BUDGET
    assert runs["p06"].worst_gap < 0.5 * runs["p05"].worst_gap
    assert 0.8 * runs["p05"].rate < runs["p06"].rate < runs["p05"].rate  # and what that costs


# -- as it is measured -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_slots_reserve_whole_contexts_in_the_memory_that_pages_share(bench, device):
    (row,) = registry.load(LADDER).tables[0].rows
    here = row.on(device)
    assert here.workload == ladder(device) and here.workload.longest <= here.context
    count = len(here.workload.jobs)
    room = Room(here.context, count, here.cache_tokens, here.token_budget)
    assert 3 <= room.of("p03").batch <= 4 and room.of("p04").batch == count
    assert here.token_budget < max(job.prompt for job in here.workload.jobs) / 2  # the long prompts are cut


def test_a_sentence_about_a_rung_quotes_its_own_numbers_alone():
    (table,) = registry.load(LADDER).tables
    for contender in table.contenders:
        sentence = registry.step_of(contender)
        assert sentence.endswith(".") and len(sentence) < 120
        assert {field.rsplit("/", 1)[0] for field in FIELD.findall(sentence)} <= {f"chat/all/{contender}"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Results:
    folder = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "rates", lambda device, quick=False: RATES)
        arguments = [LADDER, "--quick", "--no-peers", "--repeats", "1", "--out", str(folder), *TINY]
        assert plain.main(arguments) == 0
    assert (folder / "cpu" / LADDER / "chat.svg").exists()
    return results.read(results.path(folder, "cpu", LADDER))


def test_the_report_says_what_each_rung_adds(measured):
    benchmark = registry.load(LADDER)
    text = report.render(measured, benchmark)
    for contender in ("p00", "p04", "final"):
        assert f"- **{registry.title_of(contender)}.** " in text
    assert "{" not in text and "p09" not in text and "p10" not in text  # a CPU has no place for these
    ((name, picture),) = report.figures(measured, benchmark)
    assert name == "chat.svg" and picture.kind == "panels" and len(picture.series) == 3
