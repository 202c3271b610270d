"""The report on benchmarks/speculation.py's samples: the gain from each drafter.

Every round runs each drafter's engine and the one without drafts, so a cell has one ratio per round. No torch here.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gradus.bench.record.metrics import shown, spread
from gradus.bench.record.outline import Rows, opening
from gradus.bench.record.plots import Picture, Series
from gradus.bench.record.results import Cell, Entry, Results, Run, figure_name
from gradus.bench.statistics import median
from gradus.errors import ConfigError

NAME = "speculation"
NONE = "none"
DRAFT_MODEL = "draft model"
VLLM, VLLM_NGRAM = "vllm", "vllm ngram"
TABLES = {
    "copy": "Texts to be copied",
    "chat": "Chat requests",
    "code": "Functions to be completed",
    "open": "Open questions",
}
FIGURE = "open"  # the table that the figure shows
FEWEST = 3  # batch sizes that justify a figure; for two, the table is enough
SLOWER = 0.99  # of the rate without drafts; below it, drafts count as a loss

QUESTION = (
    "What does each drafter bring, on which texts, and at how many sequences at once; and what does it cost where it "
    "brings nothing?",
    "Requests go through `LLM` step by step, greedily, with end-of-sequence ignored. Engines with and without drafts "
    "serve the same prompts in one process and take turns. The number of drafts is the engine's own choice, step by "
    "step, where nothing else is said.",
)
PREDICTION = (
    "A step that verifies drafts takes about as long as one without, as long as its rows are few: weights are read "
    "once. So at batch 1 the gain should be near the tokens per step, less what drafting takes. An n-gram look-up "
    "takes next to nothing, and is right where the answer repeats the prompt. Heads take a pass of their own: for "
    "medusa one for all drafts, for eagle one per draft, each with its reading of the output head.",
    "On open questions n-grams should bring nothing, and cost only the trials. With many sequences a step's rows are "
    "no longer free, and every drafter should end up drafting little: no faster, and no slower.",
)
HOW_TO_READ = (
    "*Times none* is the rate over that of the engine without drafts, of the same round: the median of the rounds, "
    "with the smallest and the largest in brackets. *ITL* is a gap between two times at which tokens of a request "
    "came, however many came together. *Tokens per step* counts what each sequence got from a step. "
    "*Same* is the share of answers whose tokens are all those without drafts: in bfloat16 a step of more rows sums "
    "in another order, and close calls may fall otherwise. *Stands* is, by position, how many of the drafts verified "
    "stood; in brackets, how many would if every place of the same texts had been drafted (engines draft where it "
    "pays). *Drafts in every step* are of engines that verify as many each time: what stood and, in brackets, what "
    "should have, worked out from the texts that came out. Each step begins where the one before ended, so it seldom "
    "begins in a passage that is easy to guess, and less stands than from place to place."
)


def draft_model(scheme: str | None) -> str:
    """The name of an engine with a draft model, by its `draft_quantize`."""
    return DRAFT_MODEL if scheme is None else f"{DRAFT_MODEL}, {scheme}"


# -- numbers -----------------------------------------------------------------------------------------------------------


def ratios(cell: Cell, name: str) -> list[float]:
    """Per round, the rate as a multiple of the rate without drafts."""
    mine, plain = cell.entry(name), cell.entry(NONE)
    if mine is None or plain is None:
        return []
    pairs = zip(mine.samples, plain.samples, strict=True)
    return [_rate(sample) / _rate(other) for sample, other in pairs]


def _rate(sample: dict[str, Any]) -> float:
    return float(sample["output_tokens"] / sample["seconds"])


def lookup(where: str, found: Results) -> str:
    """A number for a sentence: "copy/1/ngram/speedup", the median of `ratios`. Raises ConfigError if there is none."""
    table, row, contender, metric = where.split("/") if where.count("/") == 3 else ("", "", "", "")
    cell = found.runs[0].cell(table, row)
    values = ratios(cell, contender) if cell is not None and metric == "speedup" else []
    if not values:
        raise ConfigError(f"reports of {found.hardware}/{NAME}: the results have no {{{where}}}")
    return f"{median(values):.2f}"


def tokens_per_step(entry: Entry) -> float | None:
    told = [sample["speculation"] for sample in entry.samples if "speculation" in sample]
    steps = sum(each["steps"] for each in told)
    return sum(each["tokens"] for each in told) / steps if steps else None


def stood(entry: Entry) -> list[float]:
    """The share of drafts accepted at each position that had any."""
    told = [sample["speculation"] for sample in entry.samples if "speculation" in sample]
    if not told:
        return []
    return _shares({name: [sum(each) for each in zip(*(one[name] for one in told), strict=True)] for name in _COUNTS})


_COUNTS = ("drafted", "accepted")


def _shares(counts: dict[str, list[int]]) -> list[float]:
    drafted, accepted = (counts[name] for name in _COUNTS)
    return [right / count for count, right in zip(drafted, accepted, strict=True) if count]


def ours(cell: Cell) -> list[Entry]:
    """Our engines, with drafts and without."""
    return [entry for entry in cell.entries if entry.contender not in (VLLM, VLLM_NGRAM)]


def drafters(cell: Cell) -> list[Entry]:
    return [entry for entry in ours(cell) if entry.contender != NONE]


def names_of(cells: list[Cell]) -> list[str]:
    return list(dict.fromkeys(entry.contender for cell in cells for entry in drafters(cell)))


# -- tables and figures ------------------------------------------------------------------------------------------------


def tables_of(found: Results, run: Run, where: str) -> Iterator[str | Rows]:
    """The tables for each kind of text, and the figure. where: the figures' folder, relative to the page."""
    for table, title in TABLES.items():
        cells = run.of(table)
        if cells:
            yield f"*{title}*: " + "; ".join(cell.workload["what"] for cell in cells)
            yield rates_table(cells)
            yield drafts_table(cells)
    if rows := [*_every_step_rows(run)]:
        yield "*Drafts in every step*: what stood, and what should have"
        yield ["text", "drafts by", "stands, by position", "apart at most"], rows
    beside = [cell for cell in run.cells if cell.entry(VLLM)]
    if beside:
        version = run.fingerprint["versions"].get("vllm", "")
        earlier = run.settings.get("vllm at")
        when = "within the same hour" if earlier is None else f"in the run of commit {earlier[:7]}, on a like GPU"
        yield f"*Beside vLLM {version}*: the same prompts {when}, in processes of its own"
        yield vllm_table(beside)
    if len(run.of(FIGURE)) >= FEWEST:
        yield f"![{TABLES[FIGURE]}]({(Path(where) / figure_name(found, run, FIGURE)).as_posix()})"


