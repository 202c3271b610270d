"""Check the grouped products of a mixture's experts, and race their launches.

    PYTHONPATH=src:. python3 benchmarks/kernels/grouped_experts.py --out "$OUT"/grouped_experts.json
    PYTHONPATH=src:. python3 benchmarks/kernels/grouped_experts.py --table grouped_experts.json
    PYTHONPATH=src:. python3 benchmarks/kernels/grouped_experts.py --show grouped_experts.json

Tokens choose their experts at random. For each number of rows per expert, each launch of both products is checked
against the torch reference, into memory full of NaN, and timed; then the whole mixture with the fastest ones: sorting
and both products, in one CUDA graph. Its fastest pair counts: `--table` writes the device's file in
`src/gradus/kernels/experts/measured/`, by which the engine then chooses. Results are written as they come; what OUT has
already is not measured again, and after `--seconds` the rest is left for the next call.

Times are as in racing.py, with two routings and two sets of weights in turn. GB/s counts the bytes of the experts that
some row chose, once; TFLOP/s the products of N k rows.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels import racing
from benchmarks.kernels.racing import error, poisoned
from gradus.bench.measure.gpu import graph_microseconds
from gradus.bench.run.script import need_triton, ran
from gradus.device.capability import capability
from gradus.models.precision import resolve_device

if __name__ == "__main__":
    need_triton()

from gradus.kernels.core.overlap import early_launches
from gradus.kernels.core.tuning import launch_of, stored_form
from gradus.kernels.experts.dispatch import Dispatch, dispatch
from gradus.kernels.experts.grouped import down_product, up_product
from gradus.kernels.experts.grouped_launch import (
    AnyLaunch,
    GroupedLaunch,
    HopperGroupedLaunch,
    HopperLaunch,
    HopperStreamedLaunch,
)
from gradus.kernels.experts.grouped_tables import USES, Use, choose_launch, suits_hopper
from gradus.kernels.experts.reference import down_reference, up_reference

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # per expert, on average
FEW = 16  # rows per expert, up to which weights are the bytes that count
TOLERANCE = 8e-3  # of ‖out - reference‖ / ‖reference‖, in bfloat16
LIBRARY = "library"
KINDS = ("grouped", "hopper streamed", "hopper grouped")
FILES = Path(__file__).parents[2] / "src/gradus/kernels/experts/measured"


class Shape(NamedTuple):
    """experts: of `width` features each. chosen: by each row of `hidden` values."""

    experts: int
    chosen: int
    hidden: int
    width: int

    def matrix(self, use: Use) -> tuple[int, int]:
        """Return an expert's outputs and inputs."""
        return (self.width, self.hidden) if use == "up" else (self.hidden, self.width)

    def tokens(self, rows: int) -> int:
        return rows * self.experts // self.chosen


SHAPES = {
    "qwen3-30b-a3b": Shape(128, 8, 2048, 768),
    "gpt-oss-20b": Shape(32, 4, 2880, 2880),
    "glm-4.5-air": Shape(128, 8, 4096, 1408),
    "mixtral-8x7b": Shape(8, 2, 4096, 14336),
    "olmoe-1b-7b": Shape(64, 8, 2048, 1024),
    "tiny": Shape(8, 2, 64, 32),
}


# -- launches ----------------------------------------------------------------------------------------------------------

