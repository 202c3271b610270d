"""The demos of the course as they ran once: what the book shows of them.

    PYTHONPATH=src:. python3 benchmarks/lessons/demos.py              # all, into benchmarks/lessons/demos.json
    PYTHONPATH=src:. python3 benchmarks/lessons/demos.py p04 p06      # these; the others' recordings stay

A recording names the work that it ran, so a demo that has changed is found (tests/benchmarks/test_demos.py).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from gradus.bench.contenders.workbench import Workbench
from gradus.bench.run.script import ran
from gradus.bench.statistics import significant
from gradus.course.views.demos import DEMOS, RECORDING, Shown, run, usual_model


def recording(shown: Shown, model: str, machine: str) -> dict[str, Any]:
    """One demo as plain data; its points to four digits."""
    points = {name: [[significant(x), significant(y)] for x, y in each] for name, each in shown.series.items()}
    return {
        "asks": shown.demo.asks,
        "model": model,
        "machine": machine,
        "series": points,
        "table": [list(row) for row in shown.table],
    }


def written(found: dict[str, Any]) -> str:
    """JSON with a line for each demo's field."""
    demos = (
        f'"{phase}": {{\n'
        + ",\n".join(f'  "{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in each.items())
        + "\n}"
        for phase, each in sorted(found.items())
    )
    return "{\n" + ",\n".join(demos) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the course's demos, and keep what they show.")
    parser.add_argument("phases", nargs="*", metavar="PHASE", help="by default all that have a demo")
    parser.add_argument("--out", type=Path, default=RECORDING)
    options = parser.parse_args()
    found = json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else {}
    model = usual_model()
    bench = Workbench.open(model, "cpu", "auto")
    cores = torch.get_num_threads()
    machine = "one CPU core" if cores == 1 else f"{cores} CPU cores"
    for phase in options.phases or DEMOS:
        found[phase] = recording(run(DEMOS[phase], bench), model, machine)
        options.out.write_text(written(found), encoding="utf-8")
        print(f"{phase} is recorded")


if __name__ == "__main__":
    sys.exit(ran(main))