def rates_table(cells: list[Cell]) -> Rows:
    """A row per drafter and batch: the rate, and the slowest gaps."""
    header = ["batch", "drafts by", "tok/s", "times none", "TTFT p99 ms", "ITL p99 ms", "same"]
    rows = []
    for cell in cells:
        for entry in ours(cell):
            rate = spread(entry.samples, "output_tok_s")
            waits = [spread(entry.samples, metric) for metric in ("ttft_ms_p99", "itl_ms_p99")]
            rows.append([
                cell.row, entry.contender, shown(rate.median) if rate else "–",
                "" if entry.contender == NONE else _times(ratios(cell, entry.contender)),
                *("" if wait is None else shown(wait.median) for wait in waits),
                _percent(min(sample.get("same", 1.0) for sample in entry.samples)) if entry.samples else "",
            ])  # fmt: skip
    return header, rows


def drafts_table(cells: list[Cell]) -> Rows:
    """A row per drafter and batch: tokens per step, and acceptance by position."""
    header = ["batch", "drafts by", "tokens per step", "stands, by position"]
    rows = []
    for cell in cells:
        for entry in drafters(cell):
            mean = tokens_per_step(entry)
            rows.append([cell.row, entry.contender, "–" if mean is None else shown(mean), _positions(entry)])
    return header, rows


def _every_step_rows(run: Run) -> Iterator[list[str]]:
    """Per text and drafter: actual and expected acceptance by position, and the difference."""
    for cell in run.cells:
        for entry in drafters(cell):
            if told := (entry.prediction or {}).get("every step"):
                pairs = [*zip(_shares(told), _shares(told["predicted"]), strict=False)]
                positions = ", ".join(f"{_percent(found)} ({_percent(expected)})" for found, expected in pairs)
                apart = max((abs(found - expected) for found, expected in pairs), default=0.0)
                yield [TABLES[cell.table], entry.contender, positions, f"{apart:.3f}"]


def vllm_table(cells: list[Cell]) -> Rows:
    """A row per text and batch: our fastest engine, and vLLM with n-grams and without."""
    header = ["text", "batch", "fastest of ours", "tok/s", "vLLM tok/s", "vLLM n-gram tok/s", "times the better"]
    rows = []
    for cell in cells:
        mine = max(ours(cell), key=lambda entry: _usual_rate(entry) or 0.0)
        theirs = [_usual_rate(cell.entry(name)) for name in (VLLM, VLLM_NGRAM)]
        best, rate = max((each for each in theirs if each), default=None), _usual_rate(mine)
        rows.append([
            TABLES[cell.table], cell.row, mine.contender, shown(rate) if rate else "–",
            *("not run" if each is None else shown(each) for each in theirs),
            f"{rate / best:.2f}×" if rate and best else "–",
        ])  # fmt: skip
    return header, rows


def _usual_rate(entry: Entry | None) -> float | None:
    """The median over the rounds; None without an entry."""
    return median([_rate(sample) for sample in entry.samples]) if entry and entry.samples else None


