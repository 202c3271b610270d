"""The report on sampling_cost.py's samples: the cost of sampling parameters.

In each round, a parameter's sample lies between two of the plain draw, and its cost is the ratio to their mean. So a
cell has two samples of the plain draw per round, and one of everything else. No torch here.
"""

from collections.abc import Iterator

from gradus.bench.record.metrics import bracketed, middle, shown
from gradus.bench.record.plots import Picture, Series
from gradus.bench.record.results import Cell, Results, Run
from gradus.bench.record.study import Part, Rows, Study, figure, gradus_bench
from gradus.bench.statistics import median

NAME = "sampling"
PLAIN, EVERYTHING = "plain", "everything at once"
TABLES = {
    "temperature-1": "Temperature 1: the distribution as the model gives it",
    "temperature-0.1": "Temperature 0.1: the same, ten times as peaked",
}
GOAL = 1.03
"""The most that all parameters together may cost a single sequence on a GPU, as a multiple of the plain draw."""
DEAR = 1.05  # parameters above it are listed among the losses

QUESTION = (
    "What does each sampling parameter cost, beside a draw that asks for a temperature and a seed alone?",
    "Requests come all at once, with a seed each, through `LLM.generate`: token ids in, completions out, with objects "
    "for the log-probabilities in them. End-of-sequence is ignored and the prefix cache is off. One engine serves all.",
)
PREDICTION = (
    "A step in which a row asks for more than a temperature is replayed from a graph of its own, with five launches "
    "for the draw instead of two. A row that narrows its choice or reports log-probabilities reads its logits once "
    "more, and one program per row looks for the threshold among the few groups of tokens that can hold it. So top-k, "
    "min-p and log-probabilities should take the GPU little longer than that reading. Penalties and biases need no "
    "search: their rows read a word per token of the vocabulary beside the logits.",
    "Top-p turns on the shape of the distribution. Random weights give flat ones, of which 95 % is most of the "
    "vocabulary: no group can be left out, and the row is searched whole, again and again. That is the worst case. "
    "Trained models are peaked. At temperature 0.1 random ones are as well: a few dozen tokens hold 95 % of the mass, "
    "and the work is the same but for the shape. What cuts by probability or rank is therefore measured at both.",
    "Alone, a row is a few hundred kilobytes and a step is launches: there everything at once should cost a few "
    "percent. With 256 rows log-probabilities should cost the host more than the GPU: a cut of bytes for each token, "
    "and objects of them while the next step runs.",
)
HOW_TO_READ = (
    "A round runs the plain draw, every parameter, and the plain draw again; the next round goes the other way. *Times "
    "plain* is a run's time over the mean of the two plain ones of its round: the median of the rounds, with "
    "the smallest and the largest in brackets. For the plain draw itself these show how far its two runs are apart. "
    "*More µs* is the difference, spread over the tokens of a request: what a step takes longer. Prompts are in the "
    "time of both."
)


# -- numbers -----------------------------------------------------------------------------------------------------------


def ratios(cell: Cell, name: str) -> list[float]:
    """Per round, the time of `name` as a multiple of the plain draw's. The plain draw itself has two per round."""
    return [seconds / plain for seconds, plain in _pairs(cell, name)]


def more_us(cell: Cell, name: str) -> list[float]:
    """Per round, the extra microseconds per token of a request that `name` takes."""
    steps = cell.workload["output_tokens"] / cell.workload["requests"]
    return [1e6 * (seconds - plain) / steps for seconds, plain in _pairs(cell, name)]


def _pairs(cell: Cell, name: str) -> list[tuple[float, float]]:
    """(seconds, mean seconds of the plain draw before and after) of each round."""
    around = _seconds(cell, PLAIN)
    plain = [(before + after) / 2 for before, after in zip(around[::2], around[1::2], strict=True)]
    if name == PLAIN:
        plain = [mean for mean in plain for _ in range(2)]
    return list(zip(_seconds(cell, name), plain, strict=True))


def _seconds(cell: Cell, name: str) -> list[float]:
    entry = cell.entry(name)
    return [sample["seconds"] for sample in entry.samples] if entry else []


# -- tables and figures ------------------------------------------------------------------------------------------------


def tables_of(found: Results, run: Run) -> Iterator[Part]:
    """The settings, then each temperature's table and figure."""
    yield "\n".join(f"- batch {cell.row}: {cell.workload['what']}" for cell in _first(run))
    for name, title in TABLES.items():
        if run.of(name):
            yield f"*{title}*"
            yield table_of(run.of(name))
            yield figure(found, run, name, title)


def table_of(cells: list[Cell]) -> Rows:
    """A row per parameter, and for each batch its cost and its rate."""
    header = [""]
    for cell in cells:
        header += [f"batch {cell.row}: times plain", "more µs", "tok/s"]
    names = [entry.contender for entry in cells[0].entries]
    return header, [[name, *(text for cell in cells for text in _columns(cell, name))] for name in names]