# tiles that stream weights past few rows: rows, columns, stages and warps; tiles that many rows share: tokens first
STREAMING: dict[Use, list[tuple[int, int, int, int]]] = {
    "up": [(64, 128, 3, 4), (64, 128, 5, 4), (64, 64, 4, 4), (64, 64, 6, 4), (128, 64, 3, 8), (128, 64, 5, 8),
           (128, 128, 3, 8), (32, 128, 5, 4), (32, 256, 3, 4)],
    "down": [(64, 128, 3, 4), (64, 128, 5, 4), (128, 128, 3, 4), (128, 128, 3, 8), (128, 64, 4, 8), (64, 256, 3, 4),
             (64, 64, 6, 4), (32, 256, 4, 4)],
}  # fmt: skip
SHARED: dict[Use, list[tuple[int, int, int, int, int]]] = {
    "up": [(128, 128, 64, 3, 8), (128, 128, 64, 4, 8), (128, 64, 64, 4, 4), (128, 64, 64, 4, 8), (128, 128, 32, 4, 8),
           (64, 128, 64, 3, 8), (64, 64, 64, 4, 4), (256, 64, 64, 3, 8), (64, 64, 128, 3, 4)],
    "down": [(128, 128, 64, 3, 8), (128, 128, 64, 4, 8), (128, 256, 64, 3, 8), (256, 128, 64, 3, 8),
             (64, 128, 64, 4, 4), (64, 256, 64, 3, 8), (128, 128, 64, 3, 4), (128, 128, 128, 2, 8)],
}  # fmt: skip

HOPPER_STAGES = {8: 12, 16: 11, 32: 10, 64: 8}  # the most that shared memory holds, by rows of x in a tile


