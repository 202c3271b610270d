"""The rows of docs/speedrun.md, from the logs in reports/speedrun. No torch here.

`gradus report` writes them, and refuses a log that was edited, or that is no row.
"""

from collections.abc import Iterator
from pathlib import Path

from gradus.bench.record.metrics import shown
from gradus.bench.record.study import Part
from gradus.bench.speedrun.log import Log
from gradus.bench.speedrun.rules import CLASSES, Class
from gradus.errors import ConfigError

NAME = "speedrun"
NO_ROWS = "It has no rows."


def parts(root: Path, only: str) -> list[Part]:
    """The table of each class, or of one. root: reports/. Raises ConfigError for a log that is no row."""
    if only and only not in CLASSES:
        raise ConfigError(f"results:begin {NAME}/{only}: there is no class {only!r}, only {', '.join(CLASSES)}")
    logs = list(read(root / NAME))
    return [part for name, one in CLASSES.items() if only in ("", name) for part in of_class(one, logs)]


def read(folder: Path) -> Iterator[Log]:
    for file in sorted(folder.glob("*.json")):
        log = Log.read(file)
        if fault := next(log.faults(), None):
            raise ConfigError(f"{file}: {fault}")
        yield log


def of_class(category: Class, logs: list[Log]) -> list[Part]:
    """The class's rows, the fastest first."""
    mine = sorted((log for log in logs if log.category == category.name), key=lambda log: log.score["seconds"])
    title = f"**{category.name}**: {category.title}."
    if not mine:
        return [f"{title} {NO_ROWS}"]
    header = ["seconds (spread)", "tokens/s", "engine", "precision", "not the likeliest", "others", "processor", "log"]
    return [title, (header, [row(log) for log in mine])]


def row(log: Log) -> list[str]:
    score, verdict = log.score, log.verdict
    apart = verdict["tokens"] - verdict["likeliest"]
    device = log.machine.get("gpu") or log.machine["processor"]
    return [
        f"{shown(score['seconds'])} ({shown(score['fastest'])} to {shown(score['slowest'])})",
        shown(score["tokens_per_s"]),
        log.engine["name"],
        log.engine.get("precision", "its own"),
        f"{apart} of {verdict['tokens']}" + (f", by {shown(verdict['widest'])}" if apart else ""),
        f"{log.others:.0%}".replace("%", " %"),
        device,
        f"{log.commit[:8]}, {log.date}",
    ]