def _columns(cell: Cell, name: str) -> list[str]:
    entry = cell.entry(name)
    if entry is None or not entry.samples:
        return ["–", "", ""]
    more = "" if name == PLAIN else shown(median(more_us(cell, name)))
    return [_times(cell, name), more, middle(entry.samples, "output_tok_s")]


def _times(cell: Cell, name: str) -> str:
    return bracketed(ratios(cell, name), shown, "×") if cell.entry(name) else "–"


def pictures_of(run: Run) -> Iterator[tuple[str, Picture]]:
    """A row per parameter, and in it a point per batch: how much longer it takes than the plain draw, in percent."""
    for name, title in TABLES.items():
        if cells := run.of(name):
            parameters = [entry.contender for entry in cells[0].entries if entry.contender != PLAIN]
            yield (
                name,
                Picture(
                    kind="dots",
                    title=title,
                    subtitle="",
                    x_label="% more time than the plain draw",
                    y_label="",
                    series=tuple(_series(cell, parameters) for cell in cells),
                    labels=tuple(enumerate(parameters)),
                ),
            )


def _series(cell: Cell, names: list[str]) -> Series:
    more = ([100 * (ratio - 1) for ratio in ratios(cell, name)] for name in names)
    return Series.of(f"batch {cell.row}", enumerate(more))


# -- report.md ---------------------------------------------------------------------------------------------------------


def _one_reading(run: Run) -> Iterator[str]:
    """The floor for parameters that read the logits once more."""
    bandwidth = run.fingerprint["rates"]["read_gb_s"]
    takes = [f"{shown(cell.workload['logits_bytes'] / bandwidth / 1e3)} µs at batch {cell.row}" for cell in _first(run)]
    yield f"At the bandwidth that was measured here, reading the logits of a step once takes {_listed(takes)}."


def _first(run: Run) -> list[Cell]:
    return run.of(next(iter(TABLES)))


def _findings(found: Results) -> Iterator[str]:
    shapes = [f"**{run.title}.** {said}" for run in found.runs if (said := _of_shape(run))]
    if shapes:
        yield "## What the shape of the distribution changes"
        yield from shapes


def _of_shape(run: Run) -> str:
    """The parameter that the distribution's shape affects most, in the largest batch; "" for a single shape."""
    as_given, peaked = (max(run.of(table), key=lambda cell: cell.batch, default=None) for table in TABLES)
    if as_given is None or peaked is None or as_given.row != peaked.row:
        return ""
    names = [entry.contender for entry in peaked.entries if entry.contender != PLAIN]
    took = {name: (median(more_us(as_given, name)), median(more_us(peaked, name))) for name in names}
    name = max(names, key=lambda name: abs(took[name][0] - took[name][1]))
    return (
        f"It matters most to *{name}*: at batch {peaked.row}, {shown(took[name][0])} µs per step more than the plain "
        f"draw at temperature 1, and {shown(took[name][1])} µs at temperature 0.1."
    )


def _losses(run: Run) -> str:
    """Every parameter above DEAR, at its highest cost; on a GPU also whether the goal is reached."""
    worst: dict[str, tuple[float, str]] = {}
    for table in TABLES:
        for cell in run.of(table):
            for entry in cell.entries:
                here = median(ratios(cell, entry.contender)), f"batch {cell.row}, {table.replace('-', ' ')}"
                worst[entry.contender] = max(worst.get(entry.contender, here), here)
    dear = sorted(((*found, name) for name, found in worst.items() if found[0] > DEAR and name != PLAIN), reverse=True)
    limit = f"{100 * (DEAR - 1):.0f} %"
    said = "; ".join(f"*{name}* {shown(times)}× ({place})" for times, place, name in dear)
    losses = f"More than {limit} over the plain draw, each at its dearest: {said}."
    text = losses if dear else f"Nothing costs more than {limit} over the plain draw."
    return f"{text} {_goal(run)}" if run.device == "cuda" else text


def _goal(run: Run) -> str:
    """The cost of all parameters together in a batch of one, against the goal."""
    alone = [cell for table in TABLES for cell in run.of(table) if cell.batch == 1]
    times = [median(ratios(cell, EVERYTHING)) for cell in alone]
    if not times:
        return ""
    verdict = "reached" if max(times) <= GOAL else "missed"
    found = [f"{shown(value)}× at {cell.table.replace('-', ' ')}" for value, cell in zip(times, alone, strict=True)]
    return f"Alone, *{EVERYTHING}* takes {_listed(found)}; at most {shown(GOAL)}× was asked: {verdict}."


def _listed(texts: list[str]) -> str:
    """ "a, b and c" """
    return " and ".join(part for part in (", ".join(texts[:-1]), *texts[-1:]) if part)


STUDY = Study(
    NAME, QUESTION, PREDICTION, HOW_TO_READ, "Requests are few, and cut to a few tokens.",
    tables=tables_of, pictures=pictures_of, losses=_losses, about=_one_reading, findings=_findings,
    command=lambda run, device: gradus_bench(NAME, run, device),
)  # fmt: skip
