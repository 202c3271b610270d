"""A quick look's small workloads show the same sign of effect as the whole ones: counted, and timed by rows alone."""

from types import SimpleNamespace

import pytest

from gradus.bench import registry
from gradus.bench.contenders.workbench import EngineContender, Room, Workbench
from gradus.bench.declare.declaration import FIRST_ROW, Row, Table
from gradus.bench.predict.prediction import predict
from gradus.bench.predict.roofline import Machine
from gradus.bench.record.metrics import METRICS
from gradus.bench.run.suite import CPU_BATCH_WARM_UP, QUICK_OUTPUT, QUICK_PROMPT, Suite, _cut
from gradus.bench.workloads import single_stream
from tests.bench.virtual import virtual  # noqa: F401  # the clock, as a fixture

QUICK = [
    pytest.param(phase, table, id=f"{phase} {table.name}")
    for phase in registry._phases()
    for table in registry.load(phase).tables
    if table.quick
]
TRAITS = {"p01": "rows", "p03": "rows", "p05": "rows"}
"""The quantity that a phase saves on its quick workloads, whatever a row costs."""


@pytest.fixture(scope="module")
def tiny():
    return Workbench.open("random:tiny-llama", "cpu", "float32")


def measured(tiny: Workbench, virtual, contender: str, row: Row) -> dict:  # noqa: F811
    here = row.on("cpu")
    batch = min(row.batch or len(here.workload.jobs), len(here.workload.jobs))
    room = Room(here.context or here.workload.longest, batch, here.cache_tokens, here.token_budget)
    one = EngineContender(contender, tiny, room)
    one.build()
    virtual(one.engine)
    arrivals = here.workload.arrivals(tiny.model.config.vocab_size, tiny.model.config.context_length)
    sample = one.run(arrivals, watch_memory=True).sample()
    one.close()
    return sample


def better(table: Table, one: dict, other: dict) -> float:
    """How many times as good the metric is."""
    metric = METRICS[table.metric]
    gain = metric.read(one) / metric.read(other)
    return gain if metric.more_is_better else 1 / gain


def timed() -> list:
    """All tables of the phases that save time; beyond the first of each phase for `make stress`."""
    params, seen = [], set()
    for phase, table in (param.values for param in QUICK if param.values[0] != "p07"):
        marks = pytest.mark.stress if phase in seen else ()
        params.append(pytest.param(phase, table, id=f"{phase} {table.name}", marks=marks))
        seen.add(phase)
    return params


@pytest.mark.parametrize(("phase", "table"), timed())
def test_a_quick_look_shows_the_sign_of_the_effect(phase, table, tiny, virtual):  # noqa: F811
    samples = [
        {name: measured(tiny, virtual, name, row) for name in table.contenders if name in registry._phases()}
        for row in table.quick
    ]
    if table.against == FIRST_ROW or phase == "p00":
        gain = better(table, samples[-1][phase], samples[0][phase])
        assert gain < 0.8 if phase == "p00" else gain > 1.5  # the baseline slows down as its answer grows
        return
    for each in samples:
        assert better(table, each[phase], each[table.against]) > 1.1, table.title
        trait = TRAITS.get(phase)
        assert trait is None or each[phase][trait] < each[table.against][trait]


def test_quantized_weights_are_fewer_bytes(tiny):
    machine, config = Machine(1e10, 1e11), tiny.model.config
    for table in registry.load("p07").tables:
        for row in table.quick:
            work = row.on("cpu").workload
            wide, narrow = (
                predict(registry.policy_of(name), work, config, tiny.widths(name), machine, row.batch, None)
                for name in ("p06", "p07")
            )
            assert narrow.bytes < wide.bytes


@pytest.mark.parametrize(("phase", "table"), QUICK)
def test_a_quick_row_is_small_and_labeled_as_what_it_is(phase, table):
    labels = [row.label for row in table.quick]
    assert len(set(labels)) == len(labels)
    works = [row.on("cpu").workload.digest() for row in table.quick]
    assert len(set(works)) == len(works), "one workload under two labels"
    for row in table.quick:
        work = row.on("cpu").workload
        assert work.prompt_tokens + work.output_tokens <= 1000


@pytest.mark.parametrize("phase", ["p00", "p01"])
def test_the_baseline_recomputes_few_rows_in_a_quick_look(phase):
    """Two slow cores take a second for some 300 rows, and each row of a table is run twice."""
    works = [row.on("cpu").workload for table in registry.load(phase).tables for row in table.quick]
    jobs = [(job.prompt, job.output) for work in works for job in work.jobs]
    assert 2 * sum(sum(range(prompt, prompt + output)) for prompt, output in jobs) < 6000


def test_a_quick_look_warms_up_with_a_few_tokens_on_a_cpu(tiny):
    work = single_stream(16, 40)
    settings = (SimpleNamespace(bench=tiny, settings=SimpleNamespace(quick=quick)) for quick in (True, False))
    quick, whole = (Suite._warm_up(each, work, 1.0) for each in settings)
    assert (quick.output_tokens, whole.output_tokens) == (CPU_BATCH_WARM_UP, 40)


def test_a_row_that_is_cut_says_so():
    row = registry.load("ladder").tables[0].rows[0]
    short = _cut(row, "cpu")
    single = _cut(registry.load("p00").tables[0].rows[0], "cpu")
    assert single.label == f"1 request, {QUICK_PROMPT} in, {QUICK_OUTPUT} out at most"
    assert short.label == f"4 requests, {QUICK_PROMPT} in, {QUICK_OUTPUT} out at most"
    assert "cut to 4 requests" in short.on("cpu").workload.what
    assert _cut(Row("elsewhere", 0, {"cuda": row.on("cpu").workload}), "cpu") is None
