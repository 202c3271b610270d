"""The order in which to read a phase's files. Its one home is the lesson's section "Read the code"."""

import re
from collections.abc import Iterator
from pathlib import Path

from gradus.errors import ConfigError
from gradus.exercises.declaration import repository
from gradus.phases import PhaseInfo

ITEM = re.compile(r"^\d+\. (.*?)(?=^\d+\. |\Z)", re.MULTILINE | re.DOTALL)


def reading(phase: PhaseInfo) -> Iterator[tuple[str, str]]:
    """Yield the path in the repository and the source of each file that the lesson lists, in its order."""
    for path in reading_order(phase):
        yield path, (repository(phase) / path).read_text(encoding="utf-8")


def reading_order(phase: PhaseInfo) -> list[str]:
    """List the files that the numbered items name before a colon: "1. `src/…/gpt2.py`, then `llama.py`: why; `…`: why".

    A bare name is in the folder of the file before it. Raises ConfigError if the lesson lists no file, or one that does
    not exist.
    """
    lesson = (phase.path / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^## Read the code$(.*?)(?=^## |\Z)", lesson, re.MULTILINE | re.DOTALL)
    order: list[str] = []
    for item in ITEM.findall(section[1] if section else ""):
        heads = " ".join(clause.split(": ", 1)[0] for clause in item.split(";"))
        for name in re.findall(r"`([\w./]+\.py)`", heads):
            order.append(name if "/" in name or not order else str(Path(order[-1]).parent / name))
    lost = [path for path in order if not (repository(phase) / path).is_file()]
    if not order or lost:
        raise ConfigError(f'{phase.name}: "Read the code" in its lesson names {lost[0] if lost else "no file"}')
    return list(dict.fromkeys(order))
