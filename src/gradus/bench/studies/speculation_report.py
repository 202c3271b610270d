"""The report on benchmarks/speculation.py's samples: the gain from each drafter.

Every round runs each drafter's engine and the one without drafts, so a cell has one ratio per round. No torch here.
"""

from collections.abc import Iterator
from typing import Any

from gradus.bench.record.metrics import bracketed, middle, percent, shown
from gradus.bench.record.plots import Picture, Series
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.bench.record.study import Part, Rows, Study, figure
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
FIGURE, STEPS = "open", "open-steps"  # the table that the figures of all drafters show, and what their second counts
NGRAM, NGRAM_TEXTS = "ngram", ("copy", "open")  # the drafter that has a figure of its own, and its texts
DRAFTERS = (NGRAM, "medusa", "eagle", DRAFT_MODEL)
TIMES = "rate, times that without drafts"
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


def tables_of(found: Results, run: Run) -> Iterator[Part]:
    """The tables for each kind of text, and the figure."""
    for name, title in TABLES.items():
        cells = run.of(name)
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
        yield from (figure(found, run, name, picture.title) for name, picture in pictures_of(run))


def rates_table(cells: list[Cell]) -> Rows:
    """A row per drafter and batch: the rate, and the slowest gaps."""
    header = ["batch", "drafts by", "tok/s", "times none", "TTFT p99 ms", "ITL p99 ms", "same"]
    return header, [
        [
            cell.row, entry.contender, middle(entry.samples, "output_tok_s") or "–", _times(cell, entry),
            middle(entry.samples, "ttft_ms_p99"), middle(entry.samples, "itl_ms_p99"), _same(entry),
        ]
        for cell in cells
        for entry in ours(cell)
    ]  # fmt: skip


def drafts_table(cells: list[Cell]) -> Rows:
    """A row per drafter and batch: tokens per step, and acceptance by position."""
    places = [(cell, entry) for cell in cells for entry in drafters(cell)]
    rows = [[cell.row, entry.contender, _tokens_per_step(entry), _positions(entry)] for cell, entry in places]
    return ["batch", "drafts by", "tokens per step", "stands, by position"], rows


def _every_step_rows(run: Run) -> Iterator[list[str]]:
    """Per text and drafter: actual and expected acceptance by position, and the difference."""
    for cell in run.cells:
        for entry in drafters(cell):
            if told := (entry.prediction or {}).get("every step"):
                pairs = [*zip(_shares(told), _shares(told["predicted"]), strict=False)]
                positions = ", ".join(f"{percent(found)} ({percent(expected)})" for found, expected in pairs)
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


def _tokens_per_step(entry: Entry) -> str:
    mean = tokens_per_step(entry)
    return "–" if mean is None else shown(mean)


def _positions(entry: Entry) -> str:
    expected = (entry.prediction or {}).get("stands", [])
    parts = [
        f"{percent(value)} ({percent(expected[place])})" if place < len(expected) else percent(value)
        for place, value in enumerate(stood(entry))
    ]
    return ", ".join(parts) or "nothing drafted"


def _times(cell: Cell, entry: Entry) -> str:
    if entry.contender == NONE:
        return ""
    found = ratios(cell, entry.contender)
    return bracketed(found, "{:.2f}".format, "×") if found else "–"


def _same(entry: Entry) -> str:
    return percent(min(sample.get("same", 1.0) for sample in entry.samples)) if entry.samples else ""


def pictures_of(run: Run) -> Iterator[tuple[str, Picture]]:
    """Draw, by batch, the speed of n-grams on two kinds of text, then speed and acceptance of every drafter on one."""
    cells = by_batch(run, FIGURE)
    if len(cells) < FEWEST:
        return
    names = sorted(names_of(cells), key=_place)
    looked_up = [_speed(text, NGRAM, by_batch(run, text), cells) for text in NGRAM_TEXTS]
    yield NGRAM, _picture("What n-gram drafts bring, by sequences at once", TIMES, looked_up, cells)
    title = f"{TABLES[FIGURE]}: what drafts bring, by sequences at once"
    yield FIGURE, _picture(title, TIMES, [_speed(name, name, cells, cells) for name in names], cells)
    title = f"{TABLES[FIGURE]}: tokens of a sequence per step, by sequences at once"
    yield STEPS, _picture(title, "tokens per step", [_acceptance(name, cells) for name in names], cells)


def by_batch(run: Run, table: str) -> list[Cell]:
    return sorted(run.of(table), key=lambda cell: cell.batch)


def _place(name: str) -> tuple[int, str]:
    """A drafter's place among the lines, and so its color: the same on all hardware."""
    return (DRAFTERS.index(name) if name in DRAFTERS else len(DRAFTERS)), name


def _picture(title: str, y_label: str, series: list[Series], cells: list[Cell]) -> Picture:
    return Picture(
        kind="lines",
        title=title,
        subtitle="",
        x_label="sequences at once",
        y_label=y_label,
        series=tuple(one for one in series if one.x),
        labels=tuple((place, cell.row) for place, cell in enumerate(cells)),
    )


def _speed(title: str, name: str, cells: list[Cell], marked: list[Cell]) -> Series:
    """The rate of a drafter in cells. marked: the cells whose batches the axis has."""
    batches = [cell.batch for cell in marked]
    points = ((batches.index(cell.batch), ratios(cell, name)) for cell in cells if cell.batch in batches)
    return Series.of(TABLES.get(title, title), points)


def _acceptance(name: str, cells: list[Cell]) -> Series:
    means = [(mean,) if (entry := cell.entry(name)) and (mean := tokens_per_step(entry)) is not None else ()
             for cell in cells]  # fmt: skip
    return Series.of(name, enumerate(means))


# -- report.md ---------------------------------------------------------------------------------------------------------


def _about(run: Run) -> Iterator[str]:
    yield from map(_trained, run.profiles)


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
    right = ", ".join(percent(share) for share in told["right"])
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


STUDY = Study(
    NAME, QUESTION, PREDICTION, HOW_TO_READ, "Requests are few, and cut to a few tokens.",
    tables=tables_of, pictures=pictures_of, losses=_losses, about=_about, command=command,
)  # fmt: skip
