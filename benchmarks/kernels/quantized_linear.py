"""Check products with quantized matrices of Llama-3.1-8B, and race them against each other and cuBLAS in bfloat16.

    PYTHONPATH=src:. python3 benchmarks/kernels/quantized_linear.py --out "$OUT"/quantized_linear.json --sweep
    PYTHONPATH=src:. python3 benchmarks/kernels/quantized_linear.py --table quantized_linear.json
    PYTHONPATH=src:. python3 benchmarks/kernels/quantized_linear.py --show quantized_linear.json

Without `--sweep` only the tiles that the engine chooses run. `--table` writes the device's file in
`src/gradus/kernels/quantized/measured/`, by which the engine then chooses. Every launch is checked before it is timed:
against the torch reference, into memory full of NaN. Results are written as they come; what OUT has already, or
`--before`, is not measured again; and after `--seconds` the rest is left for the next call. `--known` races only the
tiles that were fastest in another device's results, which takes a fraction of the time.

Times are as in racing.py; with few rows, launches start early, as in the engine's graphs. The floor is the larger of
two times: the bytes that must move divided by `--bandwidth`, and the operations divided by `--operations`.
"""

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.kernels import racing
from benchmarks.kernels.racing import error, poisoned
from gradus.bench.measure.gpu import graph_microseconds
from gradus.bench.run.script import need_triton, ran
from gradus.device.capability import capability
from gradus.models.precision import resolve_device
from gradus.quantization.fp8 import E4M3

if __name__ == "__main__":
    need_triton()

from gradus.kernels.core.compiling import compiled_together
from gradus.kernels.core.counters import counters_of
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.core.tuning import stored_form
from gradus.kernels.fuse.quantized import FUSED_ROWS
from gradus.kernels.linear.dispatch import linear
from gradus.kernels.quantized.eight_bits import EightBitWeights, eight_bit_product, library_product
from gradus.kernels.quantized.int4 import Int4Weights, int4_product
from gradus.kernels.quantized.pieces import product_in_pieces
from gradus.kernels.quantized.quantize import Rounded, quantize
from gradus.kernels.quantized.reference import (
    eight_bit_reference,
    int4_reference,
    quantize_reference,
    widened_reference,
)
from gradus.kernels.quantized.tile import TileLaunch
from gradus.kernels.quantized.tile_tables import ROWS, SCHEMES, Scheme, choose_tile, library_multiplies

