"""`gradus bench scheduler`: run the simulations of predict/, write their results.json, and report on them."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from gradus.bench.predict import simulation
from gradus.bench.record import results
from gradus.bench.record.metrics import shown
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.bench.record.study import Rows
from gradus.bench.workloads import SEED
from gradus.config.options import SETTINGS, Policy
from gradus.doctor import machine
from gradus.errors import ConfigError

NAME = "scheduler"
HARDWARE = "cpu"  # a scheduler runs on the CPU, wherever the model runs
REQUESTS, BATCHES = 10_000, (32, 256)
STEADY_BATCH, STEADY_STEPS = 256, 1000
QUEUES, QUEUE_STEPS = (100, 10_000, 100_000), 300
POOLS, GROUPS, WAVES = (60_000, 240_000), {"one layer group": (None,), "a window beside it": (None, 512)}, 8
QUICK_POOLS, QUICK_WAVES = (16_000,), 2
QUICK_REQUESTS, QUICK_BATCHES, QUICK_QUEUES, QUICK_STEPS = 200, (32,), (10, 100), 30


def measure(
    out: Path,
    *,
    requests: int | None = None,
    batches: tuple[int, ...] = (),
    policy: str | None = None,
    quick: bool = False,
    commit: str | None = None,
    say: Callable[[str], None] = lambda title: None,
) -> Path:
    """Run every simulation and write the results, keeping those of other policies. Returns the file.

    Raises ConfigError for an unknown policy, and for numbers below 1.
    """
    policy = policy or SETTINGS["policy"].default
    SETTINGS["policy"].check(policy)
    requests = requests if requests is not None else QUICK_REQUESTS if quick else REQUESTS
    batches = batches or (QUICK_BATCHES if quick else BATCHES)
    for name, value in (("requests", requests), *(("batch", batch) for batch in batches)):
        if value < 1:
            raise ConfigError(f"{name} must be 1 or more, got {value}")
    file = results.path(out, HARDWARE, NAME)
    found = results.read(file) if file.exists() else Results(HARDWARE, NAME)
    run = Run(f"random:{simulation.SHAPE}", f"simulated, {policy}", "cpu", _machine(), _settings(quick, commit))
    for cell in _cells(requests, batches, cast(Policy, policy), quick, say):
        run.put(cell)
        gc.collect()  # free a queue of 100,000 before the next one
    found.put(run)
    results.write(file, found)
    return file


def _cells(
    requests: int, batches: tuple[int, ...], policy: Policy, quick: bool, say: Callable[[str], None]
) -> Iterator[Cell]:
    for batch in batches:
        say(f"{requests:,} requests, batch {batch}")
        workload, sample = simulation.serve(requests, batch, policy)
        what = {"what": workload.what, "digest": workload.digest(), "requests": requests, "longest": workload.longest}
        yield _cell("requests", f"{batch}", batch, batch, what, sample)
    say(f"steady decodes, batch {STEADY_BATCH}")
    steps = QUICK_STEPS if quick else STEADY_STEPS
    sample = simulation.steady(STEADY_BATCH, steps)
    yield _cell("steps", "decodes only", 0, STEADY_BATCH, {"what": "a full batch of decodes"}, sample)
    for length in QUICK_QUEUES if quick else QUEUES:
        say(f"{length:,} waiting behind a full batch of {STEADY_BATCH}")
        sample = simulation.queued(length, STEADY_BATCH, QUICK_STEPS if quick else QUEUE_STEPS)
        what = {"what": "short requests, coming as fast as they end"}
        yield _cell("steps", f"{length:,} waiting", length, STEADY_BATCH, what, sample)

    for count in QUICK_POOLS if quick else POOLS:
        for groups, windows in GROUPS.items():
            say(f"a pool of {count:,} pages, {groups}")
            sample = simulation.pages(count, windows, QUICK_WAVES if quick else WAVES)
            what = {"what": "256 sequences at a time, 64 tokens in and 128 out, with nothing in common"}
            yield _cell("pages", f"{count:,} pages, {groups}", count, 256, what, sample)


def _cell(table: str, row: str, x: float, batch: int, workload: dict[str, Any], sample: dict[str, Any]) -> Cell:
    return Cell(table, row, x, batch, workload, [Entry(NAME, samples=[sample])])


def _machine() -> dict[str, Any]:
    known = machine.hardware()
    hardware = {name: known[name] for name in ("processor", "cores")}
    return {"hardware": hardware, "versions": {"python": machine.versions()["python"]}}


def _settings(quick: bool, commit: str | None) -> dict[str, Any]:
    from gradus.bench.measure.fingerprint import (
        commit as current_commit,  # imports torch, which nothing else here needs
    )

    return {
        "commit": commit or current_commit(),
        "quick": quick,
        "seed": SEED,
        "token budget": simulation.TOKEN_BUDGET,
        "cache": f"{simulation.POSITIONS_EACH} positions per sequence of the batch",
    }


# -- the report --------------------------------------------------------------------------------------------------------

OPENING = (
    "How many requests could the scheduler serve, if the model took no time?",
    "Simulated: the scheduler, the page pool and the prefix index are the real ones; the model is a formula, and its "
    "time is virtual: the roofline's for {model} on a published H200. So latencies and waits, in virtual seconds, "
    "follow from the schedule alone; requests and tokens per second, and microseconds, are the scheduler's own wall "
    "time (`add`, `schedule` and `commit`) on this machine, with the garbage collector frozen.",
)
PAGES = (
    "Microseconds of the cache manager per page: taken, entered into the prefix index, and released. In a fresh pool a "
    "page is free; in a full one it is idle, and must be evicted first."
)
LOSES = (
    "The requests of a run come faster than the machine serves them, so waits grow with the length of the run: they "
    "say how the queue behaves, not how long a user waits. A step that starts or ends sequences costs more than one "
    "that only decodes: the difference between the rows of the last table."
)


def report_parts(found: Results) -> Iterator[str | Rows]:
    """The paragraphs and tables of report.md."""
    yield "# The scheduler alone, simulated"
    yield OPENING[0]
    yield OPENING[1].format(model=found.runs[0].model.removeprefix("random:"))
    for run in found.runs:
        yield f"## {run.title}"
        if run.settings["quick"]:
            yield "**A quick look, not to be quoted.**"
        served = [(cell, cell.entries[0].samples[0]) for cell in run.of("requests")]
        yield "\n".join(f"- batch {cell.row}: {cell.workload['what']}" for cell, _ in served)
        yield _wall(served)
        yield "What a request sees, in virtual seconds (p50 / p95 / p99):"
        yield _virtual(served)
        yield "### A step of 256 sequences"
        yield _steps([(cell, cell.entries[0].samples[0]) for cell in run.of("steps")])
        if of_pages := [(cell, cell.entries[0].samples[0]) for cell in run.of("pages")]:
            yield "### A page from a full pool"
            yield PAGES
            yield _pages(of_pages)
    yield "## Where it loses"
    yield LOSES
    yield "## On what, and how"
    yield from (_facts(run) for run in found.runs)
    yield "Measured again with:\n\n```console\n" + "\n".join(_commands(found)) + "\n```"


Served = list[tuple[Cell, dict[str, Any]]]


def _wall(served: Served) -> Rows:
    header = ["batch", "requests", "requests/s", "tok/s", "step µs p50", "p95", "p99", "sequences per step"]
    return header, [
        [
            cell.row,
            f"{sample['requests']:,}",
            shown(sample["requests_s"]),
            shown(sample["tokens_s"]),
            *(shown(sample["step_us"][key]) for key in ("p50", "p95", "p99")),
            shown(sample["batch"]["mean"]),
        ]
        for cell, sample in served
    ]


def _virtual(served: Served) -> Rows:
    header = ["batch", "latency", "queue wait", "longest queue", "preemptions", "deadlines missed"]
    return header, [
        [
            cell.row,
            _quantiles(sample["latency_s"]),
            _quantiles(sample["wait_s"]),
            shown(sample["queue"]["p100"]),
            f"{sample['preemptions']:,}",
            str(sample["deadline_misses"]),
        ]
        for cell, sample in served
    ]


def _steps(measured: Served) -> Rows:
    header = ["", "schedule µs", "commit µs", "both µs p50", "p95", "p99", "µs per sequence", "add µs"]
    return header, [
        [
            cell.row,
            shown(sample["schedule_us"]["p50"]),
            shown(sample["commit_us"]["p50"]),
            *(shown(sample["step_us"][key]) for key in ("p50", "p95", "p99")),
            shown(sample["sequence_us"]["p50"]),
            shown(sample["add_us"]["p50"]) if sample["add_us"] else "",
        ]
        for cell, sample in measured
    ]


def _pages(measured: Served) -> Rows:
    header = ["pool", "fresh µs", "full µs", "more µs"]
    return header, [
        [cell.row, shown(sample["fresh_us"]), shown(sample["full_us"]), f"{sample['more_us']:.2f}"]
        for cell, sample in measured
    ]


def _quantiles(values: dict[str, float]) -> str:
    return " / ".join(shown(values[key]) for key in ("p50", "p95", "p99"))


def _facts(run: Run) -> str:
    known = {**run.fingerprint["hardware"], **run.fingerprint["versions"], **run.settings}
    return "\n".join([f"**{run.title}**", "", *(f"- {name}: {value}" for name, value in known.items())])


def _commands(found: Results) -> Iterator[str]:
    for run in found.runs:
        yield f"$ gradus bench scheduler --policy {run.dtype.removeprefix('simulated, ')}"
