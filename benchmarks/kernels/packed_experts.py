"""Check the products of experts in fewer bits, and race their launches.

    PYTHONPATH=src:. python3 benchmarks/kernels/packed_experts.py --out "$OUT"/packed_experts.json
    PYTHONPATH=src:. python3 benchmarks/kernels/packed_experts.py --show packed_experts.json

Tokens choose their experts at random. For each form, shape and number of tokens, each launch of both products is
checked against the torch reference, into memory full of NaN, and timed, with as many sets of weights in turn as exceed
the L2 cache; then the mixture that the engine would launch: route, both products, combine. At the end come the fastest
launches as entries of `FASTEST` in `src/gradus/kernels/experts/packed_launch.py`. Results are written as they come;
what OUT has already is not measured again, and after `--seconds` the rest is left for the next call.

GB/s counts the bytes of the experts that some token chose, once.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
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

from benchmarks.kernels.grouped_experts import SHAPES, Shape
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.core.view import view
from gradus.kernels.experts.combine import combine
from gradus.kernels.experts.dispatch import dispatch
from gradus.kernels.experts.launches import MOST_FEW
from gradus.kernels.experts.packed import Rows, packed_down, packed_up
from gradus.kernels.experts.packed_launch import PackedLaunch, launch_of
from gradus.kernels.experts.reference import dispatch_reference, down_reference, up_reference
from gradus.kernels.experts.routing import Routed, route
from gradus.kernels.fuse import model as twins  # noqa: F401  # names them
from gradus.kernels.fuse.experts import form_of_part
from gradus.models.config import Experts
from gradus.models.layers import Linear, MatrixId
from gradus.quantization.fp8 import Fp8BlockLinear
from gradus.quantization.linear import QuantizedLinear
from gradus.quantization.schemes import STORED

CASES = "mxfp4:gpt-oss-20b,fp8-block:qwen3-30b-a3b,int4:qwen3-30b-a3b"
TOKENS = (1, 8, 64, 512, 4096)
TOLERANCE = 8e-3  # of ‖out - reference‖ / ‖reference‖, in bfloat16
CACHE = 60 << 20  # bytes
USES = ("up", "down")
CHECKED = 512  # tokens: the reference takes long for more


class Case(NamedTuple):
    scheme: str
    name: str

    @property
    def shape(self) -> Shape:
        return SHAPES[self.name]


def stack(case: Case, use: str, device: torch.device) -> Linear:
    """Random weights of a stack."""
    experts, (n, k) = case.shape.experts, case.shape.matrix("up" if use == "up" else "down")
    parts = (experts * n,) * (2 if use == "up" else 1)
    shape: Any = MatrixId("experts_up" if use == "up" else "experts_down", 0), k, parts, False, torch.bfloat16, device
    linear = Fp8BlockLinear(*shape, experts=experts) if case.scheme == "fp8-block" else STORED[case.scheme](*shape)
    for start in range(0, sum(parts), n):
        linear.assign("weight", start, torch.empty(n, k, device=device).normal_(0, k**-0.5))
    return view(linear)  # type: ignore[return-value]


def launches(case: Case, use: str, tokens: int) -> list[PackedLaunch]:
    """List the launches that race for that many tokens."""
    fixed = case.scheme != "mxfp4"
    each = tokens if tokens <= MOST_FEW else -(-tokens * case.shape.chosen // case.shape.experts)
    heights = [8, 16] if each <= 8 else [max(16, 1 << (each - 1).bit_length())] if each <= 64 else [64, 128]
    heights = [min(height, 128) for height in heights]
    wide = (128,) if fixed else (64, 128, 256) if each <= 16 else (64, 128)
    tiles = [(32, 2), (64, 4), (64, 8), (128, 8)] if each <= 16 else [(64, 4), (128, 4), (128, 8)]
    stages = (2, 4) if each <= 16 else (2, 3)
    return [PackedLaunch(height, rows, columns, stage, warps)
            for height, (rows, warps), columns, stage in product(heights, tiles, wide, stages)]  # fmt: skip


class Race:
    """A case's weights: for each product, as many sets as exceed the cache."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device, self.on_gpu = case, device, device.type == "cuda"
        self.dtype = torch.bfloat16 if self.on_gpu else torch.float16
        self.sets = {use: self._sets(use) for use in USES}
        self.experts = Experts(case.shape.experts, case.shape.chosen, case.shape.width)

    def _sets(self, use: str) -> list[Linear]:
        first = stack(self.case, use, self.device)
        chosen = sum(each.nbytes for each in first.parameters()) * self.case.shape.chosen // self.case.shape.experts
        return [first, *(stack(self.case, use, self.device) for _ in range(racing.copies(chosen, CACHE) - 1))][:6]

    def rows(self, tokens: int) -> Rows:
        experts = self.case.shape.experts
        chosen = torch.rand(tokens, experts, device=self.device).topk(self.case.shape.chosen).indices.int().contiguous()
        return Rows(chosen, experts, dispatch(chosen, experts) if tokens > MOST_FEW else None)

    def noise(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=self.dtype, device=self.device).normal_()

    def microseconds(self, runs: list[Callable[[], Any]]) -> float:
        if not self.on_gpu:
            start = time.perf_counter()
            runs[0]()
            return 1e6 * (time.perf_counter() - start)
        with early_launches(capability(self.device).starts_early):
            return graph_microseconds(runs)


