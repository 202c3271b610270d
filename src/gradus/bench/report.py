"""Make everything readable from results.json: report.md, its figures, and the tables in the lessons and the README.

All of it follows from the JSON alone, so it can be checked: `outdated` lists what differs.
`record/pages.py` describes the marks by which a page says which result belongs where.

No torch here, and matplotlib only where a figure is really drawn.
"""

import os
import re
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from pathlib import Path

from gradus import phases
from gradus.bench import registry
from gradus.bench.contenders import yours
from gradus.bench.declare.declaration import Benchmark, Table
from gradus.bench.record import plots, results, scripts
from gradus.bench.record.metrics import METRICS, middle, ranged, shown, values
from gradus.bench.record.pages import BLOCK, INLINE
from gradus.bench.record.plots import Picture, Series
from gradus.bench.record.prose import account, facts, fill, lookup, predicted, speedup, times_floor
from gradus.bench.record.results import Cell, Entry, Results, Run, figure_name
from gradus.bench.record.study import Part, Study, gradus_bench
from gradus.bench.speedrun import table as speedrun
from gradus.bench.studies import beside, quality_report, sampling_report, scheduling, speculation_report
from gradus.errors import ConfigError

NAMES_OF_HARDWARE = {"cpu": "CPU", "h100": "NVIDIA H100", "h200": "NVIDIA H200"}
STUDIES = {module.NAME: module.STUDY for module in (sampling_report, quality_report, speculation_report)}


@dataclass(frozen=True, slots=True)
class Outdated:
    """A file that differs from the results, and its correct content. picture: of a figure, else None."""

    file: Path
    text: str
    picture: Picture | None = None


def outdated(root: Path) -> Iterator[Outdated]:
    """Every report and figure under `root` that does not match its results.json.

    Raises ConfigError if the prose on the results quotes a number that they lack.
    """
    for found in results.find(root):
        folder = root / found.hardware / found.benchmark
        text, pictures = _made(found, account(folder))
        if _read(folder / "report.md") != text:
            yield Outdated(folder / "report.md", text)
        for name, picture in pictures:
            if not plots.is_current(folder / name, picture):
                yield Outdated(folder / name, "", picture)


def _made(found: Results, prose: Ordered[str] = ()) -> tuple[str, Iterable[tuple[str, Picture]]]:
    """report.md and the figures. Studies supply their own."""
    if found.benchmark == scheduling.NAME:
        return render_parts(scheduling.report_parts(found)), ()
    if (study := STUDIES.get(found.benchmark)) is not None:
        parts = (_heading(found), *study.report(found), *_origin(found))
        return render_parts(parts), study.figures(found, hardware_title(found.hardware))
    benchmark = registry.load(found.benchmark)
    return render(found, benchmark, prose), figures(found, benchmark)


def figures_of(found: Results) -> Iterable[tuple[str, Picture]]:
    """(file name, picture) of every figure of the results."""
    return _made(found)[1]


def outdated_pages(root: Path, pages: list[Path]) -> Iterator[Outdated]:
    """Every page whose tables do not match the results under `root`."""
    for page in pages:
        text = _read(page)
        fresh = _refilled(text, root, page)
        if fresh != text:
            yield Outdated(page, fresh)


def _refilled(text: str, root: Path, page: Path) -> str:
    text = BLOCK.sub(lambda match: match[1] + block(match[2], root, page) + match[3], text)
    return INLINE.sub(lambda match: _measured(match[2], match[3], root, page) + match[1], text)


def _measured(where: str, field: str, root: Path, page: Path) -> str:
    """The value of a field in a page's prose. where: as in "h200/p10". Raises ConfigError if there is none."""
    hardware, _, benchmark = where.partition("/")
    found = next(results.find(root, hardware, benchmark), None)
    if found is None:
        raise ConfigError(f"{page}: there are no results of {where}, whose {field} is in its text")
    if found.benchmark == speculation_report.NAME:
        return speculation_report.lookup(field, found)
    return lookup(field, found, registry.load(found.benchmark))


def update(stale: Outdated) -> None:
    text = plots.draw(stale.picture) if stale.picture else stale.text
    stale.file.write_text(text, encoding="utf-8")


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


