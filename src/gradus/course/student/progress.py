"""A student's progress: every exercise passed, failing, begun or not begun, and the next command to type.

`gradus exercise` records where it put a file, and `gradus check` its verdict, in exercises/progress.json. A verdict
applies to the file's content, so it is stored with the content's hash, and an edit invalidates it. Nothing is run here.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradus import phases
from gradus.course.student.check import Verdict
from gradus.errors import ConfigError
from gradus.exercises import solution
from gradus.exercises.declaration import Exercise, exercises_of
from gradus.exercises.solution import Found, listed
from gradus.phases import PhaseInfo

FOLDER = Path("exercises")
"""The folder that `gradus exercise` writes to, with a folder per phase; the commands read it if no folder is named."""
RECORD = FOLDER / "progress.json"

State = Literal["passed", "failing", "unchecked", "begun", "not begun"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One exercise. detail: the sentence about a failure, or the functions still to write. file: None if there is
    none."""

    phase: PhaseInfo
    exercise: Exercise
    state: State
    detail: str = ""
    file: Path | None = None


def remember(phase: PhaseInfo, found: Found, verdict: Verdict) -> Path | None:
    """Record a verdict, unless the file is a copy of one in exercises/, which is then returned: its verdict stays.

    Raises ConfigError if the record cannot be written.
    """
    own = next((one for one in _in_folder(phase) if one.exercise is found.exercise and one.complete), None)
    if own is not None and not found.file.resolve().is_relative_to(FOLDER.resolve()):
        return own.file
    _write(phase, found.exercise, found.file, _hash(found.file), passed=verdict.passed, sentence=verdict.sentence)
    return None


def remember_begun(phase: PhaseInfo, exercise: Exercise, file: Path) -> None:
    """Record where an exercise was begun, without a verdict yet. Raises ConfigError as `remember` does."""
    _write(phase, exercise, file, "", passed=False, sentence="")


def _write(phase: PhaseInfo, exercise: Exercise, file: Path, sha256: str, *, passed: bool, sentence: str) -> None:
    entries = _entries()
    place = str(file.resolve())
    entries[_key(phase, exercise)] = {"file": place, "sha256": sha256, "passed": passed, "sentence": sentence}
    save(RECORD, entries)


def save(file: Path, entries: object) -> None:
    """Write a record of the student's, as JSON. Raises ConfigError if it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error


def standings() -> Iterator[Standing]:
    """List every exercise of every phase, in the course's order."""
    entries = _entries()
    for info in phases.available():
        if info.has("exercise"):
            yield from _of_phase(info, entries)


def of_phase(info: PhaseInfo) -> list[Standing]:
    """List the exercises of one phase."""
    return list(_of_phase(info, _entries()))


def _of_phase(info: PhaseInfo, entries: dict[str, Any]) -> Iterator[Standing]:
    here = _in_folder(info)
    for exercise in exercises_of(info):
        entry = entries.get(_key(info, exercise))
        usual = next((one for one in here if one.exercise is exercise), None)
        found = _recorded(exercise, entry) or usual
        if usual is not None and usual.complete and found is not None and not found.complete:
            found = usual
        yield _standing(info, exercise, found, entry)


def _in_folder(info: PhaseInfo) -> list[Found]:
    """Find the phase's files in exercises/."""
    with suppress(ConfigError):  # no such folder, or one that `check` will complain about
        return solution.search(info, solution.files_in(FOLDER, info))
    return []


def _recorded(exercise: Exercise, entry: dict[str, Any] | None) -> Found | None:
    """Find the file that was begun or checked last, in any folder."""
    if entry is None or not Path(entry["file"]).is_file():
        return None
    file = Path(entry["file"])
    return solution.look(exercise, file, solution.read(file))


def _standing(info: PhaseInfo, exercise: Exercise, found: Found | None, entry: dict[str, Any] | None) -> Standing:
    if found is None:
        return Standing(info, exercise, "not begun")
    if found.broken:
        return Standing(info, exercise, "failing", f"does not parse: {found.broken}", found.file)
    if left := (*found.missing, *found.unwritten):
        done = len(exercise.functions) - len(left)
        state: State = "begun" if done or found.missing else "not begun"
        return Standing(info, exercise, state, f"to write: {listed(left)}", found.file)
    if entry is None or entry["sha256"] != _hash(found.file):
        changed = "changed since its check" if entry and entry["sha256"] else ""
        return Standing(info, exercise, "unchecked", changed, found.file)
    if entry["passed"]:
        return Standing(info, exercise, "passed", file=found.file)
    return Standing(info, exercise, "failing", entry["sentence"], found.file)


def next_step(rows: list[Standing]) -> tuple[str, str]:
    """Return the command for the first exercise that has not passed, and what to do first. ("", …) if all have
    passed."""
    row = next((row for row in rows if row.state != "passed"), None)
    if row is None:
        return "", "every exercise of the course has passed"
    name, file_name = row.phase.name, row.exercise.file_name
    check = f"gradus check {name}{_where(row)}"
    if row.file is None:
        folder = next((one.file.parent for one in rows if one.phase.name == name and one.file is not None), None)
        if folder is None:
            return f"gradus exercise {name}", f"{row.phase.title}: {row.phase.idea}"
        to = "" if _is_usual(folder, row.phase) else f" --to {_shown(folder)}"
        return f"gradus exercise {name} --only {file_name}{to}", f"a file for {listed(row.exercise.functions)}"
    match row.state:
        case "not begun" | "begun":
            return check, f"write {listed(row.exercise.functions)} in {_shown(row.file)}, then"
        case "failing":
            return check, f"mend {_shown(row.file)} ({row.detail}), then"
        case _:
            return check, f"{row.file.name} has no verdict{' since it was changed' if row.detail else ' yet'}"


def _where(row: Standing) -> str:
    """The option that names the file for a command; "" if commands find the file themselves."""
    usual = row.file is None or _is_usual(row.file.parent, row.phase)
    return "" if usual else f" --impl {_shown(row.file)}"


def _is_usual(folder: Path, phase: PhaseInfo) -> bool:
    return folder.resolve() in (FOLDER.resolve(), (FOLDER / phase.name).resolve())


def _shown(file: Path | None) -> Path | str:
    """Make a path relative to the current folder if it is below that."""
    if file is None:
        return ""
    return file.relative_to(Path.cwd()) if file.is_absolute() and file.is_relative_to(Path.cwd()) else file


def _entries() -> dict[str, Any]:
    """Read the record; {} if it is missing or not ours."""
    try:
        found = json.loads(RECORD.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    fields = {"file", "sha256", "passed", "sentence"}
    return {key: entry for key, entry in entries if isinstance(entry, dict) and fields <= entry.keys()}


def _key(phase: PhaseInfo, exercise: Exercise) -> str:
    return f"{phase.name}/{exercise.file_name}"


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
