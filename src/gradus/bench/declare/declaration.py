"""What a phase's `benchmark.py` says: the question, the tables that answer it, and in prose why they say what they say.

A table has rows (workloads) and contenders; every contender runs every row. Prose may quote a measured number only as a
field, as in `{output-length/200/p01/output_tok_s}`: it is filled in from results.json, so no number can outlive its
measurement. No torch here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradus.bench.predict.prediction import Policy, cached, continuous
from gradus.bench.workloads import Workload
from gradus.config.options import FINAL
from gradus.errors import ConfigError

SWITCHES = {
    "prefix_cache": "prefix cache",
    "chunked": "chunked prefill",
    "kernels": "kernels",
    "graphs": "graphs",
    "overlap": "overlap",
}
"""What the final engine's switches are called in titles."""

LLAMA_CPP = "llama.cpp"
PEERS: dict[str, Policy] = {"transformers": cached, "transformers-batch": continuous, LLAMA_CPP: continuous}
"""Other engines, and the policy by which each is predicted. transformers: `generate` one by one, and `generate_batch`.
"""

ON_CPU_ALONE = (LLAMA_CPP,)
"""Peers that are left out on a GPU: what is installed of them runs on processors."""

GGUF_FORMATS: dict[str | None, str] = {None: "F16", "int8": "Q8_0", "int4": "Q4_0"}
"""llama.cpp's format with as many bits for each weight of the layers as a scheme of ours. None: unquantized."""


YOURS = "your "
"""Begins the name of a contender that runs a student's functions: "your p01" is p01 with them in place."""

ByDevice = int | None | Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One workload of a table.

    x: its place on the figure's axis. batch: most sequences at once (None: as many as the workload has requests).
    slots: of the engine, where it has more than ever run at once (None: as many as run).
    workload: the same everywhere, or by device ("cpu", "cuda"); a device that is not named leaves the row out.
    context: tokens that a sequence may have (None: as many as the workload's longest). cache_tokens: positions of cache
    that every contender gets; one that reserves a whole context for each sequence then runs as many as that holds.
    token_budget: most tokens per step, for contenders that cut prompts. These three may be given by device as well.
    """

    label: str
    x: float
    workload: Workload | Mapping[str, Workload]
    batch: int | None = None
    slots: int | None = None
    context: ByDevice = None
    cache_tokens: ByDevice = None
    token_budget: ByDevice = None

    def on(self, device: str) -> "RowOnDevice | None":
        """The row as it is on a device; None where it is not for that device."""
        workload = self.workload if isinstance(self.workload, Workload) else self.workload.get(device)
        if workload is None:
            return None
        numbers = (
            value.get(device) if isinstance(value, Mapping) else value
            for value in (self.context, self.cache_tokens, self.token_budget)
        )
        return RowOnDevice(workload, *numbers)


@dataclass(frozen=True, slots=True)
class RowOnDevice:
    """What a row asks of the contenders on one device; see Row."""

    workload: Workload
    context: int | None
    cache_tokens: int | None
    token_budget: int | None


@dataclass(frozen=True, slots=True)
class Goal:
    """Goodput counts requests that meet both, in seconds: until the first token, and between tokens on average."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Table:
    """axis: what the rows' labels are. metric: the one that is predicted and drawn; columns: the others to show.

    against: the contender that speed-ups count from, in the same scheme where the row has it so; "first row" compares
    each contender with its own first row.
    scale: of the figure's axes: "log", "linear", or "names" where the rows' x says nothing. goals: by device, for
    goodput. panels: metrics that the figure shows side by side, of a table of one row; () draws `metric` alone.
    gpu_only: contenders that a CPU leaves out, where they are what another one is. once_s: a contender whose warm-up
    takes longer than so many seconds is timed once.
    quick: the rows of a quick look: workloads of seconds, under labels of their own, on which the contenders differ in
    the same direction as on the whole ones. A quick look leaves out tables without them; where no table of a benchmark
    has any, it cuts the first rows of each. quick_title: where the title does not fit those rows.
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
    panels: tuple[str, ...] = ()
    gpu_only: tuple[str, ...] = ()
    once_s: float = math.inf
    quick: tuple[Row, ...] = ()
    quick_title: str = ""

    def titled(self, quick: bool) -> str:
        """Its title in a whole run, or in a quick look."""
        return (quick and self.quick_title) or self.title


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
    each of these contenders. accounts: by hardware ("cpu", "h200"). step: what the phase adds on the ladder, in a
    sentence that quotes its own numbers alone.
    """

    question: str
    prediction: str
    tables: tuple[Table, ...]
    policy: Policy | None = None
    profile: tuple[str, ...] = ()
    profile_context: int = 256
    accounts: Mapping[str, Account] = field(default_factory=dict)
    step: str = ""

    def table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)


# -- the name of a contender -------------------------------------------------------------------------------------------


def quantized(contender: str) -> tuple[str, str | None]:
    """A contender without its scheme, and the scheme: "final:int8" is ("final", "int8"), "final" is ("final", None)."""
    name, _, scheme = contender.partition(":")
    return name, scheme or None


def in_scheme(contender: str, scheme: str | None) -> str:
    """`quantized` backwards."""
    return contender if scheme is None else f"{contender}:{scheme}"


def is_peer(contender: str) -> bool:
    return quantized(contender)[0] in PEERS


def switched(contender: str) -> tuple[str, tuple[str, ...]]:
    """A contender's engine, and what is switched off in it: "final-graphs:int8" is ("final", ("graphs",)).

    A student's phase has the engine of the phase.

    Raises ConfigError for an unknown switch, and for a phase, which has none.
    """
    engine, *off = quantized(contender)[0].removeprefix(YOURS).split("-")
    for switch in off:
        if engine != FINAL or switch not in SWITCHES:
            raise ConfigError(
                f"contender {contender!r}: only {FINAL} can be run without some of {', '.join(SWITCHES)}, "
                f"as in {FINAL}-overlap"
            )
    return engine, tuple(off)
