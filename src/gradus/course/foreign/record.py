"""Keep the last verdict on each phase by a program in another language, in exercises/programs.json.

A program may change without its command: a verdict is that of its last check, and says nothing about a new build.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gradus.course.student.check import Verdict
from gradus.course.student.progress import FOLDER, save

RECORD = FOLDER / "programs.json"


@dataclass(frozen=True, slots=True)
class Reached:
    """A program's last verdict in a phase."""

    phase: str
    command: str
    passed: bool
    sentence: str


def remember(phase: str, command: str, verdict: Verdict, file: Path = RECORD) -> None:
    """Record a verdict, in place of the command's earlier one. Raises ConfigError if that is impossible."""
    new = Reached(phase, command, verdict.passed, verdict.sentence)
    others = [each for each in reached(file) if (each.phase, each.command) != (phase, command)]
    rows = sorted([*others, new], key=lambda each: (each.command, each.phase))
    save(file, [asdict(each) for each in rows])


def reached(file: Path = RECORD) -> list[Reached]:
    """Read all verdicts, by command and phase; [] if there are none, or the file is not ours."""
    try:
        return [Reached(**each) for each in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []


def summaries(rows: list[Reached]) -> list[str]:
    """One line per command: `./engine: p00, p01 passed; p04 failing`."""
    lines = []
    for command in dict.fromkeys(each.command for each in rows):
        passed, failing = (
            [each.phase for each in rows if each.command == command and each.passed == right] for right in (True, False)
        )
        parts = [f"{', '.join(names)} {word}" for names, word in ((passed, "passed"), (failing, "failing")) if names]
        lines.append(f"{command}: {'; '.join(parts)}")
    return lines
