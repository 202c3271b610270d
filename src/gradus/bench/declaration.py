"""What a phase's `benchmark.py` says: the question, the tables that answer it, and in prose why they say what they say.

A table has rows (workloads) and contenders; every contender runs every row. Prose may quote a measured number only as a
field, as in `{output-length/200/p01/output_tok_s}`: it is filled in from results.json, so no number can outlive its
measurement. No torch here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

from gradus import phases
from gradus.bench import workloads
from gradus.bench.prediction import Policy, cached, continuous
from gradus.bench.workloads import Workload
from gradus.errors import ConfigError

LADDER = "ladder"
PEERS: dict[str, Policy] = {"transformers": cached, "transformers-batch": continuous}
"""Other engines, and the policy by which each is predicted: `generate` one by one, and `generate_batch`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workload of a table.

    x: its place on the figure's axis. batch: most sequences at once (None: as many as the workload has requests).
    workload: the same everywhere, or by device ("cpu", "cuda"); a device that is not named leaves the row out.
    context: tokens that a sequence may have (None: as many as the workload's longest). cache_tokens: positions of cache
    that every contender gets; one that reserves a whole context for each sequence then runs as many as that holds.
    token_budget: most tokens a step, for contenders that cut prompts.
    """

    label: str
    x: float
    workload: Workload | Mapping[str, Workload]
    batch: int | None = None
    context: int | None = None
    cache_tokens: int | None = None
    token_budget: int | None = None

    def on(self, device: str) -> Workload | None:
        return self.workload if isinstance(self.workload, Workload) else self.workload.get(device)


@dataclass(frozen=True, slots=True)
class Goal:
    """Goodput counts requests that meet both, in seconds: until the first token, and between tokens on average."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Table:
    """axis: what the rows' labels are. metric: the one that is predicted and drawn; columns: the others to show.

    against: the contender that speed-ups count from; "first row" compares each contender with its own first row.
    scale: of the figure's axes: "log", "linear", or "names" where the rows' x says nothing. goals: by device, for
    goodput.
    """

    name: str
    title: str
    axis: str
    rows: tuple[Row, ...]
    contenders: tuple[str, ...]
    metric: str = "output_tok_s"
    columns: tuple[str, ...] = ()
    against: str | None = None
    scale: str = "log"
    goals: Mapping[str, Goal] = field(default_factory=dict)


FIRST_ROW = "first row"


@dataclass(frozen=True, slots=True)
class Account:
    """What is to be said of a result. explains: why it is what it is, against the prediction. loses: where it loses."""

    explains: str
    loses: str


@dataclass(frozen=True, slots=True)
class Benchmark:
    """question: what is asked. prediction: what to expect and from which reasoning, before anything was measured.

    policy: how the phase schedules, for its prediction. profile: the context at which a decode step is taken apart, for
    each of these contenders. accounts: by hardware ("cpu", "h200"). rungs: the same, of its place on the ladder.
    """

    question: str
    prediction: str
    tables: tuple[Table, ...]
    policy: Policy | None = None
    profile: tuple[str, ...] = ()
    profile_context: int = 256
    accounts: Mapping[str, Account] = field(default_factory=dict)
    rungs: Mapping[str, Account] = field(default_factory=dict)

    def table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)


# -- finding them ------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """Everything that `gradus bench` can run: the phases that have a benchmark.py, and the ladder."""
    return [*_phases(), LADDER]


def load(name: str) -> Benchmark:
    """The benchmark of a phase ("p01"), or the ladder. Raises ConfigError for a name that does not exist."""
    if name == LADDER:
        return ladder()
    modules = _phases()
    if name not in modules:
        raise ConfigError(f"benchmark must be one of {', '.join([*modules, LADDER, 'all'])}, got {name!r}")
    return import_module(modules[name]).BENCHMARK


def ladder() -> Benchmark:
    """One workload, every phase and every peer: what each optimization has brought so far."""
    rungs = tuple(_phases())
    row = Row("all", 0, {device: workloads.ladder(device) for device in ("cpu", "cuda")})
    return Benchmark(
        question="The same 16 requests, one phase after the other: what did each step bring?",
        prediction="Each phase is predicted by its own schedule, played through with the roofline as its clock.",
        tables=(
            Table(
                name="ladder",
                title="The ladder",
                axis="workload",
                rows=(row,),
                contenders=(*rungs, *PEERS),
                columns=("ttft_ms", "itl_ms", "itl_ms_p99", "padding", "peak_mb"),
                against=rungs[0] if rungs else None,
            ),
        ),
    )


def policy_of(contender: str) -> Policy | None:
    """How a contender schedules, as far as its prediction is concerned."""
    return PEERS[contender] if contender in PEERS else load(contender).policy


def title_of(contender: str) -> str:
    """A contender's name for people: "p01 KV cache"."""
    named = {
        "transformers": "transformers generate",
        "transformers-batch": "transformers generate_batch",
    } | {phase.name: f"{phase.name} {phase.title}" for phase in phases.available()}
    return named.get(contender, contender)


def rungs() -> Iterator[tuple[str, Benchmark]]:
    for name in _phases():
        yield name, load(name)


def _phases() -> dict[str, str]:
    """Phase → the module of its benchmark, in the course's order."""
    modules = {phase.name: f"phases.{phase.folder}.benchmark" for phase in phases.available()}
    return {name: module for name, module in modules.items() if find_spec(module)}
