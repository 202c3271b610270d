"""The parts of a phase's `benchmark.py`: the question, the answer that is predicted, and the tables that give it.

A table has rows (workloads) and contenders; every contender runs every row. Prose that explains the
results is in their folder (`record/prose.py`). No torch here.
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
"""The names of the final engine's switches in titles."""

LLAMA_CPP = "llama.cpp"
PEERS: dict[str, Policy] = {"transformers": cached, "transformers-batch": continuous, LLAMA_CPP: continuous}
"""Other engines, each with the policy that predicts it. transformers: `generate` one by one, and `generate_batch`."""

ON_CPU_ALONE = (LLAMA_CPP,)
"""Peers that are left out on a GPU: their installed builds run on processors."""

GGUF_FORMATS: dict[str | None, str] = {None: "F16", "int8": "Q8_0", "int4": "Q4_0"}
"""llama.cpp's format with as many bits for each weight of the layers as a scheme of ours. None: unquantized."""


YOURS = "your "
"""The prefix of contenders that run a student's functions: "your p01" is p01 with them in place."""

ByDevice = int | None | Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One workload of a table.

    x: its place on the figure's axis. batch: most sequences at once (None: as many as the workload has requests).
    slots: the engine's slots, if more than ever run at once (None: as many as run).
    workload: one for all devices, or by device ("cpu", "cuda"); devices without one leave the row out.
    context: most tokens per sequence (None: the workload's longest). cache_tokens: cache positions for every contender;
    one that reserves a whole context per sequence runs as many sequences as that holds. token_budget: most tokens per
    step, for contenders that cut prompts. All three may also be given by device.
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
        """The row on one device; None if it has no workload there."""
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
    """A row on one device; see Row."""

    workload: Workload
    context: int | None
    cache_tokens: int | None
    token_budget: int | None


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits in seconds, to the first token and between tokens on average. Goodput counts requests that meet both."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Table:
    """axis: the meaning of the rows' labels. metric: the one predicted and drawn; columns: other metrics to show.

    against: the contender that speed-ups are relative to, in the same scheme if the row has it; "first row" compares
    each contender with its own first row.
    scale: "log" or "linear" axes, or "names" if x has no meaning. goals: for goodput, by device.
    panels: metrics that the figure of a one-row table shows side by side; () draws `metric` alone.
    gpu_only: contenders left out on a CPU, where they equal another one. once_s: a contender whose warm-up takes more
    than this many seconds is timed once.
    quick: the rows of a quick look: workloads of seconds, with their own labels, on which the contenders differ in the
    same direction as on the full ones. A quick look leaves out tables without such rows; if no table of a benchmark has
    any, it cuts the first rows of each. quick_title: a title for these rows, if the usual one does not fit.
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
        """The title in a full run, or in a quick look."""
        return (quick and self.quick_title) or self.title


FIRST_ROW = "first row"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """question: the question to answer. prediction: the expected answer and the reasoning, written before measuring.

    policy: the phase's schedule, for its prediction. profile: the context at which each of these contenders' decode
    steps is taken apart. step: what the phase adds on the ladder, in a sentence that quotes only its own numbers.
    """

    question: str
    prediction: str
    tables: tuple[Table, ...]
    policy: Policy | None = None
    profile: tuple[str, ...] = ()
    profile_context: int = 256
    step: str = ""

    def table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)


# -- the name of a contender -------------------------------------------------------------------------------------------


def quantized(contender: str) -> tuple[str, str | None]:
    """A contender without its scheme, and the scheme: "final:int8" is ("final", "int8"), "final" is ("final", None)."""
    name, _, scheme = contender.partition(":")
    return name, scheme or None


def in_scheme(contender: str, scheme: str | None) -> str:
    """The inverse of `quantized`."""
    return contender if scheme is None else f"{contender}:{scheme}"


def is_peer(contender: str) -> bool:
    return quantized(contender)[0] in PEERS


def switched(contender: str) -> tuple[str, tuple[str, ...]]:
    """A contender's engine, and what is switched off in it: "final-graphs:int8" is ("final", ("graphs",)).

    For a student's phase, the engine is the phase.

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