# -- report.md ---------------------------------------------------------------------------------------------------------


def render(found: Results, benchmark: Benchmark, prose: Ordered[str] = ()) -> str:
    """report.md: the question, the prediction, every table of each model, and the prose on them."""
    parts = [_heading(found), benchmark.question, "## Predicted", benchmark.prediction]
    if found.benchmark == beside.NAME:
        parts.append("## Measured")
        for section in beside.sections_of(found):
            parts += [*_beside(found, section), beside.how(section)]
    parts.append(HOW_TO_READ)
    for run in found.runs:
        parts.append(f"## {run.title}")
        if run.settings["quick"]:
            parts.append(QUICK)
        if "scheme" in run.settings:
            parts.append(QUANTIZED)
        for table in benchmark.tables:
            if run.of(table.name):
                title = table.titled(quick=run.settings["quick"])
                parts += [f"### {title}", table_of(run, table)]
                parts += yours.sentences(run, table)
                if has_figure(run, table):
                    parts.append(f"![{title}]({figure_name(found, run, table.name)})")
                if table.panels:
                    parts.append(_steps(found, run, benchmark, table))
        if run.profiles:
            parts += ["### One decode step", profile_table(run), *_beyond_the_step(run)]
    return "\n\n".join([*parts, *(fill(each, found, benchmark) for each in prose), *_origin(found)]) + "\n"


def _heading(found: Results) -> str:
    return f"# {registry.title_of(found.benchmark)}, measured on {hardware_title(found.hardware)}"


def _origin(found: Results) -> list[str]:
    """The ending of every report: the machine, the settings, the command."""
    return ["## On what, and how", *(_facts(run) for run in found.runs), _again(found)]


def render_parts(parts: Iterable[Part]) -> str:
    """Join paragraphs, and tables given as a header and rows."""
    return "\n\n".join(part if isinstance(part, str) else markdown(*part) for part in parts) + "\n"


def _beside(found: Results, section: str) -> list[str]:
    """Gradus and vLLM, all models in one table, and the workloads that either could not run."""
    return [markdown(*beside.summary(found, section)), *beside.skipped(found, section)]


HOW_TO_READ = (
    "Medians of the repeats, with the smallest and the largest in brackets where they differ. *Predicted* is the "
    "roofline's best for this schedule and this model, at the bandwidth and the arithmetic rate that were measured on "
    "this machine; *ratio* is how many times as long it really took. TTFT: time to the first token; ITL: time between "
    "two tokens."
)


QUICK = (
    "**A quick look, not to be quoted.** Requests are few and short, so a difference has the right sign, but "
    "hardly the right size."
)


QUANTIZED = (
    "**Quantized matrices.** The prediction counts their bytes, and arithmetic at the rate of the activations' type. "
    "Where a GPU multiplies narrower numbers faster, a long prompt may take less than is predicted."
)


def _facts(run: Run) -> str:
    return "\n".join([f"**{run.title}**", "", *(f"- {name}: {value}" for name, value in facts(run).items())])


def _again(found: Results) -> str:
    device = "cpu" if found.hardware == "cpu" else "cuda"
    if found.benchmark == beside.NAME:
        commands = [beside.command(run) for run in found.runs]
    elif (study := STUDIES.get(found.benchmark)) is not None:
        commands = [study.command(run, device) for run in found.runs]
    else:
        commands = [gradus_bench(found.benchmark, run, device) for run in found.runs]
    return "Measured again with:\n\n```console\n" + "\n".join(f"$ {c}" for c in dict.fromkeys(commands)) + "\n```"


def hardware_title(hardware: str) -> str:
    return NAMES_OF_HARDWARE.get(hardware, hardware)


# -- tables ------------------------------------------------------------------------------------------------------------


