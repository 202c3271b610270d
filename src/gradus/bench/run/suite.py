"""Run a benchmark from its declaration to its results: predict, measure and write cell by cell."""

import platform
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradus.bench import registry
from gradus.bench.contenders import yours
from gradus.bench.contenders.workbench import Room, Workbench
from gradus.bench.declare.declaration import ON_CPU_ALONE, Benchmark, Row, Table, is_peer, quantized
from gradus.bench.measure.drive import ContenderFailed, Repeats, compare
from gradus.bench.measure.fingerprint import fingerprint, hardware_name, machine_of
from gradus.bench.measure.settings import Settings, Watcher
from gradus.bench.predict.prediction import predict
from gradus.bench.predict.roofline import Machine
from gradus.bench.record import results
from gradus.bench.record.metrics import prediction_json
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.bench.run.profiler import profile_steps
from gradus.bench.statistics import significant
from gradus.bench.studies import beside
from gradus.bench.workloads import Workload
from gradus.errors import ConfigError

LONGEST_WARM_UP = 10.0  # predicted seconds; a longer workload warms up with fewer tokens
QUICK_REPEATS, QUICK_JOBS, QUICK_PROMPT, QUICK_OUTPUT, QUICK_ROWS = 2, 4, 24, 6, 2
PROFILE = "profile"  # named like a table, to ask for it alone or with others
QUICK_SECONDS = 0.5  # until the last arrival
CPU_BATCH_WARM_UP = 8  # output tokens


