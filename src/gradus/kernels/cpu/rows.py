"""How many rows a step may have before torch's products are faster than these kernels: measured, by processor.

`benchmarks/cpu_rows.py --table` writes a processor's file in `measured_rows/`: for each kind of matrix and each width
of a model that it measured, the most rows, MOST_ROWS at the most. A model of another width takes the nearest one's. A
processor without a file takes MOST_ROWS everywhere: on those that were measured the kernels win that far. A processor
is a name and its instruction sets: on a rented machine many have one name.
"""

import json
from functools import cache
from importlib.resources import files

from gradus.device.processor import instruction_sets, processor_name
from gradus.kernels.cpu.product import MOST_ROWS

Widths = dict[int, int]
"""Most rows by hidden size."""

Processor = tuple[str, str]
"""Name and instruction sets."""


def most_rows(kind: str, hidden_size: int) -> int:
    """kind: of the matrices, as in KINDS of `matrix.py`."""
    widths = stored().get(processor(), {}).get(kind, {})
    if not widths:
        return MOST_ROWS
    return widths[min(widths, key=lambda width: abs(width - hidden_size))]


@cache
def stored() -> dict[Processor, dict[str, Widths]]:
    """By processor and kind."""
    found = {}
    for file in files("gradus.kernels.cpu").joinpath("measured_rows").iterdir():
        if file.name.endswith(".json"):
            told = json.loads(file.read_text(encoding="utf-8"))
            kinds = {kind: {int(width): rows for width, rows in row.items()} for kind, row in told["most_rows"].items()}
            found[told["processor"], told["instruction_sets"]] = kinds
    return found


@cache
def processor() -> Processor:
    return processor_name(), instruction_sets()