def table_of(run: Run, table: Table) -> str:
    """A row for each contender on each workload: the metric, its spread, floor and speed-up, then the other columns."""
    cells = run.of(table.name)
    metric = METRICS[table.metric]
    alone = len(cells) == 1
    header = [*([] if alone else [table.axis]), "", metric.heading]
    header += ["speed-up"] if table.against else []
    header += ["predicted", "ratio", *(METRICS[column].heading for column in table.columns)]
    rows = [
        [*([] if alone else [cell.row if entry is cell.entries[0] else ""]), *_row(entry, cell, run, table)]
        for cell in cells
        for entry in cell.entries
    ]
    notes = [
        f"{registry.title_of(entry.contender)}, {cell.row}: not measured, {entry.skipped}."
        for cell in cells
        for entry in cell.entries
        if entry.skipped
    ]
    what = f"{cells[0].workload['what']}." if alone else ""
    return "\n\n".join(part for part in (what[:1].upper() + what[1:], markdown(header, rows), *notes) if part)


def _steps(found: Results, run: Run, benchmark: Benchmark, table: Table) -> str:
    """A list with each rung's sentence."""
    (cell,) = run.of(table.name)
    entries = [entry for entry in cell.entries if entry.samples]
    said = [(registry.title_of(entry.contender), _step(entry, cell, found, run, benchmark)) for entry in entries]
    return "\n".join(f"- **{title}.** {step}" for title, step in said if step)


def _step(entry: Entry, cell: Cell, found: Results, run: Run, benchmark: Benchmark) -> str:
    """A contender's sentence. Its fields name the full workload, so a quick look replaces the label."""
    only = Results(found.hardware, found.benchmark, [run])
    whole = benchmark.table(cell.table).rows[0].label
    sentence = registry.step_of(entry.contender).replace(f"{{{cell.table}/{whole}/", f"{{{cell.table}/{cell.row}/")
    return fill(sentence, only, benchmark)


def _row(entry: Entry, cell: Cell, run: Run, table: Table) -> list[str]:
    row = [registry.title_of(entry.contender), ranged(entry.samples, table.metric)]
    if table.against:
        row.append(_or_blank(speedup(entry, cell, run, table), "×"))
    row += [_or_blank(predicted(entry, table)), _or_blank(times_floor(entry, table))]
    return row + [middle(entry.samples, column) for column in table.columns]


def narrow_table(run: Run, table: Table) -> str:
    """A table for a terminal: contender, metric, speed-up, and the rows that the model computed."""
    header = [table.axis, "", METRICS[table.metric].heading, *(["speed-up"] if table.against else []), "rows"]
    lines = [header]
    for cell in run.of(table.name):
        for entry in cell.entries:
            name, measured, *others = _row(entry, cell, run, table)
            gain = [others[0]] if table.against else []
            first = cell.row if entry is cell.entries[0] else ""
            lines.append([first, name, measured, *gain, middle(entry.samples, "rows")])
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i < 2 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def profile_table(run: Run) -> str:
    """The parts of a decode step."""
    on_gpu = run.device == "cuda"
    header = ["", "context", "step ms", "kernels run ms" if on_gpu else "operations ms"]
    header += ["kernels" if on_gpu else "operations", *(["GPU idle"] if on_gpu else []), "most of it"]
    rows = []
    for profile in run.profiles:
        name, share, _ = profile["top"][0] if profile["top"] else ("", 0.0, 0)
        rows.append([
            registry.title_of(profile["contender"]),
            str(profile["context"]),
            shown(profile["step_ms"]),
            shown(profile["device_ms"]),
            shown(profile["kernels"]),
            *([f"{profile['idle_percent']:.0f} %"] if on_gpu else []),
            f"`{name}` {share:.0f} %",
        ])  # fmt: skip
    return markdown(header, rows)


