"""Record p12's ranks at work: what each computes when, and where it waits, in three ways to cut a model in two.

    PYTHONPATH=src:. python3 benchmarks/lessons/parallel_lesson.py --out benchmarks/lessons/parallel_lesson.json

A rank is a process with one thread, so two ranks have two cores of one machine. Messages go over loopback. What other
programs do on these cores shows as waits, so the file keeps the shortest of several runs. It says what happens in which
order; it is no measurement of how fast ranks can be.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from phases.p12_parallelism.demo import WAYS
from phases.p12_parallelism.watch import Note, watched

MODEL, TOKENS, RUNS = "random:gpt2-124m", 8, 6


def length(notes: list[Note]) -> float:
    """Seconds from the first note to the end of the last."""
    return max(note.until for note in notes) - notes[0].at


def way(parts: int, stages: int, micro_batches: int) -> list[dict[str, Any]]:
    """The notes of the shortest run. Times in milliseconds."""
    runs = [watched(parts, stages, micro_batches, MODEL, TOKENS) for _ in range(RUNS)]
    print(*(f"{1e3 * length(run):.0f} ms" for run in runs), flush=True)
    notes = min(runs, key=length)
    start = notes[0].at
    times = [{"at": round(1e3 * (note.at - start), 3), "until": round(1e3 * (note.until - start), 3)} for note in notes]
    return [asdict(note) | each for note, each in zip(notes, times, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    asked = parser.parse_args()
    found = {"commit": asked.commit or commit(), **fingerprint(torch.device("cpu"), quick=True), "model": MODEL}
    found |= {"tokens": TOKENS, "runs": RUNS, "ways": {name: way(*cut) for name, *cut in WAYS}}
    asked.out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(ran(main))