def multiplied(use: str, x: Tensor, matrix: Linear, rows: Rows, launch: PackedLaunch | None) -> Tensor:
    form = form_of_part(matrix)
    return packed_up(x, form, rows, "silu", launch=launch) if use == "up" else packed_down(x, form, rows, launch=launch)


def expected(use: str, x: Tensor, matrix: Linear, rows: Rows) -> Tensor:
    """Compute a product by the reference, with rows where the kernel writes them."""
    assert isinstance(matrix, QuantizedLinear)
    plan, wide, few = dispatch_reference(rows.chosen, rows.experts), matrix.dequantized().to(x.dtype), rows.plan is None
    if use == "down":
        return down_reference(x[plan.pairs.long()] if few else x, wide, plan)
    found = up_reference(x, wide, plan, "silu")
    return torch.empty_like(found).index_copy_(0, plan.pairs.long(), found) if few else found


def measure(race: Race, use: str, tokens: int) -> dict[str, Any]:
    """Race all launches of a product."""
    shape, matrices = race.case.shape, race.sets[use]
    n, k = shape.matrix("up" if use == "up" else "down")
    rows, x = race.rows(tokens), race.noise(tokens if use == "up" else tokens * shape.chosen, k)
    reference = expected(use, x, matrices[0], rows) if tokens <= CHECKED else None

    def timed(launch: PackedLaunch) -> float:
        with poisoned():
            out = multiplied(use, x, matrices[0], rows, launch)
        if reference is not None and not (off := error(out, reference)) < TOLERANCE:
            raise ArithmeticError(f"off by {off:.2g}")
        return race.microseconds([partial(multiplied, use, x, each, rows, launch) for each in matrices])

    rule = launch_of(form_of_part(matrices[0]), n, k, rows.at_most, 2)
    times, failed = racing.race({each: partial(timed, each) for each in {rule: 0} | dict.fromkeys(
        launches(race.case, use, tokens))})  # fmt: skip
    stored = sum(each.nbytes for each in matrices[0].parameters())
    moved = stored * int(rows.chosen.unique().numel()) / shape.experts
    return {"tokens": tokens, "at_most": rows.at_most, "n": n, "k": k, "bytes": moved, "rule": rule, "failed": failed,
            "times": [[list(launch), took] for launch, took in times.items()]}  # fmt: skip


def whole(race: Race, tokens: int) -> float:
    """Time a mixture behind its router's logits, with the engine's launches."""
    logits, x = race.noise(tokens, race.case.shape.experts), race.noise(tokens, race.case.shape.hidden)

    def mixture(up: Linear, down: Linear) -> Tensor:
        chosen, weights = route(Routed(logits, race.experts))
        plan = dispatch(chosen, race.experts.count) if tokens > MOST_FEW else None
        rows = Rows(chosen, race.experts.count, plan)
        return combine(multiplied("down", multiplied("up", x, up, rows, None), down, rows, None), weights)

    pairs = zip(race.sets["up"] * 6, race.sets["down"] * 6, strict=False)
    return race.microseconds([partial(mixture, *each) for each in list(pairs)[:6]])