def _beyond_the_step(run: Run) -> Iterator[str]:
    """The reason why a step's parts add up to more than the step, if a table shows that."""
    if not any(profile["device_ms"] > profile["step_ms"] for profile in run.profiles):
        return
    if run.device == "cuda":
        yield "Kernels of a graph overlap, so their times can add up to more than the step; the GPU is then never idle."
    else:
        yield "The profiler slows what it measures, so operations can add up to more than the step, timed without it."


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, with numbers aligned right."""
    left = [all(not re.match(r"[\d–]", row[i]) for row in rows) for i in range(len(header))]
    lines = [header, ["---" if flush else "---:" for flush in left], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _or_blank(value: float | None, after: str = "") -> str:
    return "" if value is None else shown(value) + after


# -- figures -----------------------------------------------------------------------------------------------------------


def figures(found: Results, benchmark: Benchmark) -> Iterator[tuple[str, Picture]]:
    """(file name, picture) of each table of each run."""
    for run in found.runs:
        for table in benchmark.tables:
            if has_figure(run, table):
                yield figure_name(found, run, table.name), picture_of(found, run, table)


def has_figure(run: Run, table: Table) -> bool:
    """Whether a table gets a figure. A line between two points would add nothing to the table."""
    rows = len(run.of(table.name))
    return rows > 0 and (rows != 2 or table.scale == "names")


def picture_of(found: Results, run: Run, table: Table) -> Picture:
    cells = run.of(table.name)
    metric = METRICS[table.metric]
    if table.panels:
        return _panels(found, run, table)
    contenders = list(dict.fromkeys(entry.contender for cell in cells for entry in cell.entries))
    drawn = [(name, _series(name, cells, table)) for name in contenders]
    floors = any(floor is not None for _, series in drawn for floor in series.floor) and table.scale == "log"
    one = len(cells) == 1
    mark = ("upright line" if one else "dotted") + ": predicted"
    return Picture(
        kind="levels" if one else "lines",
        title=table.titled(quick=run.settings["quick"]),
        subtitle=f"{run.title}, {hardware_title(found.hardware)}" + (f" ({mark})" if floors else ""),
        x_label=metric.heading if one else table.axis,
        y_label="" if one else metric.heading,
        series=tuple(series for _, series in drawn if series.y),
        labels=() if one else tuple((_x(index, cell, table), cell.row) for index, cell in enumerate(cells)),
        scale=table.scale,
    )


def _panels(found: Results, run: Run, table: Table) -> Picture:
    """The table's one row as a panel per metric in `panels`, with contenders from the top down."""
    (cell,) = run.of(table.name)
    entries = [entry for entry in cell.entries if entry.samples]
    series = []
    for name in table.panels:
        metric = METRICS[name]
        best = "more" if metric.more_is_better else "less"
        repeats = enumerate(values(entry.samples, name) for entry in entries)
        series.append(Series.of(f"{metric.heading} ({best} is better)", repeats))
    return Picture(
        kind="panels",
        title=table.title,
        subtitle=f"{run.title}, {hardware_title(found.hardware)}",
        x_label="",
        y_label="",
        series=tuple(series),
        labels=tuple((x, registry.title_of(entry.contender)) for x, entry in enumerate(entries)),
        scale="log",
    )


def _x(index: int, cell: Cell, table: Table) -> float:
    return index if table.scale == "names" else cell.x


def _series(contender: str, cells: list[Cell], table: Table) -> Series:
    there = [(_x(index, cell, table), entry) for index, cell in enumerate(cells) if (entry := cell.entry(contender))]
    measured = [(x, entry, found) for x, entry in there if (found := values(entry.samples, table.metric))]
    series = Series.of(registry.title_of(contender), [(x, found) for x, _, found in measured])
    return replace(series, floor=[predicted(entry, table) for _, entry, _ in measured])


# -- blocks in pages ---------------------------------------------------------------------------------------------------


def block(wanted: str, root: Path, page: Path) -> str:
    """Render a block: each machine's tables for its first model, and a link to the full report."""
    chart = wanted.endswith("/chart")
    name, _, only = wanted.removesuffix("/chart").partition("/")
    if wanted in scripts.SCRIPTS:
        written = scripts.parts(wanted, root.parent / "benchmarks", page)
        return f"\n{render_parts(written)}\n" if written else NOT_YET.format(command=scripts.command(wanted))
    if name == speedrun.NAME:
        return f"\n{render_parts(speedrun.parts(root, only))}\n"
    if chart and (study := STUDIES.get(name)) is not None:
        return _chart_of_study(study, only, root, page)
    if name not in registry.reported():
        if name in {phase.name for phase in phases.available()}:
            return NOT_YET.format(command=f"gradus bench {name}")
        raise ConfigError(
            f"{page}: results:begin {wanted}: no such benchmark; there are {', '.join(registry.reported())}"
        )
    measured = list(results.find(root, benchmark=name))
    benchmark = registry.load(name)
    sections = beside.SECTIONS if name == beside.NAME else ()
    if only and only not in {*sections, *(table.name for table in benchmark.tables)}:
        raise ConfigError(f"{page}: results:begin {wanted}: {name} has no table {only!r}")
    if chart:
        parts = [part for found in measured for part in _chart(found, benchmark.table(only), root, page)]
    else:
        parts = [part for found in measured for part in _of_hardware(found, benchmark, only, root, page)]
    if not parts:
        return NOT_YET.format(command=_beside_command(only) if sections else f"gradus bench {name}")
    return "\n" + "\n\n".join(parts) + "\n\n"


