"""Measure p12's ranks: tokens per second and waits of processes that share a model, and two runs from start to end.

    PYTHONPATH=src:. python3 benchmarks/parallel_lesson.py --out benchmarks/parallel_lesson.json
    PYTHONPATH=src:. python3 benchmarks/parallel_lesson.py --only ways --out benchmarks/parallel_lesson.json

A rank is a process with one thread, so two ranks have two cores of one machine where one process has one. Messages go
over loopback. Other programs' work on those cores shows as waits, so `ways` keeps the shortest of several runs.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.bench.statistics import significant
from phases.p12_parallelism.watch import Note, waiting, watched

MODEL = "random:gpt2-124m"
WAYS = {"two ranks": (2, 1, 1), "two stages": (1, 2, 2)}
RATES = {"one process": (1, 1, 1), "two ranks": (2, 1, 1), "two stages": (1, 2, 1),
         "two stages, two micro-batches": (1, 2, 2)}  # fmt: skip
REQUESTS, TOKENS, REPEATS, RUNS = 2, 16, 3, 3


def length(notes: list[Note]) -> float:
    """Seconds from the first note to the end of the last."""
    return max(note.until for note in notes) - notes[0].at


def rates() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"name": name, "rate": [], "waiting": []} for name in RATES]
    for _ in range(REPEATS):
        for row in rows:
            parts, stages, micro_batches = RATES[row["name"]]
            notes = watched(parts, stages, micro_batches, MODEL, TOKENS)
            row["rate"].append(significant(REQUESTS * TOKENS / length(notes)))
            row["waiting"].append([round(waiting(notes, rank), 3) for rank in range(parts * stages)])
            print(row["name"], row["rate"][-1], row["waiting"][-1], flush=True)
    return rows


def ways() -> dict[str, list[dict[str, Any]]]:
    """The notes of each way's shortest run. Times in milliseconds."""
    found = {}
    for name, (parts, stages, micro_batches) in WAYS.items():
        notes = min((watched(parts, stages, micro_batches, MODEL, 6) for _ in range(RUNS)), key=length)
        start = notes[0].at
        found[name] = [
            asdict(note) | {"at": round(1e3 * (note.at - start), 3), "until": round(1e3 * (note.until - start), 3)}
            for note in notes
        ]
        print(name, significant(1e3 * length(notes)), flush=True)
    return found


PARTS: dict[str, Callable[[], Any]] = {"rates": rates, "ways": ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--only", choices=PARTS, help="renew this part of the file, and keep the other")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    asked = parser.parse_args()
    found = json.loads(asked.out.read_text(encoding="utf-8")) if asked.only else {}
    about = {"commit": asked.commit or commit(), **fingerprint(torch.device("cpu"), quick=True), "model": MODEL}
    found |= about | {"requests": REQUESTS, "tokens": TOKENS}
    found |= {name: part() for name, part in PARTS.items() if asked.only in (None, name)}
    asked.out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
