"""results.json: samples, machine and settings. Everything else in reports/ is made from it.

    reports/<hardware>/<benchmark>/results.json
      runs        one per model, precision and group: the machine's fingerprint, the settings with commit and seed
        cells     one per row of a table: the workload, and for each contender the prediction and every repeat's sample
        profiles  where the time of a decode step went

A file is replaced as a whole, so an interrupted run leaves the cells before it. No torch here.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradus.errors import ConfigError

SCHEMA = 1
MAX_BYTES = 256_000
MAX_ALL_BYTES = 9 << 19  # 4.5 MiB
FILE = "results.json"


@dataclass
class Entry:
    """One contender on one workload. skipped: why there are no samples, in one line."""

    contender: str
    prediction: dict[str, Any] | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)
    skipped: str | None = None


@dataclass
class Cell:
    """One row of a table. workload: what, digest, requests, prompt_tokens, output_tokens, longest."""

    table: str
    row: str
    x: float
    batch: int
    workload: dict[str, Any]
    entries: list[Entry] = field(default_factory=list)

    def entry(self, contender: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.contender == contender), None)


@dataclass
class Run:
    """One model in one precision, on one machine.

    group: the benchmark's cases that it covers, if they are measured separately; else "".
    """

    model: str
    dtype: str
    device: str
    fingerprint: dict[str, Any]
    settings: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)
    profiles: list[dict[str, Any]] = field(default_factory=list)
    group: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.model, self.dtype, self.group

    @property
    def title(self) -> str:
        return ", ".join(part for part in (self.model, self.group, self.dtype) if part)

    def cell(self, table: str, row: str) -> Cell | None:
        return next((cell for cell in self.cells if (cell.table, cell.row) == (table, row)), None)

    def of(self, table: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.table == table]

    def put(self, cell: Cell) -> None:
        """Add the cell, or replace the one of the same table and row."""
        old = self.cell(cell.table, cell.row)
        if old is None:
            self.cells.append(cell)
        else:
            self.cells[self.cells.index(old)] = cell


@dataclass
class Results:
    """hardware: the folder's name, "cpu" or a GPU's. benchmark: "p01", or "ladder"."""

    hardware: str
    benchmark: str
    runs: list[Run] = field(default_factory=list)
    schema: int = SCHEMA

    def run(self, model: str, dtype: str, group: str = "") -> Run | None:
        return next((run for run in self.runs if run.key == (model, dtype, group)), None)

    def put(self, run: Run) -> None:
        """Add the run, or replace the one of the same model, precision and group."""
        old = self.run(*run.key)
        if old is None:
            self.runs.append(run)
        else:
            self.runs[self.runs.index(old)] = run


def path(root: Path, hardware: str, benchmark: str) -> Path:
    return root / hardware / benchmark / FILE


def figure_name(found: Results, run: Run, table: str) -> str:
    """The table's name, with the model's if there are several."""
    slug = "-".join(re.findall(r"[a-z0-9.]+", f"{run.model} {run.dtype}".lower().replace("random:", "")))
    return f"{table}.svg" if run is found.runs[0] else f"{table}-{slug}.svg"


def find(root: Path, hardware: str = "*", benchmark: str = "*") -> Iterator[Results]:
    """All results under `root`, or those of a machine or a benchmark, in a fixed order."""
    for file in sorted(root.glob(f"{hardware}/{benchmark}/{FILE}")):
        yield read(file)


def read(file: Path) -> Results:
    """Read a results file. Raises ConfigError for anything else, and for another schema."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            raise ConfigError(
                f"{file}: results of schema {raw['schema']!r}, this version reads {SCHEMA}: measure again"
            )
        runs = [_run(run) for run in raw["runs"]]
        return Results(raw["hardware"], raw["benchmark"], runs)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: no results file: {type(error).__name__} {error}") from error


def write(file: Path, results: Results) -> int:
    """Write all or nothing. Returns the size in bytes; above MAX_BYTES a file is too large to commit."""
    text = dumps(results)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, file)
    return len(text.encode())


def update(root: Path, hardware: str, benchmark: str, run: Run) -> int:
    """Put one run into its file and keep the others. Returns the file's size in bytes.

    Several processes may do so at once if each has its own models.
    """
    file = path(root, hardware, benchmark)
    with _locked(file.parent):
        found = read(file) if file.exists() else Results(hardware, benchmark)
        found.put(run)
        return write(file, found)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder; other processes wait."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # and with it the lock


def dumps(results: Results) -> str:
    """JSON that is small and can be compared line by line: everything that fits on one line is on one."""
    return laid_out(_plain(results), "") + "\n"


def laid_out(value: Any, indent: str) -> str:
    """JSON whose lists and objects take one line each where they fit on one."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + len(line) <= _LINE:
        return line
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {laid_out(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(inner + item for item in items) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + laid_out(item, inner) for item in value) + f"\n{indent}]"


_LINE = 700  # a sample is one line


def _plain(results: Results) -> dict[str, Any]:
    return {"schema": results.schema, "hardware": results.hardware, "benchmark": results.benchmark} | {
        "runs": [asdict(run) for run in results.runs]
    }


def _run(raw: dict[str, Any]) -> Run:
    cells = [
        Cell(**{**cell, "entries": [Entry(**entry) for entry in cell["entries"]]})  # an unknown key is a TypeError
        for cell in raw["cells"]
    ]
    return Run(**{**raw, "cells": cells})
