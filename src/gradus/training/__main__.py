"""`python -m gradus.training`: `gradus train-heads` with the standard library's own argument parser.

It is for machines that have only a plain checkout and torch: no typer, no rich.

    PYTHONPATH=src:. python -m gradus.training smollm2-135m --out heads --minutes 6
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from gradus.device.characters import accept_every_character
from gradus.errors import GradusError
from gradus.loading import open_checkpoint
from gradus.training.heads import Recipe, train_heads


class Lines:
    """A `Progress` that prints lines: one at the start of a task, one at each tenth of it, and notes."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._total: int | None = None
        self._done = self._printed = 0

    def begin(self, task: str, total: int | None) -> None:
        self._total, self._done, self._printed = total, 0, 0
        self.note(task)

    def advance(self, amount: int) -> None:
        self._done += amount
        tenths = min(10, 10 * self._done // self._total) if self._total else 0
        if tenths > self._printed:
            self._printed = tenths
            self.note(f"{10 * tenths} %")

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train heads. Returns the exit code: 0, or 2 for a mistake of the user's, reported in one line."""
    if arguments is None:
        accept_every_character()
    parser = argparse.ArgumentParser(prog="python -m gradus.training", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    kinds = {"kind": str, "minutes": float, "rate": float}
    for field in fields(Recipe):
        parser.add_argument(f"--{field.name}", type=kinds.get(field.name, int), default=field.default)
    asked = vars(parser.parse_args(arguments))
    model, out, device, dtype = (asked.pop(name) for name in ("model", "out", "device", "dtype"))
    try:
        progress = Lines()
        checkpoint = open_checkpoint(model, progress=progress)
        trained = train_heads(checkpoint, out, Recipe(**asked), device=device, dtype=dtype, progress=progress)
    except GradusError as mistake:
        print(f"gradus: {mistake}", file=sys.stderr)
        return 2
    print(trained.summary(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
