"""The command line of scripts that measure one model after another on a GPU, and the file that they write."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.models.precision import resolve_device

Rows = list[dict[str, Any]]


def by_model(about: str | None, models: Sequence[str], measure: Callable[[str], Rows], **settings: Any) -> None:
    """Measure each model, and print the rows with the commit, the machine and the settings; --out also stores them.

    about: the script's docstring. models: the default for --model. The file is written after each model, so
    that results are kept if a machine is available only for minutes.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help=f"may be repeated; {', '.join(models)} by default")
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--out", type=Path, help="a file for the results, in addition to stdout")
    asked = parser.parse_args()
    machine = fingerprint(resolve_device("cuda"), quick=True)
    found: dict[str, Any] = {"commit": asked.commit or commit(), **machine, **settings, "rows": []}
    for model in asked.model or models:
        found["rows"] += measure(model)
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