MATRICES = {
    "qkv": (6144, 4096),
    "output": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
TINY = {"qkv": (96, 64), "gate_up": (80, 192), "head": (37, 64)}
CACHE = 400 << 20  # bytes that a graph reads at least: several times an H200's L2
MOST_HEAD_ROWS = 256  # logits are of sampled rows only
OURS, CUBLAS, LIBRARY = "bf16 ours", "bf16 cublas", "library"
MOST_KNOWN = 6
TOLERANCE = 8e-3  # of ‖out - reference‖ / ‖reference‖, with a result in 16 bits
FILES = Path(__file__).parents[2] / "src/gradus/kernels/quantized/measured"


class Bench(NamedTuple):
    """The device and settings of a run. On a CPU, Triton interprets in float16, and times mean nothing."""

    device: torch.device
    dtype: torch.dtype
    matrices: dict[str, tuple[int, int]]
    bandwidth: float
    operations: float
    until: float
    known: Mapping[str, list[TileLaunch]] = {}  # the only tiles that race, by cell

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def early(self, m: int) -> bool:
        return self.on_gpu and m <= FUSED_ROWS and capability(self.device).starts_early

    def noise(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=self.dtype, device=self.device).normal_()

    @property
    def late(self) -> bool:
        return time.monotonic() > self.until


# -- matrices ----------------------------------------------------------------------------------------------------------


def made(bench: Bench, scheme: str, n: int, k: int) -> Any:
    """Make a matrix [n, k] of random weights of about 1 / sqrt(k)."""
    scales = (torch.rand(n, device=bench.device) + 0.5) / k**0.5
    if scheme == "int4":
        return made_int4(bench, n, k)
    if scheme == "int8":
        values = torch.randint(-127, 128, (n, k), dtype=torch.int8, device=bench.device)
        return EightBitWeights(values, scales / 73)
    if scheme.startswith("fp8"):
        values = bench.noise(n, k).mul_(100).clamp_(-448, 448).to(E4M3)
        if scheme == "fp8":
            return EightBitWeights(values, scales / 100)
        blocks = torch.rand(-(-n // 128), -(-k // 128), device=bench.device).add_(0.5).div_(100 * k**0.5)
        return EightBitWeights(values, blocks, torch.arange(n, device=bench.device) // 128)
    return bench.noise(n, k).div_(k**0.5)


def made_int4(bench: Bench, n: int, k: int, group: int | None = None) -> Int4Weights:
    group = group or max(size for size in (128, 64, 32) if k % size == 0)
    tiles = -(-k // 128)
    words = torch.randint(-(2**15), 2**15, (tiles, n, 32), dtype=torch.int16, device=bench.device)
    scales = (torch.rand(128 * tiles // group, n, device=bench.device) + 0.5) / (4.6 * k**0.5)
    offsets = scales * (torch.rand_like(scales) - 8)
    pairs = torch.stack([scales.to(bench.dtype), offsets.to(bench.dtype)], -1).view(torch.int32).squeeze(-1)
    return Int4Weights(words, pairs, bench.dtype)


def bytes_of(weights: Any) -> int:
    if isinstance(weights, Tensor):
        return weights.nbytes
    return sum(part.nbytes for part in weights if isinstance(part, Tensor) and part.dtype != torch.int64)


def rounded(scheme: str, x: Tensor) -> Any:
    """Round x to the form that a product of the scheme takes."""
    if scheme == "int4":
        return x
    return quantize(x, torch.int8 if scheme == "int8" else E4M3, 128 if scheme == "fp8-block" else None)


# -- launches ----------------------------------------------------------------------------------------------------------


class Contender(NamedTuple):
    """A launch to time. launch: None means the library's."""

    launch: TileLaunch | None
    early: bool = False

    @property
    def name(self) -> str:
        return LIBRARY if self.launch is None else f"{list(self.launch)}{'' if self.early else ' waits'}"


def run(bench: Bench, scheme: str, x: Any, weights: Any, contender: Contender, gated: bool) -> Tensor:
    """Compute a product. x: from `rounded`. The library's products have no gate."""
    around: dict[str, Any] = {"activation": "silu", "gated": True} if gated else {}
    if contender.launch is None:
        if scheme == "int4":
            return product_in_pieces(x, weights)
        return library_product(x, weights, bench.dtype)
    with early_launches() if contender.early else nullcontext():
        if scheme == "int4":
            return int4_product(x, weights, contender.launch, **around)
        return eight_bit_product(x, weights, bench.dtype, contender.launch, **around)


def expected(bench: Bench, scheme: str, x: Any, weights: Any, gated: bool) -> Tensor:
    """Compute the product with the torch reference, in the kernels' type."""
    around: dict[str, Any] = {"activation": "silu", "gated": True} if gated else {}
    if scheme == "int4":
        return int4_reference(x, weights, **around).float()
    return eight_bit_reference(x, weights, bench.dtype, **around).float()


def microseconds(bench: Bench, launches: list[Callable[[], Any]]) -> float:
    """Time one launch, with a different matrix each time; on a CPU, time only the last one, once."""
    if bench.on_gpu:
        return graph_microseconds(launches)
    launches[0]()
    start = time.perf_counter()
    launches[-1]()
    return (time.perf_counter() - start) * 1e6


# -- which tiles race --------------------------------------------------------------------------------------------------


def tiles(scheme: str, m: int, n: int, k: int, gated: bool = False) -> Iterator[TileLaunch]:
    """Yield tiles whose sums fit registers and whose stages fit shared memory, with enough programs and iterations.

    n: outputs; with a gate each has two sums. A warp unpacks 16 or 32 rows of a tile of int4; with 8 bits, four warps
    take 64 rows together.
    """
    few, four_bits = m <= FUSED_ROWS, scheme == "int4"
    shapes = [(128, 4), (128, 6)] if m <= 16 else [(128, 3), (128, 4)] if few or not four_bits else [(128, 2), (128, 3)]
    shapes += [(256, 3)] if few and scheme in ("int8", "fp8") else []
    for rows, (columns, stages), tokens, height in product(
        (32, 64, 128) if few and scheme in ("int4", "int8") else (64, 128), shapes, token_tiles(scheme, m), (16, 32)
    ):
        warps = rows // height
        fits = shared_bytes(scheme, (1 + gated) * rows, columns, tokens) * stages <= 220_000
        if fits and (height == 16 or (four_bits and few)) and (1 + gated) * rows * tokens // (32 * warps) <= 64:
            for splits in (1, 2, 4, 8, 16):
                if shares(splits, -(-n // rows) * -(-m // tokens), -(-k // columns), m):
                    yield TileLaunch(rows, columns, tokens, splits, stages, warps)


def shares(splits: int, programs: int, tiles_k: int, m: int) -> bool:
    """Return whether `splits` programs per tile are worth a try: enough for the GPU, not too many sums in memory."""
    if splits == 1:
        return programs >= 30
    return 120 <= programs * splits <= 132 * 16 and tiles_k >= 2 * splits and m * splits <= 512


def token_tiles(scheme: str, m: int) -> tuple[int, ...]:
    """Return how many tokens a tile can have: Hopper multiplies e4m3 directly from 16 on."""
    if m > FUSED_ROWS:
        return (64, 128) if scheme == "int4" else (128,)
    return (max(16 if scheme.startswith("fp8") else 8, 1 << (m - 1).bit_length()),)


def shared_bytes(scheme: str, rows: int, columns: int, tokens: int) -> int:
    """Return the bytes of one stage."""
    return rows * 64 + tokens * 256 if scheme == "int4" else (rows + tokens) * columns


def contenders(bench: Bench, cell: "Cell", sweep: bool) -> list[Contender]:
    """List the contenders, beginning with the engine's choice."""
    scheme, m, (n, k), gated = cell.scheme, cell.m, bench.matrices[cell.matrix], cell.gated
    early = bench.early(m) and cell.matrix != "head"
    chosen = choose_tile(scheme, m, n, k, bench.dtype, bench.device, gated=gated)
    found = [Contender(chosen, early=early)]
    if not gated and library_multiplies(scheme, m, n, k, bench.dtype, bench.device) and (m > 16 or scheme != "int4"):
        found.append(Contender(None))
    if sweep:
        racing = bench.known.get(cell.key) or tiles(scheme, m, n // 2 if gated else n, k, gated)
        found += [Contender(tile, early=early) for tile in racing]
    return list(dict.fromkeys(found))


def fastest_tiles(found: dict[str, Any]) -> dict[str, list[TileLaunch]]:
    """The MOST_KNOWN fastest tiles of each cell in a device's results."""
    known = {}
    for key, entry in found["products"].items():
        launches = [launch_named(name) for name in sorted(entry["times"], key=entry["times"].__getitem__)]
        alike = dict.fromkeys(launch._replace(ahead=0) for launch in launches if launch)
        known[key] = [*alike][:MOST_KNOWN]
    return known


def launch_named(name: str) -> TileLaunch | None:
    """A contender's launch; None of what is not ours."""
    return TileLaunch(*json.loads(name.split("]")[0] + "]")) if name.startswith("[") else None


def refined(best: list[Contender]) -> list[Contender]:
    """Return the best tiles with weights fetched before the wait; the very best also after it."""
    found: list[Contender] = []
    for number, each in enumerate(best):
        if each.launch is None:
            continue
        if each.early:
            found += [each._replace(launch=each.launch._replace(ahead=ahead)) for ahead in (0, 2, 4, 8)]
        if each.early and not number:
            found.append(each._replace(early=False))
    return [each for each in dict.fromkeys(found) if each not in best]


# -- a cell: one scheme, one matrix, one number of rows ----------------------------------------------------------------


class Cell(NamedTuple):
    scheme: Any  # a Scheme, or bf16
    matrix: str
    m: int

    @property
    def gated(self) -> bool:
        return self.matrix == "gate_up" and self.m <= FUSED_ROWS

    @property
    def key(self) -> str:
        return f"{self.scheme} {self.matrix} {self.m}"


def cells(bench: Bench, schemes: list[str], rows: list[int]) -> Iterator[Cell]:
    """List all cells, those with few rows first: quantization is meant for decodes."""
    for few in (True, False):
        for scheme in schemes:
            for matrix, m in product(bench.matrices, rows):
                if (m <= FUSED_ROWS) == few and (matrix != "head" or m <= MOST_HEAD_ROWS):
                    yield Cell(scheme, matrix, m)


def buffers(bench: Bench, scheme: str, n: int, k: int) -> list[Any]:
    first = made(bench, scheme, n, k)
    count = racing.copies(bytes_of(first), CACHE) if bench.on_gpu else 2
    return [first, *(made(bench, scheme, n, k) for _ in range(count - 1))]


def measure(bench: Bench, cell: Cell, weights: list[Any], sweep: bool) -> dict[str, Any]:
    n, k = bench.matrices[cell.matrix]
    x = bench.noise(cell.m, k)
    weights = weights if cell.m < 1024 else weights[:4]  # arithmetic sets the pace, whatever the cache holds
    if cell.scheme == "bf16":
        times, failed = bf16_times(bench, x, weights), []
        chosen = CUBLAS
    else:
        times, failed, chosen = race(bench, cell, x, weights, sweep)
    return {
        "scheme": cell.scheme, "matrix": cell.matrix, "m": cell.m, "n": n, "k": k,
        "floor": floor(bench, cell.m, n, k, bytes_of(weights[0]), 8 if cell.scheme not in ("bf16", "int4") else 16),
        "bytes": bytes_of(weights[0]), "chosen": chosen, "failed": failed,
        "times": dict(sorted(times.items(), key=lambda entry: entry[1])),
    }  # fmt: skip


def bf16_times(bench: Bench, x: Tensor, weights: list[Tensor]) -> dict[str, float]:
    ours = early_launches if bench.early(x.shape[0]) else nullcontext

    def project(weight: Tensor) -> None:
        with ours():
            linear(x, weight)

    return {
        CUBLAS: microseconds(bench, [lambda w=w: F.linear(x, w) for w in weights]),
        OURS: microseconds(bench, [lambda w=w: project(w) for w in weights]),
    }


def race(
    bench: Bench, cell: Cell, x: Tensor, weights: list[Any], sweep: bool
) -> tuple[dict[str, float], list[str], str]:
    """Return microseconds by contender, the failures with their reasons, and the name of the engine's choice."""
    scheme, gated = cell.scheme, cell.gated
    given = rounded(scheme, x)
    reference = expected(bench, scheme, given, weights[0], gated)
    entrants = contenders(bench, cell, sweep)

    def timed(contender: Contender) -> float:
        try:
            with poisoned():
                off = error(run(bench, scheme, given, weights[0], contender, gated), reference)
            if not off < TOLERANCE:
                raise ArithmeticError(f"off by {off:.2g}")
            return microseconds(bench, [partial(run, bench, scheme, given, w, contender, gated) for w in weights])
        finally:
            counters_of(bench.device, 1).zero_()  # what a failed launch may have left

    def raced(some: list[Contender]) -> tuple[dict[str, float], list[str]]:
        return racing.race({each.name: partial(timed, each) for each in some})

    times, failed = raced(entrants)
    if sweep:
        fastest = sorted((each for each in entrants if each.name in times), key=lambda each: times[each.name])
        more = refined(fastest[:2])
        compile_all(bench, [partial(run, bench, scheme, given, weights[0], each, gated) for each in more])
        more_times, more_failed = raced(more)
        times, failed = times | more_times, failed + more_failed
    return times, [f"{cell.key}: {each}" for each in failed], entrants[0].name


def floor(bench: Bench, m: int, n: int, k: int, weight_bytes: int, bits: int) -> float:
    """Return the least possible time in microseconds."""
    moved = weight_bytes + m * (k * bits // 8 + 2 * n)
    return 1e6 * max(moved / bench.bandwidth, 2 * m * n * k / (bench.operations * 16 / bits))


# -- correctness on odd shapes -----------------------------------------------------------------------------------------


def check(bench: Bench) -> Iterator[dict[str, Any]]:
    """Check odd numbers of rows and columns, ragged last tiles and every group, with everything around a product."""
    sizes = [(1, 37, 96), (3, 130, 576), (17, 257, 1000), (64, 777, 320), (130, 300, 2048)]
    sizes = sizes if bench.on_gpu else [(1, 37, 96), (3, 50, 192)]  # where each program takes a millisecond
    for scheme, (m, n, k) in product(SCHEMES, sizes):
        k = -(-k // 32) * 32 if scheme == "int4" else k
        x = bench.noise(m, k)
        matrices = [made(bench, scheme, 2 * n, k)]
        if scheme == "int4":
            matrices = [made_int4(bench, 2 * n, k, group) for group in (32, 64, 128) if k % group == 0]
        for weights in matrices:
            yield {"scheme": scheme, "m": m, "n": 2 * n, "k": k} | checked(bench, scheme, x, weights)


def checked(bench: Bench, scheme: Scheme, x: Tensor, weights: Any) -> dict[str, Any]:
    """Return errors by what was checked."""
    (m, k), found = x.shape, dict[str, float]()
    given = rounded(scheme, x)
    if isinstance(given, Rounded):
        theirs = quantize_reference(x, given.values.dtype, 128 if scheme == "fp8-block" else None)
        found["values that differ"] = int((given.values.view(torch.int8) != theirs.values.view(torch.int8)).sum())
        found["scales that differ"] = int((given.scales != theirs.scales).sum())
    else:
        wide = torch.full((weights.rows, k), torch.nan, dtype=x.dtype, device=x.device)
        weights.widen(0, wide)
        found["weights that differ"] = int((wide != widened_reference(weights, k, x.dtype)).sum())
        identity = torch.eye(k, dtype=x.dtype, device=x.device)  # its rows pick single weights
        out = int4_product(identity, weights, TileLaunch(64, 128, 16, 1, 3, 4))
        found["weights that differ in the product"] = int((out.t() != wide).sum())
        found["made wide"] = error(product_in_pieces(x, weights), expected(bench, scheme, x, weights, False))
    launch = choose_tile(scheme, min(m, FUSED_ROWS), weights.rows, k, torch.float16, torch.device("cpu"))
    assert launch is not None
    ways = [
        (Contender(launch._replace(splits=1)), False),
        (Contender(launch._replace(splits=3), early=bench.early(m)), True),
    ]
    compile_all(bench, [lambda c=c, g=g: run(bench, scheme, given, weights, c, g) for c, g in ways])
    for contender, gated in ways:
        reference = expected(bench, scheme, given, weights, gated)
        with poisoned():
            out = run(bench, scheme, given, weights, contender, gated)
        found[f"{contender.name}{' gated' if gated else ''}"] = error(out, reference)
    return found


def bad(entry: dict[str, Any]) -> list[str]:
    """List the errors in a result of `check`."""
    return [
        f"{name}: {value}"
        for name, value in entry.items()
        if name not in ("scheme", "m", "n", "k") and not value < (0.5 if "differ" in name else TOLERANCE)
    ]


# -- what is shown and stored ------------------------------------------------------------------------------------------


def winner(entry: dict[str, Any]) -> str | None:
    """Return the fastest contender that the engine can choose: one that unpacks and starts as the engine does.

    Older results name contenders that unpacked int4 in another way ("subnormal").
    """
    plain = [name for name in entry["times"] if "subnormal" not in name]
    if any("waits" not in name and name != LIBRARY for name in plain):
        plain = [name for name in plain if "waits" not in name]  # a library's launch has no such name
    return min(plain, key=entry["times"].__getitem__, default=None)


def shown(found: dict[str, Any]) -> str:
    """Format a line per scheme and row count: each matrix's µs, TB/s, % of floor, and speed relative to cuBLAS."""
    lines = [f"{found['device']}, torch {found['torch']}, triton {found['triton']}"]
    by_rows: dict[tuple[str, int], list[str]] = {}
    for entry in found["products"].values():
        name, by = winner(entry), by_rows.setdefault((entry["scheme"], entry["m"]), [])
        if name is None:
            by.append(f"{entry['matrix']} nothing ran")
            continue
        took, other = entry["times"][name], found["products"].get(f"bf16 {entry['matrix']} {entry['m']}")
        beside = f" {other['times'][CUBLAS] / took:.2f}x" if other else ""
        share = f"{entry['bytes'] / took / 1e6:.2f} TB/s {100 * entry['floor'] / took:.0f} %"
        by.append(f"{entry['matrix']} {took:.2f} us {share}{beside}{' library' if name == LIBRARY else ''}")
    lines += [f"{scheme} {m}: " + " | ".join(parts) for (scheme, m), parts in by_rows.items()]
    wrong = [f"  {e['scheme']} {e['m']} {e['n']} {e['k']}: {', '.join(bad(e))}" for e in found["checks"] if bad(e)]
    lines += [f"{len(found['checks'])} odd shapes checked, {len(wrong)} wrong", *wrong[:8]]
    failed = [f"  {each}" for entry in found["products"].values() for each in entry["failed"]]
    return "\n".join([*lines, f"{len(failed)} launches failed", *failed[:5]])


def table(found: dict[str, Any]) -> str:
    """Return the text of a device's file in `measured/`, a line per matrix, for fully measured schemes only."""
    schemes: dict[str, list[str]] = {}
    shapes = {entry["matrix"]: (entry["n"], entry["k"]) for entry in found["products"].values()}
    for scheme in SCHEMES:
        lines = []
        for name, (n, k) in shapes.items():
            rows = [m for m in ROWS if name != "head" or m <= MOST_HEAD_ROWS]
            entries = [found["products"].get(f"{scheme} {name} {m}") for m in rows]
            names = [entry and winner(entry) for entry in entries]
            if None in names:
                break
            launches = [(tile := launch_named(each)) and stored_form(tile) for each in names if each]
            launches += launches[-1:] * (len(ROWS) - len(launches))  # more rows of logits as many
            lines.append(json.dumps({"n": n, "k": k, "launches": launches}))
        else:
            schemes[scheme] = lines
    members = [f'"{scheme}": {racing.one_per_line(lines, 4)}' for scheme, lines in schemes.items()]
    return racing.table_text(found, ROWS, "schemes", racing.one_per_line(members, 2, "{}"))


# -- the command -------------------------------------------------------------------------------------------------------


def arguments() -> argparse.ArgumentParser:
    parser = racing.table_arguments(__doc__, parts="check,products")
    parser.add_argument("--before", type=Path, help="results to continue from, if OUT has none")
    parser.add_argument("--sweep", action="store_true", help="race tiles, not only those that the engine chooses")
    parser.add_argument("--schemes", default=",".join(("bf16", *SCHEMES)))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="unknown", help="the commit being measured, as `git rev-parse` prints it")
    parser.add_argument("--tiny", action="store_true", help="matrices of a few thousand weights: a rehearsal on a CPU")
    parser.add_argument("--operations", type=float, default=790e12, help="per second, in bfloat16; 8 bits count twice")
    parser.add_argument("--seconds", type=float, default=540, help="begin nothing more after this time")
    parser.add_argument("--show", type=Path, help="measure nothing: print these results")
    return parser


def fingerprint(bench: Bench) -> dict[str, Any]:
    return racing.device_facts(bench.device) | {
        "python": platform.python_version(), "dtype": str(bench.dtype), "bandwidth": bench.bandwidth,
        "operations": bench.operations,
    }  # fmt: skip


def compile_all(bench: Bench, launches: list[Callable[[], Any]]) -> None:
    """Compile in parallel on all cores. A launch that fails to compile fails again when it runs."""
    if bench.on_gpu and launches:
        try:
            with compiled_together():
                for launch in launches:
                    launch()
        except Exception as problem:
            print(f"compiling: {type(problem).__name__} {problem}"[:300], flush=True)


class Compilation(NamedTuple):
    """The properties that a compiled kernel depends on.

    Of the matrix's sizes it only matters whether they are multiples of 16 and 256, and whether sums are shared.
    """

    device: str
    scheme: str
    gated: bool
    contender: Contender


def compile_one(task: Compilation) -> None:
    device = torch.device(task.device)
    bench = Bench(device, torch.bfloat16 if device.type == "cuda" else torch.float16, {}, 1.0, 1.0, math.inf)
    weights, x = made(bench, task.scheme, 512, 2048), rounded(task.scheme, bench.noise(2, 2048))
    run(bench, task.scheme, x, weights, task.contender, task.gated)


def compilations(bench: Bench, todo: list[Cell], sweep: bool) -> list[Compilation]:
    found = {}
    for cell in (cell for cell in todo if cell.scheme != "bf16"):
        for contender in contenders(bench, cell, sweep):
            if contender.launch is not None:
                launch = contender.launch._replace(splits=min(contender.launch.splits, 2), ahead=0)
                alike = Compilation(str(bench.device), cell.scheme, cell.gated, contender._replace(launch=launch))
                found[alike] = None
    return list(found)


def measure_products(bench: Bench, todo: list[Cell], sweep: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the result of each cell, until time is up."""
    kept: tuple[tuple[str, str] | None, list[Any]] = (None, [])
    for cell in todo:
        if bench.late:
            print("out of time: run it again for the rest", flush=True)
            return
        if kept[0] != (cell.scheme, cell.matrix):
            kept = (None, [])  # free these before the next are made
            kept = (cell.scheme, cell.matrix), buffers(bench, cell.scheme, *bench.matrices[cell.matrix])
        start = time.monotonic()
        entry = measure(bench, cell, kept[1], sweep)
        yield cell.key, entry
        took, name = time.monotonic() - start, winner(entry)
        best = f"{entry['times'][name]:.2f} us, {name}" if name else "nothing ran"
        print(f"{cell.key}: {best}, of {len(entry['times'])} in {took:.1f} s", flush=True)


def main() -> int:
    options = racing.options_of(arguments())
    if options.table:
        racing.write_table(options.table, FILES, table)
        return 0
    if options.show:
        print(shown(json.loads(options.show.read_text())))
        return 0
    device = resolve_device(options.device)
    bench = Bench(
        device, torch.bfloat16 if device.type == "cuda" else torch.float16, TINY if options.tiny else MATRICES,
        options.bandwidth, options.operations, time.monotonic() + options.seconds,
        fastest_tiles(json.loads(options.known.read_text())) if options.known else {},
    )  # fmt: skip
    found: dict[str, Any] = fingerprint(bench) | {"commit": options.commit, "checks": [], "products": {}}
    if before := next((path for path in (options.out, options.before) if path and path.exists()), None):
        stored = json.loads(before.read_text())
        found = stored | found | {key: stored[key] for key in ("checks", "products")}
    with torch.inference_mode():
        for _ in measured(bench, options, found):
            options.out.write_text(json.dumps(found))
    print(shown(found))
    return 1 if any(map(bad, found["checks"])) else 0


def measured(bench: Bench, options: argparse.Namespace, found: dict[str, Any]) -> Iterator[None]:
    """Measure the parts that are asked for, and yield whenever `found` has more."""
    parts, rows = options.parts.split(","), [int(m) for m in options.rows.split(",")]
    schemes = options.schemes.split(",")
    if "check" in parts and not found["checks"]:
        found["checks"] = list(check(bench))
        yield
    if "products" in parts:
        todo = [cell for cell in cells(bench, schemes, rows) if cell.key not in found["products"]]
        if options.workers:
            racing.compile_in_processes(compile_one, compilations(bench, todo, options.sweep), options.workers)
        for key, entry in measure_products(bench, todo, options.sweep):
            found["products"][key] = entry
            yield


if __name__ == "__main__":
    sys.exit(ran(main))
