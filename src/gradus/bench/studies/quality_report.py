"""The report on quality.py's results: the effect of quantization on a model's predictions. No torch here."""

from collections.abc import Callable, Iterator
from typing import Any

from gradus.bench.record.metrics import shown
from gradus.bench.record.plots import Picture, Series
from gradus.bench.record.results import Cell, Entry, Results, Run
from gradus.bench.record.study import Part, Rows, Study, figure

NAME = "quality"
TABLE = "text"
TITLE = "Divergence from the model before quantization"

QUESTION = (
    "How far are a quantized model's predictions from those of the model that it was made of?",
    "Every model reads the same windows of a text, and predicts each token from those before it in its window. All "
    "are compared with float32 of the same file. In bfloat16 are weights and activations; the others have activations"
    " in float32, and so have what a scheme leaves, so that nothing but the scheme is measured.",
)
PREDICTION = (
    "bfloat16 keeps eight bits of each weight and of each activation. That rounding is what a model is commonly "
    "served with, so its row is the yardstick. Integers of eight bits with a scale per row are steps of a row's "
    "largest value, for weights and activations: where a few channels are many times larger than the rest, the rest "
    "has few steps. fp8 rounds each value by up to a sixteenth of its own size, large or small. For small errors the "
    "divergence grows with their square, and each bit less doubles the error of a weight: from eight bits to four, "
    "that of the weights should grow by a factor of some hundreds. AWQ and GPTQ should take away a fifth of it or "
    "more.",
    "The mean hides the tail. One position in a thousand should be off by tens of times the mean; there the first "
    "choice changes.",
    "With keys and values of 8 bits (*fp8-kv*) the weights stay as they were. Three bits of mantissa are an error of "
    "up to a sixteenth of each value. Attention averages it over many, so this should be between eight bits and four.",
)
HOW_TO_READ = (
    "*KL* is the mean divergence in nats, with its standard error over documents; *99.9 %* is what one position in a "
    "thousand exceeds. *Top-1 agreement* says how often the likeliest token is the same. The *perplexity ratio* is "
    "the contender's perplexity over that of float32, taken position by position. *Bits per weight* counts everything "
    "that a checkpoint fills (scales, embeddings and norms as well, in bfloat16 where they are not quantized), over "
    "the number of weights. Schemes leave the head as it was, except *fp8-head*, where it is fp8 as well, and "
    "*int4-head*, where it is int8. `int4-g64-rtn`, `-awq` and `-gptq` are what `gradus quantize` writes with groups "
    "of 64: rounded to nearest, by AWQ and by GPTQ, from weights whose columns were multiplied by random factors "
    "between 0.84 and 1.19 (and what comes before divided), because a file of 4-bit weights has put them on a grid on "
    "which rounding is free."
)


# -- tables and figures ------------------------------------------------------------------------------------------------


def tables_of(found: Results, run: Run) -> Iterator[Part]:
    """The text that was read, the table and its figure."""
    for cell in run.of(TABLE):
        yield f"{cell.workload['what']}.{_perplexity(cell)}"
        yield table_of(cell)
        yield from (f"{entry.contender}: not measured, {entry.skipped}." for entry in cell.entries if entry.skipped)
        yield figure(found, run, TABLE, TITLE)


def _perplexity(cell: Cell) -> str:
    """The unquantized model's perplexity; an absurd value means that something broke."""
    first = next((entry for entry in cell.entries if entry.samples), None)
    return "" if first is None else f" The perplexity of {first.contender} is {shown(first.samples[0]['perplexity'])}."


def table_of(cell: Cell) -> Rows:
    """A row per contender."""
    header = ["", "MB", "bits per weight", "KL", "median", "99.9 %", "top-1 agreement", "perplexity ratio"]
    return header, [[entry.contender, *_figures(entry)] for entry in cell.entries]


def _figures(entry: Entry) -> list[str]:
    if not entry.samples:
        return ["–"] * 7
    (sample,) = entry.samples
    return [
        shown(sample["weight_bytes"] / 1e6),
        shown(sample["bits_per_weight"]),
        _give_or_take(shown(sample["kl"]), sample["kl_error"], shown),
        shown(sample["kl_p50"]),
        shown(sample["kl_p999"]),
        _give_or_take(_percent(sample["top1"]), sample["top1_error"], _percent) + " %",
        _give_or_take(f"{sample['perplexity_ratio']:.4f}", sample["perplexity_ratio_error"], "{:.4f}".format),
    ]


def _give_or_take(value: str, error: float | None, show: Callable[[float], str]) -> str:
    """ "1.5 ± 0.2"; a text of one document has no error"""
    return value if error is None else f"{value} ± {show(error)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def pictures_of(run: Run) -> Iterator[tuple[str, Picture]]:
    """A row per contender, with its bits per weight: the divergence, and its standard error."""
    for cell in run.of(TABLE):
        measured = [(entry.contender, sample) for entry in cell.entries for sample in entry.samples if sample["kl"] > 0]
        yield (
            TABLE,
            Picture(
                kind="levels",
                title=TITLE,
                subtitle="",
                x_label="KL divergence, nats",
                y_label="",
                series=tuple(_series(name, sample) for name, sample in measured),
                scale="log",
            ),
        )


def _series(name: str, sample: dict[str, Any]) -> Series:
    kl, error, bits = sample["kl"], sample["kl_error"] or 0.0, shown(sample["bits_per_weight"])
    low = max(kl - error, kl / 10)  # a log axis cannot show 0
    return Series(f"{name} ({bits} bits)", [0], [kl], [low], [kl + error])


# -- report.md ---------------------------------------------------------------------------------------------------------


def _about(run: Run) -> Iterator[str]:
    if run.model.startswith("random:"):
        yield "**Random weights.** What they predict is noise, so this says nothing of a trained model."


def _losses(run: Run) -> str:
    """The first row's distance, and the others as multiples of it, the farthest first."""
    entries = [entry for cell in run.of(TABLE) for entry in cell.entries]
    measured = [(entry.contender, sample) for entry in entries for sample in entry.samples]
    if not measured:
        return "Nothing could be measured."
    (name, first), *others = measured
    texts = [f"*{name}* is {shown(first['kl'])} nats from float32{_worst(first)}"]
    for name, sample in sorted(others, key=lambda other: -other[1]["kl"]):
        times = shown(sample["kl"] / first["kl"])
        texts.append(f"*{name}* is {times} times as far{_worst(sample)}")
    return " ".join(texts)


def _worst(sample: dict[str, Any]) -> str:
    differ = _percent(1 - sample["top1"])
    return f": {shown(sample['kl_max'])} at its worst position, and {differ} % of the first choices differ."


def command(run: Run, device: str) -> str:
    """The command that repeats the run."""
    texts = [cell.workload for cell in run.of(TABLE) if not cell.workload["own"]]
    given = "".join(f" --text {text['text']}" for text in texts)
    return f"gradus bench {NAME} --device {device} --model {run.model}{given}"


STUDY = Study(
    NAME, QUESTION, PREDICTION, HOW_TO_READ, "Only a few windows were read.",
    tables=tables_of, pictures=pictures_of, losses=_losses, about=_about, command=command,
)  # fmt: skip