def shown(found: dict[str, Any]) -> str:
    """A line per cell, and the fastest launches as entries of FASTEST."""
    lines, fastest = [f"{found['device']}, torch {found['torch']}, triton {found['triton']}"], {}
    for case, cells in found["cases"].items():
        for key, entry in cells.items():
            if isinstance(entry, float):
                lines.append(f"{case} {key}: {entry:.1f} us")
            elif entry["times"]:
                launch, took = entry["times"][0]
                rule = next(time for each, time in entry["times"] if each == list(entry["rule"]))
                rate = entry["bytes"] / took / 1e3
                lines.append(f"{case} {key}: {took:.1f} us, {rate:.0f} GB/s, {launch} (the rule's {rule:.1f} us)")
                place = case.partition(":")[0], entry["n"], entry["k"]
                fastest.setdefault(place, {})[entry["at_most"]] = f"PackedLaunch({', '.join(map(str, launch))})"
            lines += [f"  failed: {each}" for each in entry["failed"][:3]] if isinstance(entry, dict) else []
    for place, launch in fastest.items():
        members = ", ".join(f"{rows}: {name}" for rows, name in sorted(launch.items()))
        lines.append(f"    {place!r}: {{{members}}},".replace("'", '"'))
    return "\n".join(lines)


class Compilation(NamedTuple):
    device: str
    case: Case
    use: str
    tokens: int
    launch: PackedLaunch


def compile_one(task: Compilation) -> None:
    """Multiply by a stack of one expert's size with this launch: the kernel depends on nothing else."""
    device, shape = torch.device(task.device), task.case.shape
    race = Race.__new__(Race)
    race.case, race.device, race.dtype = task.case, device, torch.bfloat16
    matrix = stack(task.case, task.use, device)
    tokens, k = task.tokens, shape.matrix("up" if task.use == "up" else "down")[1]
    x = torch.zeros(tokens if task.use == "up" else tokens * shape.chosen, k, dtype=torch.bfloat16, device=device)
    with early_launches(capability(device).starts_early):
        multiplied(task.use, x, matrix, race.rows(tokens), task.launch)


def measured(race: Race, tokens: list[int], cells: dict[str, Any], until: float) -> Iterator[None]:
    for each in tokens:
        for use in USES:
            if time.monotonic() > until:
                print("out of time: run it again for the rest", flush=True)
                return
            if f"{use} {each}" not in cells:
                cells[f"{use} {each}"] = measure(race, use, each)
                yield
        if f"mixture {each}" not in cells:
            cells[f"mixture {each}"] = whole(race, each)
            yield


def arguments() -> argparse.ArgumentParser:
    parser = racing.arguments(__doc__ or "")
    parser.add_argument("--cases", default=CASES, help=f"scheme:shape, of the shapes {', '.join(SHAPES)}")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=150, help="begin nothing more after this time")
    parser.add_argument("--show", type=Path, help="measure nothing: print these results")
    return parser


def main() -> int:
    options = racing.options_of(arguments())
    if options.show:
        print(shown(json.loads(options.show.read_text())))
        return 0
    device, until = resolve_device(options.device), time.monotonic() + options.seconds
    found: dict[str, Any] = racing.device_facts(device) | {"cases": {}}
    if options.out.exists():
        found["cases"] = json.loads(options.out.read_text())["cases"]
    tokens = [int(each) for each in options.tokens.split(",")]
    torch.manual_seed(0)
    with torch.inference_mode():
        for name in options.cases.split(","):
            case, cells = Case(*name.split(":")), found["cases"].setdefault(name, {})
            if options.workers and device.type == "cuda":
                racing.compile_in_processes(compile_one, compilations(case, str(device), tokens), options.workers)
            for _ in measured(Race(case, device), tokens, cells, until):
                options.out.write_text(json.dumps(found))
    print(shown(found))
    cells = [entry for each in found["cases"].values() for entry in each.values() if isinstance(entry, dict)]
    return 1 if any(entry["failed"] for entry in cells) else 0


def compilations(case: Case, device: str, tokens: list[int]) -> list[Compilation]:
    return [
        Compilation(device, case, use, each, launch)
        for use, each in product(USES, tokens)
        for launch in launches(case, use, each)
    ]


if __name__ == "__main__":
    sys.exit(ran(main))