def launches(use: Use, rows: int) -> Iterator[AnyLaunch]:
    """List what races for that many rows per expert."""
    if rows <= FEW:
        heights = (8, 16) if rows <= 2 else (16,) if rows <= 4 else (16, 32)
        for tokens, tile, copied in product(heights, STREAMING[use], (False, True)):
            yield GroupedLaunch(tokens, *tile, copied, early=True)
    if rows <= 4 * FEW:
        for tokens, stages in HOPPER_STAGES.items():
            if tokens >= rows and (tokens <= 4 * rows or tokens <= 16):
                yield from (HopperStreamedLaunch(tokens, fewer) for fewer in (stages, stages // 2))
    if rows >= FEW:
        yield from (HopperGroupedLaunch(stages) for stages in (3, 4))
        for whole, copied in product(SHARED[use], (False, True)):
            if whole[0] <= 4 * rows:
                yield GroupedLaunch(*whole, copied)


def refined(best: AnyLaunch) -> list[AnyLaunch]:
    """List one of the best launches with another start."""
    return [] if isinstance(best, HopperLaunch) else [best._replace(early=not best.early)]


def fits(use: Use, launch: AnyLaunch, shape: Shape, device: torch.device) -> bool:
    """Whether it has its shared memory, and the copy engine where it needs that."""
    able = capability(device)
    if isinstance(launch, HopperLaunch):
        return suits_hopper(able, shape.matrix(use)[1], 2)
    room = able.shared_memory - 2048 >= launch.shared_bytes(gated=use == "up")
    return room and (not launch.copied or able >= (9, 0))


def contenders(use: Use, rows: int, shape: Shape, device: torch.device, kinds: frozenset[str]) -> list[AnyLaunch]:
    """List all contenders that are of these kinds, beginning with the engine's choice."""
    chosen = choose_launch(
        use, rows * shape.experts, shape.experts, *shape.matrix(use), dtype_of(device), use == "up", device
    )
    raced = [each for each in launches(use, rows) if fits(use, each, shape, device)]
    return [each for each in dict.fromkeys([chosen, *raced]) if stored_form(each)["kind"] in kinds]


# -- a cell: one product with a number of rows per expert --------------------------------------------------------------


def dtype_of(device: torch.device) -> torch.dtype:
    """The interpreter's products of bfloat16 are wrong."""
    return torch.bfloat16 if device.type == "cuda" else torch.float16


class Routed(NamedTuple):
    """Rows and their dispatch."""

    x: Tensor
    chosen: Tensor
    plan: Dispatch

    @property
    def experts(self) -> int:
        """Experts that some row chose."""
        return int(self.chosen.unique().numel())


class Race:
    """A shape's weights on a device: two sets, so that none is found in the cache."""

    def __init__(self, device: torch.device, shape: Shape, kinds: frozenset[str]) -> None:
        self.device, self.shape, self.kinds, self.on_gpu = device, shape, kinds, device.type == "cuda"
        self.dtype = dtype_of(device)
        experts, _, hidden, width = shape
        heights = {"up": (2 * experts * width, hidden), "down": (experts * hidden, width)}
        self.weights = {use: [self.noise(*heights[use]).div_(heights[use][1] ** 0.5) for _ in range(2)] for use in USES}

    def noise(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=self.dtype, device=self.device).normal_()

    def routed(self, rows: int, width: int) -> Routed:
        """Rows that choose at random: of `width` values, or in sorted order for the second product."""
        tokens = self.shape.tokens(rows)
        chosen = torch.rand(tokens, self.shape.experts, device=self.device).topk(self.shape.chosen).indices.int()
        count = tokens if width == self.shape.hidden else chosen.numel()
        return Routed(self.noise(count, width), chosen.contiguous(), dispatch(chosen.contiguous(), self.shape.experts))

    def microseconds(self, rows: int, launches: Sequence[Callable[[], Any]]) -> float:
        if not self.on_gpu:
            start = time.perf_counter()
            launches[0]()
            return 1e6 * (time.perf_counter() - start)
        with early_launches(capability(self.device).starts_early):
            return graph_microseconds([*launches] * (4 if rows <= FEW else 1))


def multiplied(use: Use, given: Routed, weight: Tensor, launch: AnyLaunch | None) -> Tensor:
    """Compute a product. launch: None is torch's, of the second one alone."""
    if launch is None:
        stacked = weight.unflatten(0, (given.plan.experts, -1)).transpose(1, 2)
        return torch._grouped_mm(given.x, stacked, offs=given.plan.starts[1:])
    if use == "up":
        return up_product(given.x, weight, given.plan, "silu", launch=launch)
    return down_product(given.x, weight, given.plan, launch=launch)


def measure(race: Race, use: Use, rows: int) -> dict[str, Any]:
    """Race all launches of a product."""
    n, k = race.shape.matrix(use)
    given, weights = [race.routed(rows, k) for _ in range(2)], race.weights[use]
    first = given[0].x, weights[0], given[0].plan
    expected = up_reference(*first, "silu") if use == "up" else down_reference(*first)

    def timed(launch: AnyLaunch | None) -> float:
        with poisoned():
            out = multiplied(use, given[0], weights[0], launch)
        if launch is not None and not (off := error(out, expected)) < TOLERANCE:
            raise ArithmeticError(f"off by {off:.2g}")
        each = [partial(multiplied, use, some, weight, launch) for some, weight in zip(given, weights, strict=True)]
        return race.microseconds(rows, each)

    entrants = contenders(use, rows, race.shape, race.device, race.kinds)
    raced: dict[str, AnyLaunch | None] = {name_of(each): each for each in entrants}
    if use == "down" and rows > FEW:
        raced[LIBRARY] = None
    times, failed = racing.race({name: partial(timed, each) for name, each in raced.items()})
    best = [launch_named(name) for name in times if name != LIBRARY][:2]
    more = [each for launch in best for each in refined(launch)]
    more_times, more_failed = racing.race({name_of(each): partial(timed, each) for each in more})
    times, failed = dict(sorted((times | more_times).items(), key=lambda entry: entry[1])), failed + more_failed
    moved = sum(each.experts for each in given) / 2 * n * k * 2 * (2 if use == "up" else 1)
    operations = 2 * rows * race.shape.experts * n * k * (2 if use == "up" else 1)
    return {
        "use": use, "rows": rows, "tokens": race.shape.tokens(rows), "n": n, "k": k, "bytes": moved,
        "operations": operations, "chosen": name_of(entrants[0]), "failed": failed, "times": times,
    }  # fmt: skip


def measure_whole(race: Race, rows: int, fastest: dict[Use, list[AnyLaunch]]) -> dict[str, Any]:
    """Time the sorting alone, and all three launches after each other, with the fastest launches of both products: how
    much of a second product's beginning the end of the first one hides is seen only here.
    """
    given = [race.routed(rows, race.shape.hidden) for _ in range(2)]

    def mixture(routed: Routed, up: Tensor, down: Tensor, ups: AnyLaunch, downs: AnyLaunch) -> Tensor:
        plan = dispatch(routed.chosen, race.shape.experts)
        features = up_product(routed.x, up, plan, "silu", launch=ups)
        return down_product(features, down, plan, launch=downs)

    def timed(ups: AnyLaunch, downs: AnyLaunch) -> float:
        operands = zip(given, race.weights["up"], race.weights["down"], strict=True)
        return race.microseconds(rows, [partial(mixture, *each, ups, downs) for each in operands])

    pairs = list(product(fastest["up"], fastest["down"]))
    times, failed = racing.race({f"{name_of(up)} {name_of(down)}": partial(timed, up, down) for up, down in pairs})
    sorting = [partial(dispatch, each.chosen, race.shape.experts) for each in given]
    return {"rows": rows, "dispatch": race.microseconds(rows, sorting), "failed": failed, "times": times}


def name_of(launch: AnyLaunch) -> str:
    return json.dumps(stored_form(launch))


def launch_named(name: str) -> AnyLaunch:
    return launch_of(json.loads(name))


def fastest_of(entry: dict[str, Any], count: int = 1) -> list[AnyLaunch]:
    """The fastest launches of ours in a product's results."""
    return [launch_named(name) for name in entry["times"] if name != LIBRARY][:count]


def fastest_pair(entry: dict[str, Any]) -> dict[Use, AnyLaunch]:
    """Both launches of the fastest mixture."""
    up, down = next(iter(entry["times"])).split("} ")
    return {"up": launch_named(up + "}"), "down": launch_named(down)}


# -- what is shown and stored ------------------------------------------------------------------------------------------


def shown(found: dict[str, Any]) -> str:
    """Format a line per number of rows: each product's µs, GB/s, TFLOP/s and fastest launch, and the whole."""
    lines = [f"{found['device']}, torch {found['torch']}, triton {found['triton']}"]
    failed: list[str] = []
    for name, cells in found["shapes"].items():
        for key, entry in cells.items():
            failed += entry["failed"]
            if not entry["times"]:
                lines.append(f"{name} {key}: nothing ran")
                continue
            if key.startswith("whole"):
                took, chosen = next(iter(entry["times"].values())), fastest_pair(entry)
                each = ", ".join(f"{use} {stored_form(launch)}" for use, launch in chosen.items())
                lines.append(f"{name} {key}: dispatch {entry['dispatch']:.1f} us, mixture {took:.1f} us, {each}")
                continue
            best = fastest_of(entry)[0]
            took, library = entry["times"][name_of(best)], entry["times"].get(LIBRARY)
            beside = f", torch's {library:.1f} us" if library else ""
            lines.append(
                f"{name} {key} ({entry['tokens']} tokens): {took:.1f} us, {entry['bytes'] / took / 1e3:.0f} GB/s, "
                f"{entry['operations'] / took / 1e6:.0f} TFLOP/s{beside}, {stored_form(best)}"
            )
    return "\n".join([*lines, f"{len(failed)} launches failed", *(f"  {each}" for each in failed[:5])])


def table(found: dict[str, Any]) -> str:
    """Return the text of a device's file: for each use, a line per fully measured matrix."""
    members = []
    for use in USES:
        lines = []
        for cells in found["shapes"].values():
            wholes = [whole for rows in ROWS if (whole := cells.get(f"whole {rows}")) and whole["times"]]
            if len(wholes) == len(ROWS):
                stored = [stored_form(fastest_pair(whole)[use]) for whole in wholes]
                n, k = (cells[f"{use} {ROWS[0]}"][size] for size in ("n", "k"))
                lines.append(json.dumps({"n": n, "k": k, "launches": stored}))
        members.append(f'"{use}": {racing.one_per_line(lines, 4)}')
    return racing.table_text(found, ROWS, "schemes", racing.one_per_line(members, 2, "{}"))


# -- the command -------------------------------------------------------------------------------------------------------


class Compilation(NamedTuple):
    """The properties that a compiled kernel depends on."""

    device: str
    shape: Shape
    use: Use
    launch: AnyLaunch


def compile_one(task: Compilation) -> None:
    device = torch.device(task.device)
    (n, k), experts = task.shape.matrix(task.use), task.shape.experts
    dtype = dtype_of(device)
    weight = torch.empty(experts * n * (2 if task.use == "up" else 1), k, dtype=dtype, device=device)
    chosen = torch.zeros(1, task.shape.chosen, dtype=torch.int32, device=device)
    given = Routed(torch.zeros(task.shape.chosen, k, dtype=dtype, device=device), chosen, dispatch(chosen, experts))
    with early_launches(capability(device).starts_early):
        multiplied(task.use, given, weight, task.launch)


def compilations(device: torch.device, shape: Shape, rows: list[int], kinds: frozenset[str]) -> list[Compilation]:
    found = dict[Compilation, None]()
    for use, each in product(USES, rows):
        for launch in contenders(use, each, shape, device, kinds):
            found[Compilation(str(device), shape, use, launch)] = None
    return list(found)


def measured(race: Race, rows: list[int], cells: dict[str, Any], until: float) -> Iterator[None]:
    """Measure what `cells` lacks, and yield whenever it has more."""
    for each in rows:
        if time.monotonic() > until:
            print("out of time: run it again for the rest", flush=True)
            return
        start = time.monotonic()
        for use in USES:
            if f"{use} {each}" not in cells:
                cells[f"{use} {each}"] = measure(race, use, each)
                yield
        fastest = {use: fastest_of(cells[f"{use} {each}"], 2) for use in USES}
        if all(fastest.values()) and f"whole {each}" not in cells:
            cells[f"whole {each}"] = measure_whole(race, each, fastest)
            yield
        print(f"{each} rows per expert: {time.monotonic() - start:.1f} s", flush=True)


def arguments() -> argparse.ArgumentParser:
    parser = racing.arguments(__doc__)
    parser.add_argument("--shapes", default="qwen3-30b-a3b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="per expert")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of launches")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="unknown", help="the commit being measured, as `git rev-parse` prints it")
    parser.add_argument("--seconds", type=float, default=240, help="begin nothing more after this time")
    parser.add_argument("--table", type=Path, help="measure nothing: write the device's file from these results")
    parser.add_argument("--show", type=Path, help="measure nothing: print these results")
    return parser


def main() -> int:
    options = racing.options_of(arguments())
    if options.table:
        racing.write_table(options.table, FILES, table)
        return 0
    if options.show:
        print(shown(json.loads(options.show.read_text())))
        return 0
    device, until = resolve_device(options.device), time.monotonic() + options.seconds
    found: dict[str, Any] = racing.device_facts(device) | {"commit": options.commit, "shapes": {}}
    if options.out.exists():
        found["shapes"] = json.loads(options.out.read_text())["shapes"]
    rows, kinds = [int(each) for each in options.rows.split(",")], frozenset(options.kinds.split(","))
    torch.manual_seed(0)
    with torch.inference_mode():
        for name in options.shapes.split(","):
            shape = SHAPES[name]
            if options.workers:
                racing.compile_in_processes(compile_one, compilations(device, shape, rows, kinds), options.workers)
            for _ in measured(Race(device, shape, kinds), rows, found["shapes"].setdefault(name, {}), until):
                options.out.write_text(json.dumps(found))
    print(shown(found))
    return 1 if any(entry.get("failed") for cells in found["shapes"].values() for entry in cells.values()) else 0


if __name__ == "__main__":
    sys.exit(ran(main))