@dataclass
class Suite:
    """One model on one machine, for any number of benchmarks: loaded and fingerprinted once."""

    settings: Settings
    bench: Workbench
    out: Path
    watcher: Watcher
    hardware: str = field(init=False)
    fingerprint: dict[str, Any] = field(init=False)
    machine: Machine = field(init=False)

    def __post_init__(self) -> None:
        device = self.bench.device
        self.hardware = hardware_name(device)
        self.fingerprint = fingerprint(device, quick=self.settings.quick)
        self.machine = machine_of(self.fingerprint["rates"], self.bench.model.dtype, self.bench.weights_dtype)

    def measure(self, name: str) -> Path:
        """Run the benchmark of that name; its results file is written after every cell. Returns the file."""
        benchmark = registry.load(name)
        file = results.path(self.out, self.hardware, name)
        run = self._begin(results.read(file) if file.exists() else Results(self.hardware, name))
        for table in benchmark.tables:
            if self.settings.tables and table.name not in self.settings.tables:
                continue
            for row in self._rows(benchmark, table):
                cell = self._cell(name, table, row)
                if cell is None or (self.settings.resume and _is_measured(run, cell)):
                    continue
                self._fill(cell, row, table, run)
                run.put(cell)
                self._finish(run, name)
        if not run.cells and not self.settings.tables:
            self.watcher.note(f"{name}: none of its rows is for a {self.bench.device.type} device")
        if self._wants_profiles(benchmark, run):
            run.profiles = self._profiles(benchmark)
            self._finish(run, name)
        return file

    # -- choosing the work --------------------------------------------------------------------------------------------

    def _begin(self, before: Results) -> Run:
        """A new run, or the one to resume: of the same commit, on the same kind of machine."""
        fresh = Run(
            model=self.bench.checkpoint.name,
            dtype=self.bench.dtype,
            device=self.bench.device.type,
            fingerprint=self.fingerprint,
            settings={
                **self.settings.of_run(),
                "cuDNN attention": "off",
                "sampling": "greedy, end-of-sequence ignored",
                "precision": self.bench.precision.reason,
                "peers' weights": str(self.bench.model.dtype).removeprefix("torch."),
                **self.settings.of_quantized(self.bench.precision),
                **{name: one.note for name, one in self.bench.solutions.items()},
            },
        )
        old = before.run(*fresh.key)
        narrowed = self.settings.tables or self.settings.contenders
        same = old is not None and old.settings["commit"] == fresh.settings["commit"]
        return old if old is not None and (narrowed or self.settings.resume) and same else fresh

    def _rows(self, benchmark: Benchmark, table: Table) -> Sequence[Row]:
        """The table's rows; in a quick look its quick rows, or else its first rows, cut."""
        if not self.settings.quick:
            return table.rows
        if any(one.quick for one in benchmark.tables):
            return table.quick
        cut = [short for row in table.rows if (short := _cut(row, self.bench.device.type)) is not None]
        return list({row.label: row for row in reversed(cut[:QUICK_ROWS])}.values())[::-1]  # equal ones once

    def _cell(self, name: str, table: Table, row: Row) -> Cell | None:
        """The row's cell; None if it is not for this device, or its sequences are too long for the model."""
        here, config = row.on(self.bench.device.type), self.bench.model.config
        if here is None:
            return None
        workload = here.workload
        if workload.longest > config.context_length:
            why = f"sequences of {workload.longest} tokens are longer than the model's context of"
        elif here.context is not None and here.context > config.context_length:
            why = f"a context of {here.context} tokens is longer than the model's of"
        else:
            why = ""
        if why:
            self.watcher.note(f"{name}, {table.title}, {row.label}: left out, {why} {config.context_length}")
            return None
        return Cell(
            table=table.name,
            row=row.label,
            x=row.x,
            batch=min(row.batch or len(workload.jobs), len(workload.jobs)),
            workload=workload.record(),
        )

    def _contenders(self, table: Table) -> list[str]:
        every = yours.beside(table.contenders, list(self.bench.solutions))
        names = [name for name in every if self._has_place(name)]
        if self.bench.device.type == "cpu":
            names = [name for name in names if name not in table.gpu_only]
        return [name for name in names if name in (self.settings.contenders or names)]

    def _has_place(self, contender: str) -> bool:
        if self.bench.device.type != "cpu" and quantized(contender)[0] in ON_CPU_ALONE:
            return False
        peers = self.settings.peers and not self.bench.quantized  # a peer would run other matrices
        return peers or not is_peer(contender)

    # -- one cell ------------------------------------------------------------------------------------------------------

    def _fill(self, cell: Cell, row: Row, table: Table, run: Run) -> None:
        """Predict, then measure."""
        here = row.on(self.bench.device.type)
        assert here is not None
        workload, config = here.workload, self.bench.model.config
        room = Room(here.context or workload.longest, row.slots or cell.batch, here.cache_tokens, here.token_budget)
        cell.entries = [Entry(name, self._predict(name, workload, room)) for name in self._contenders(table)]
        floors = [entry.prediction["seconds"] for entry in cell.entries if entry.prediction]
        slowest = max(floors, default=0.0)
        repeats = replace(self._repeats(slowest), once_s=table.once_s)
        contenders = [self.bench.contender(entry.contender, room) for entry in cell.entries]
        title = table.titled(self.settings.quick)
        self.watcher.cell(f"{title}: {cell.row}", len(contenders) * (repeats.usual + 1))
        trials = compare(
            contenders,
            arrivals=workload.arrivals(config.vocab_size, config.context_length),
            warm_up=self._warm_up(workload, slowest).arrivals(config.vocab_size, config.context_length),
            repeats=repeats,
            free_bytes=self.bench.free_bytes(),
            goal=table.goals.get(self.bench.device.type),
            done=self.watcher.run_done,
        )
        run.settings |= {contender.name: contender.about for contender in contenders if contender.about}
        for entry, trial in zip(cell.entries, trials, strict=True):
            entry.samples, entry.skipped = trial.samples, trial.failed
            if "memory_share" in table.columns:
                self._add_memory_share(entry)
            if trial.failed:
                self.watcher.note(f"{title}, {cell.row}: {entry.contender} left out: {trial.failed}")

    def _predict(self, contender: str, workload: Workload, room: Room) -> dict[str, Any] | None:
        policy = registry.policy_of(contender)
        if policy is None:
            return None
        config = self.bench.model.config
        try:
            widths = self.bench.widths(contender)
        except (ConfigError, ContenderFailed):  # building it will fail again and report this
            return None
        if not is_peer(contender):
            with suppress(ContenderFailed):
                room = room.of(contender)
        found = predict(policy, workload, config, widths, self.machine, room.batch, room.token_budget)
        return prediction_json(found)

    def _add_memory_share(self, entry: Entry) -> None:
        """Add the achieved share of memory bandwidth: a step's average bytes over the median gap."""
        for sample in entry.samples:
            if entry.prediction and "itl_ms" in sample:
                step_bytes = entry.prediction["bytes"] / entry.prediction["steps"]
                rate = step_bytes / (1e-3 * sample["itl_ms"]["p50"])
                sample["memory_share"] = significant(100 * rate / self.machine.bandwidth)

    def _repeats(self, floor: float) -> Repeats:
        fixed = self.settings.repeats or (QUICK_REPEATS if self.settings.quick else None)
        return Repeats(fixed, fixed) if fixed else Repeats(floor_s=floor)

    def _warm_up(self, workload: Workload, floor: float) -> Workload:
        """The whole workload, so that every shape occurs; if that takes too long, its prompts and a few tokens.

        On a GPU, a shape's first use may load or choose a kernel. A CPU has no such cost, so there, and in a quick
        look, the warm-up may be cut short.
        """
        at_once = workload.within(0.0)
        longest = 0.0 if self.settings.quick else LONGEST_WARM_UP
        if self.bench.device.type == "cuda" or floor <= longest:
            return at_once
        return at_once.shrunk(len(workload.jobs), workload.longest, CPU_BATCH_WARM_UP)

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _wants_profiles(self, benchmark: Benchmark, run: Run) -> bool:
        narrowed = self.settings.tables and PROFILE not in self.settings.tables
        return bool(benchmark.profile) and not narrowed and not (self.settings.resume and run.profiles)

    def _profiles(self, benchmark: Benchmark) -> list[dict[str, Any]]:
        self.watcher.cell("a decode step taken apart", len(benchmark.profile))
        context = min(QUICK_PROMPT if self.settings.quick else benchmark.profile_context, self._longest_context())
        found = []
        for contender in benchmark.profile:
            try:
                found.append(profile_steps(self.bench, contender, context=context).as_json())
            except ConfigError as error:
                self.watcher.note(f"a decode step: {contender} left out: {error}")
            self.watcher.run_done()
        return found

    def _longest_context(self) -> int:
        return self.bench.model.config.context_length // 2

    def _finish(self, run: Run, name: str) -> None:
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if platform.system() == "Darwin" else 1)
        run.settings["peak RSS MB"] = round(kilobytes / 1000)
        size = results.update(self.out, self.hardware, name, run)
        if size > results.MAX_BYTES:
            self.watcher.note(
                f"{name}: {results.FILE} has {size} bytes, more than the {results.MAX_BYTES} that may be committed"
            )