NOT_YET = "\nNot measured yet: `{command}` does it on your machine.\n\n"


def _beside_command(section: str) -> str:
    """The command for the section's first group."""
    group = next(name for name, group in beside.GROUPS.items() if group.section == section)
    return "python benchmarks/beside_vllm.py" + (f" --cases {group}" if group else "")


def _chart_of_study(study: Study, only: str, root: Path, page: Path) -> str:
    """A chart of a study, for each hardware. only: the chart's name; "" is the first one.

    Raises ConfigError if a study has results and no such chart.
    """
    parts: list[str] = []
    for found in results.find(root, benchmark=study.name):
        charts = {name: picture.title for name, picture in study.pictures(found.runs[0])}
        name = only or next(iter(charts))
        if name not in charts:
            raise ConfigError(f"{page}: {study.name} has no chart {only!r}, only {', '.join(charts)}")
        file = figure_name(found, found.runs[0], name)
        parts += _drawn(found, charts[name], file, _folder(found, root, page))
    return f"\n{render_parts(parts)}\n" if parts else NOT_YET.format(command=f"gradus bench {study.name}")


def _folder(found: Results, root: Path, page: Path) -> str:
    """The results' folder, relative to a page."""
    return Path(os.path.relpath(root / found.hardware / found.benchmark, page.parent)).as_posix()


def _whence(found: Results, runs: Ordered[Run], where: str) -> str:
    """The hardware and the model of the first run, which a page shows, and links to the rest."""
    run = runs[0]
    others = f" (and {len(runs) - 1} more in [the report]({where}/report.md))" if len(runs) > 1 else ""
    rates = run.fingerprint["rates"]
    return (
        f"**{hardware_title(found.hardware)}**, {run.title}{others}. Reads {shown(rates['read_gb_s'])} GB/s. "
        f"[Report]({where}/report.md), [samples]({where}/results.json)."
    )


def _of_hardware(found: Results, benchmark: Benchmark, only: str, root: Path, page: Path) -> Iterator[str]:
    where = _folder(found, root, page)
    compares = found.benchmark == beside.NAME
    section = only if compares and only in beside.SECTIONS else ""
    runs = list(beside.runs_of(found, section)) if compares else found.runs
    if not runs:
        return
    run = runs[0]
    yield _whence(found, runs, where)
    if compares and only in beside.SECTIONS:
        yield from _beside(found, section)
        return
    for table in benchmark.tables:
        if run.of(table.name) and only in ("", table.name):
            if len(benchmark.tables) > 1 and not only:
                yield f"*{table.title}*"
            yield table_of(run, table)
            if has_figure(run, table):
                yield f"![{table.title}]({where}/{figure_name(found, run, table.name)})"
    if run.profiles and not only:
        yield "*One decode step*"
        yield profile_table(run)
        yield from _beyond_the_step(run)


def _chart(found: Results, table: Table, root: Path, page: Path) -> Iterator[str]:
    """The first model's chart of a table, and a link to the report. Raises ConfigError if it has no chart."""
    where, run = _folder(found, root, page), found.runs[0]
    if not has_figure(run, table):
        raise ConfigError(
            f"{page}: {found.hardware}/{found.benchmark} has no chart of {table.name!r}: name another table"
        )
    yield from _drawn(found, table.title, figure_name(found, run, table.name), where)


def _drawn(found: Results, title: str, file: str, where: str) -> Iterator[str]:
    yield f"![{title}]({where}/{file})"
    title = f"{hardware_title(found.hardware)}, {found.runs[0].title}"
    yield f"{title}: [all tables and how it was measured]({where}/report.md)."