def _positions(entry: Entry) -> str:
    expected = (entry.prediction or {}).get("stands", [])
    found = stood(entry)
    parts = [
        f"{_percent(value)} ({_percent(expected[place])})" if place < len(expected) else _percent(value)
        for place, value in enumerate(found)
    ]
    return ", ".join(parts) or "nothing drafted"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _times(values: list[float]) -> str:
    if not values:
        return "–"
    middle, low, high = (f"{value:.2f}" for value in (median(values), min(values), max(values)))
    return f"{middle}×" if low == high else f"{middle}× ({low}–{high})"


def figures(found: Results, hardware: str) -> Iterator[tuple[str, Picture]]:
    """(file name, picture) of each run: acceptance and speed of every drafter by batch. hardware: as people call it."""
    for run in found.runs:
        cells = sorted(run.of(FIGURE), key=lambda cell: cell.batch)
        if len(cells) >= FEWEST:
            yield figure_name(found, run, FIGURE), picture_of(run, cells, hardware)


def picture_of(run: Run, cells: list[Cell], hardware: str) -> Picture:
    series = []
    for name in names_of(cells):
        series += [_speed(name, cells), _acceptance(name, cells)]
    return Picture(
        kind="lines",
        title=f"{TABLES[FIGURE]}: what drafts bring, by sequences at once",
        subtitle=f"{run.title}, {hardware}",
        x_label="sequences at once",
        y_label="times none; tokens per step",
        series=tuple(one for one in series if one.x),
        labels=tuple((place, cell.row) for place, cell in enumerate(cells)),
    )


def _speed(name: str, cells: list[Cell]) -> Series:
    there = [(place, found) for place, cell in enumerate(cells) if (found := ratios(cell, name))]
    values = [[kind(found) for _, found in there] for kind in (median, min, max)]
    return Series(f"{name}: speed", [place for place, _ in there], *values)


def _acceptance(name: str, cells: list[Cell]) -> Series:
    entries = [(place, cell.entry(name)) for place, cell in enumerate(cells)]
    means = [(place, mean) for place, entry in entries if entry and (mean := tokens_per_step(entry)) is not None]
    values = [mean for _, mean in means]
    return Series(f"{name}: tokens per step", [place for place, _ in means], values, values, values)


# -- report.md ---------------------------------------------------------------------------------------------------------


def report_parts(found: Results) -> Iterator[str | Rows]:
    """The paragraphs and tables of report.md, without the heading and the common ending."""
    quick = "Requests are few, and cut to a few tokens."
    yield from opening(found, QUESTION, PREDICTION, HOW_TO_READ, quick, partial(_about, found))
    yield "## Where it loses"
    yield from (f"**{run.title}.** {_losses(run)}" for run in found.runs)


def _about(found: Results, run: Run) -> Iterator[str | Rows]:
    yield from (_trained(told) for told in run.profiles)
    yield from tables_of(found, run, ".")


def command(run: Run, device: str) -> str:
    """The command that repeats the run. The reader fills in the draft, and the folders of the heads and of vLLM."""
    contenders = {entry.contender for cell in run.cells for entry in cell.entries}
    parts = ["python benchmarks/speculation.py", f"--device {device} --model {run.model}"]
    parts += [] if " " in run.dtype else [f"--dtype {run.dtype}"]  # "auto" may choose mixed widths on a CPU
    texts = [table for table in TABLES if run.of(table)]
    parts += [f"--texts {table}" for table in texts] if len(texts) < len(TABLES) else []
    parts += ["--heads DIR" for _ in run.profiles]
    parts += ["--draft MODEL"] if DRAFT_MODEL in contenders else []
    quantized = sorted(name for name in contenders if name.startswith(draft_model("")))
    parts += [f"--draft-quantize {name.removeprefix(draft_model(''))}" for name in quantized]
    parts += ["--vllm DIR"] if VLLM in contenders else []
    return " ".join(parts)


def _trained(told: dict[str, Any]) -> str:
    """The heads' training data and accuracy."""
    if "right" not in told:
        return f"*{told['heads']}*: nothing is known of their training."
    right = ", ".join(_percent(share) for share in told["right"])
    return (
        f"*{told['heads']}*: {told['steps']} steps on {told['answer_tokens']:,} tokens that the model wrote (seed "
        f"{told['seed']}); right on texts held out, by position: {right}; {told['tokens_per_step']:.2f} tokens per "
        "step if all are verified."
    )


def _losses(run: Run) -> str:
    found = [
        (median(ratios(cell, entry.contender)), cell, entry.contender) for cell in run.cells for entry in drafters(cell)
    ]
    slower = sorted((one for one in found if one[0] < SLOWER), key=lambda one: one[0])
    if not slower:
        return f"No drafter is below {SLOWER:g} times the rate without drafts anywhere."
    said = "; ".join(f"*{name}* {times:.2f}× ({cell.table}, batch {cell.row})" for times, cell, name in slower)
    return f"Slower than without drafts: {said}."