def _cut(row: Row, device: str) -> Row | None:
    """The row with fewer and shorter requests, and a label that says so; None if it is not for the device."""
    here = row.on(device)
    if here is None:
        return None
    short = here.workload.shrunk(QUICK_JOBS, QUICK_PROMPT, QUICK_OUTPUT).within(QUICK_SECONDS)
    whole = short.whole
    longest_in, longest_out = max(job.prompt for job in whole), max(job.output for job in whole)
    label = f"{len(whole)} request{'s' if len(whole) > 1 else ''}, {longest_in} in, {longest_out} out at most"
    what = f"{here.workload.what}; cut to {label}"
    return replace(row, label=label, workload=replace(short, what=what), context=None)


def _is_measured(run: Run, cell: Cell) -> bool:
    before = run.cell(cell.table, cell.row)
    return before is not None and before.workload["digest"] == cell.workload["digest"]


def targets(name: str) -> list[str]:
    """The benchmarks to run for a name; "all" is every one. Raises ConfigError for an unknown name."""
    if name == "all":
        return registry.names()
    if name == beside.NAME:
        raise ConfigError(f"{name} is measured by benchmarks/beside_vllm.py, which starts both engines in turn")
    registry.load(name)
    return [name]


def _check_names(wanted: Sequence[str], settings: Settings, names: list[str]) -> None:
    """Raise ConfigError for a table or contender that no benchmark has. names: of a student's phases."""
    tables = [table for name in wanted for table in registry.load(name).tables]
    for kind, asked, known in (
        ("table", settings.tables, {*(table.name for table in tables), PROFILE}),
        ("contender", settings.contenders, {name for t in tables for name in yours.beside(t.contenders, names)}),
    ):
        for name in asked:
            if name not in known:
                raise ConfigError(f"{' '.join(wanted)} has no {kind} {name!r}, only {', '.join(sorted(known))}")


def measure(
    target: str, settings: Settings, out: Path, watcher: Watcher, load: Callable[[], Workbench] | None = None
) -> Sequence[Path]:
    """Run `target` ("p01", "ladder", "all"); returns the results files, all written."""
    wanted = targets(target)
    found = {} if settings.impl is None else yours.solutions(settings.impl, [registry.load(name) for name in wanted])
    _check_names(wanted, settings, list(found))
    bench = (
        load() if load else Workbench.open(settings.model, settings.device, settings.dtype, quantize=settings.quantize)
    )
    bench.solutions = found
    suite = Suite(settings, bench, out, watcher)
    return [suite.measure(name) for name in wanted]
