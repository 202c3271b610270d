"""The judge's process: trials of the beginning and of the reader's file, in turns, on the same workloads.

    python -m gradus.course.open.judge --phase p06 --file mine.py --seeds 0,8123 --facts facts.json

It writes its findings as JSON: `mine` and `base`, the numbers of each trial, or `error`, a sentence.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gradus import phases
from gradus.course.museum import described, executed
from gradus.course.open.declaration import Open, Refused, Trial
from gradus.course.open.guard import Guard


def load(file: Path, name: str) -> ModuleType:
    """Import a file as a module. Files of its folder can be imported from it."""
    sys.path.insert(0, str(file.parent))
    return executed(file, name)


def beginning(task: Open, folder: str) -> ModuleType:
    """Import the file to begin with, from a folder that is kept as long as it is measured."""
    file = Path(folder) / "beginning.py"
    file.write_text(task.start, encoding="utf-8")
    return load(file, "beginning")


def again(module: ModuleType) -> ModuleType:
    """Import a module's file a second time, and with it the files of its folder: nothing that they kept is in it."""
    assert module.__file__ is not None
    file = Path(module.__file__)
    for name, other in list(sys.modules.items()):
        if other is not module and file.parent in Path(getattr(other, "__file__", None) or "").parents:
            del sys.modules[name]
    return load(file, f"{module.__name__}_again")


def judge(task: Open, file: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Measure both, and return the findings."""
    with tempfile.TemporaryDirectory() as folder:
        return in_turns(task, beginning(task, folder), file, seeds)


def in_turns(task: Open, base: ModuleType, file: Path, seeds: Sequence[int]) -> dict[str, Any]:
    first = task.trial(base, seeds[0])  # imports all that a trial needs, before the guard looks
    guard = Guard()
    try:
        mine = load(file, "yours")
        guard.check()
        trials: dict[str, list[Trial]] = {"base": [], "mine": []}
        for number, seed in enumerate(seeds):
            trials["base"].append(task.trial(base, seed) if number or task.clocked else first)
            trials["mine"].append(task.trial(mine, seed))
            guard.check()
    except Refused as error:
        return {"error": str(error)}
    except Exception as error:  # of the reader's file, or of ours called by it
        return {"error": described(error, file)}
    return trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase", required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--seeds", required=True, type=lambda text: [int(seed) for seed in text.split(",")])
    parser.add_argument("--facts", type=Path, required=True)
    asked = parser.parse_args()
    task = phases.find(asked.phase).module("open").TASK
    asked.facts.write_text(json.dumps(judge(task, asked.file.resolve(), asked.seeds)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
