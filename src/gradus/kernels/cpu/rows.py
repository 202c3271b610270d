"""The number of rows up to which a step's products are faster in these kernels than in torch: measured, by processor.

`benchmarks/kernels/cpu_rows.py --table` writes a processor's file in `measured_rows/`: the most rows for each kind of
matrix and each model width that it measured. Beyond MOST_ROWS, the kernels run in several passes. A model of another
width takes the nearest width's number. A processor is identified by its name and the instruction sets that the kernels
use, because many processors of rented machines share one name. One without a file takes another's with the same
instruction sets, and else UNKNOWN everywhere."""

import json
from functools import cache
from importlib.resources import files

from gradus.device.processor import instruction_sets, processor_name
from gradus.kernels.cpu.vectors import features
from gradus.quantization.gguf import FORMATS

X86 = ("avx", "fma", "amx")
GGUF = "gguf"
UNKNOWN = 64
"""Rows on a processor without measurements."""

Widths = dict[int, int]
"""Hidden size → most rows."""

Processor = tuple[str, str]
"""Name and instruction sets."""


def most_rows(kind: str, hidden_size: int) -> int:
    """Look up this processor's most rows. kind: of the matrices, a value of KINDS in `matrix.py`; the table has one
    entry for all of GGUF's."""
    kind = GGUF if kind in FORMATS else kind
    known, (name, sets) = stored(), processor()
    alike = (kinds for (_, each), kinds in known.items() if each == sets)
    widths = known.get((name, sets), next(alike, {})).get(kind, {})
    if not widths:
        return UNKNOWN
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
    """This processor, with the instruction sets that the kernels use: `NUMBA_CPU_FEATURES` may leave some out."""
    used = {_plain(name) for name in features()}
    sets = [name for name in instruction_sets().split() if not _plain(name).startswith(X86) or _plain(name) in used]
    return processor_name(), " ".join(sets)


def _plain(name: str) -> str:
    """Spell an instruction set as Linux and LLVM both do."""
    return name.replace("_", "").replace("-", "")
