"""The reader's own ladder: for each open task the best attempt that counts, with its date and its file's hash.

`gradus check --open` writes it to exercises/ladder.json. Only the best of a phase is kept.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from gradus import phases
from gradus.course.student.progress import FOLDER, Standing, save, standings

RECORD = FOLDER / "ladder.json"


@dataclass(frozen=True, slots=True)
class Best:
    """ratio: the score, as a multiple of the phase's own. day: as in 2026-05-01. sha256, file: of the reader's file."""

    ratio: float
    reached: bool
    day: str
    sha256: str
    file: str


@dataclass(frozen=True, slots=True)
class Rung:
    """A phase on the ladder: how many of its exercises have passed, and the best attempt at its open task."""

    phase: phases.PhaseInfo
    passed: int
    exercises: int
    best: Best | None


def bests() -> dict[str, Best]:
    """Read the record, by phase; {} if it is missing or not ours."""
    try:
        found = json.loads(RECORD.read_text(encoding="utf-8"))
        return {phase: Best(**entry) for phase, entry in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def remember(phase: phases.PhaseInfo, file: Path, ratio: float, *, reached: bool) -> Best:
    """Record an attempt as the phase's best. Raises ConfigError if the record cannot be written."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    best = Best(ratio, reached, datetime.now().astimezone().date().isoformat(), digest, str(file))
    entries = bests() | {phase.name: best}
    save(RECORD, {name: asdict(entry) for name, entry in sorted(entries.items())})
    return best


def rungs() -> Iterator[Rung]:
    """List the phases with exercises or an open task, in the course's order."""
    rows: dict[str, list[Standing]] = {}
    for row in standings():
        rows.setdefault(row.phase.name, []).append(row)
    known = bests()
    for info in phases.available():
        mine = rows.get(info.name, [])
        if mine or info.has("open"):
            passed = sum(row.state == "passed" for row in mine)
            yield Rung(info, passed, len(mine), known.get(info.name))
