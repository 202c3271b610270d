"""The number of rows up to which a step's products are faster in these kernels than in torch: measured, by processor.

`benchmarks/cpu_rows.py --table` writes a processor's file in `measured_rows/`: the most rows, up to MOST_ROWS, for each
kind of matrix and each model width that it measured. A model of another width takes the nearest width's number. A
processor without a file takes MOST_ROWS everywhere. A processor is identified by its name and its instruction sets,
because many processors of rented machines share one name.
"""

import json
from functools import cache
from importlib.resources import files

from gradus.device.processor import instruction_sets, processor_name
from gradus.kernels.cpu.product import MOST_ROWS

Widths = dict[int, int]
"""Hidden size → most rows."""

Processor = tuple[str, str]
"""Name and instruction sets."""


def most_rows(kind: str, hidden_size: int) -> int:
    """Look up this processor's most rows. kind: of the matrices, a value of KINDS in `matrix.py`."""
    widths = stored().get(processor(), {}).get(kind, {})
    if not widths:
        return MOST_ROWS
    return widths[min(widths, key=lambda width: abs(width - hidden_size))]


@cache
def stored() -> dict[Processor, dict[str, Widths]]:
    """Read every file of `measured_rows/`: processor → kind of matrix → widths."""
    found = {}
    for file in files("gradus.kernels.cpu").joinpath("measured_rows").iterdir():
        if file.name.endswith(".json"):
            table = json.loads(file.read_text(encoding="utf-8"))
            kinds = {
                kind: {int(width): rows for width, rows in row.items()} for kind, row in table["most_rows"].items()
            }
            found[table["processor"], table["instruction_sets"]] = kinds
    return found


@cache
def processor() -> Processor:
    return processor_name(), instruction_sets()
