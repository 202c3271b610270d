"""Race forms of decode attention over keys and values of 8 bits: how they are multiplied, and the shape of the launch.

    PYTHONPATH=src:. python3 benchmarks/kernels/fp8_decode.py --out "$OUT"/fp8_decode.json
    PYTHONPATH=src:. python3 benchmarks/kernels/fp8_decode.py --out /tmp/quick.json --quick    # no GPU: checks alone

Every contender is first checked against torch, in float64, on sequences of several lengths; one that is wrong is not
timed. Only useful bytes count, keys, values and scales of real positions, each once. A time is one layer's, of launches
inside a CUDA graph over layers that together exceed the L2 cache. `EIGHT_BITS` in `gradus.kernels.attention.launch` is
chosen from the results.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

if "--quick" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # decided when Triton is imported

import torch
from torch import Tensor

from benchmarks.kernels import racing
from gradus.bench.measure.gpu import graph_microseconds
from gradus.bench.run.script import need_triton, ran
from gradus.models.precision import resolve_device

if __name__ == "__main__":
    need_triton()

from benchmarks.kernels import paged_attention
from benchmarks.kernels.paged_attention import PROCESSORS, Shape, Step
from gradus.attention.triton_paged import FUSED_ROPE_WIDTH
from gradus.kernels.attention.launch import SMALLEST_TILE, Launch
from tests.kernels import cases

SHAPES = (
    Shape("llama-3.1-8b fp8", 8, 4, 128, fp8=True),
    Shape("llama-3.2-1b fp8", 8, 4, 64, fp8=True),
)
STEPS = ((64, 4096), (8, 32768), (16, 8192), (1, 120_000))  # sequences, positions of each
POOL = 3 << 30  # bytes of random keys and values
REPEATS = 4  # of all layers, in one graph: starting it should weigh little

BASELINE = Launch(SMALLEST_TILE, 128, 4, 2, 4, PROCESSORS)  # as shipped before this race
# keys, warps, stages, and the programs per multiprocessor that splitting may aim at, where as many fit
TILES = (
    (128, 4, 2, (4,)),
    (128, 4, 3, (4,)),
    (128, 2, 2, (4,)),
    (64, 2, 2, (6,)),
    (64, 2, 3, (4, 8)),
    (64, 4, 3, (4,)),
    (64, 1, 3, (4, 8)),
    (32, 1, 4, (4, 8)),
    (32, 1, 5, (4, 8)),
)
FORMS = ({}, {"ahead": True}, {"late": True}, {"ahead": True, "late": True})  # of products in float16
LIMIT = 5e-3  # relative error of a row: weights and the result are rounded to bfloat16 or float16
LIMIT_TURNED = 1e-2  # where queries and new keys are rotated and rounded as well


def kernels() -> Iterator[Launch]:
    """List the launches that differ in their kernel."""
    yield BASELINE
    for keys, warps, stages, live in TILES:
        for form in FORMS:
            yield Launch(SMALLEST_TILE, keys, warps, stages, max(live), PROCESSORS, fits=max(live), halves=True, **form)


def contenders(kernel: Launch) -> Iterator[Launch]:
    """List the launches of one kernel, by the programs per multiprocessor that splitting aims at."""
    tile = kernel.keys, kernel.warps, kernel.stages
    most = next((live for *other, live in TILES if tuple(other) == tile), (kernel.live,))
    yield from (replace(kernel, live=live) for live in ([kernel.live] if kernel == BASELINE else most))


def name_of(launch: Launch) -> str:
    """Name a contender, like "64 keys, 2 warps, 3 stages, live 4, halves, ahead"."""
    forms = [form for form in ("halves", "ahead", "late") if getattr(launch, form)]
    return ", ".join(
        [f"{launch.keys} keys", f"{launch.warps} warps", f"{launch.stages} stages", f"live {launch.live}", *forms]
    )


def compile_one(task: tuple[Shape, Launch]) -> None:
    shape, launch = task
    Step.pool = torch.zeros(1 << 25, dtype=paged_attention.E4M3, device="cuda")
    Step(shape, [1], [65]).plan([launch])


# -- checking ----------------------------------------------------------------------------------------------------------


class Check:
    """A step with values of every sign and scales that differ, and what torch makes of it in float64."""

    def __init__(self, shape: Shape, device: str) -> None:
        self.turns = shape.head_dim <= FUSED_ROPE_WIDTH
        spans, heads = [(1, 4133), (1, 1), (1, 700), (1, 0), (1, 129)], shape.kv_heads
        if device == "cpu":  # interpreted: a program takes tens of milliseconds
            spans, heads = [(1, 150), (1, 1), (1, 0)], 1
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.step = cases.Step(
            spans, heads=heads, group=shape.group, head_dim=shape.head_dim, dtype=dtype, device=device, fp8=True
        )
        self.step.q = self.step.q.bfloat16().to(dtype)
        self.step.scales[1][:, :, ::3] *= 2.0**20  # some values outweigh others
        self.expected = self.step.expected()

    def error_of(self, launch: Launch) -> float:
        """Return the largest relative error of a row. Raises ValueError if it is more than rounding explains."""
        found = worst_row(self.step.attend(launch), self.expected)
        if not found <= LIMIT:
            raise ValueError(f"relative error {found:.2g}, at most {LIMIT} is rounding")
        if self.turns:
            fresh = replace(self.step)  # its keys are written to
            (out, expected), *_ = fresh.attend_to_new_tokens(launch, norms=False)
            turned = worst_row(out, expected)
            if not turned <= LIMIT_TURNED:
                raise ValueError(f"relative error {turned:.2g} with new tokens, at most {LIMIT_TURNED} is rounding")
        return found


def worst_row(out: Tensor, expected: Tensor) -> float:
    """Return the largest relative error of a row; NaN if one was not written."""
    off, size = ((part.double()).norm(dim=-1) for part in (out.double() - expected, expected))
    return float((off / size.clamp(min=1e-30)).max())


# -- timing ------------------------------------------------------------------------------------------------------------


def microseconds(step: Step, launch: Launch) -> float:
    """Time one layer of a step of decodes."""
    [work] = step.plan([launch])
    partials = step.partials([work])
    layers = [partial(step.attend, index, work, partials) for index in range(len(step.keys))]
    return graph_microseconds(layers * REPEATS)


def timed(shape: Shape, launches: list[Launch]) -> Iterator[dict[str, Any]]:
    """Time all launches on each step; one row per step, fastest launch first."""
    for count, length in STEPS:
        step = Step(shape, [1] * count, [length] * count)
        times, failed = racing.race({launch: partial(microseconds, step, launch) for launch in launches})
        ours = times[BASELINE]
        print(f"\n{shape.name}, decode {count} x {length}: baseline {ours:.1f} us, {gb_s(step, ours):.0f} GB/s")
        for launch, us in [*times.items()][:10]:
            print(f"  {us:8.1f} us {gb_s(step, us):6.0f} GB/s {ours / us:5.2f} x  {name_of(launch)}", flush=True)
        yield {
            "shape": shape.name, "step": f"decode {count} x {length}", "bytes": step.bytes, "baseline_us": ours,
            "launches": [
                {"name": name_of(launch), "us": round(us, 2), "gb_s": round(gb_s(step, us), 1)}
                for launch, us in times.items()
            ],
            "failed": failed,
        }  # fmt: skip


def gb_s(step: Step, us: float) -> float:
    return step.bytes / us / 1e3


def over_all(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Rate each launch by the product of its speedups over the baseline, on all steps of one shape; the best first."""
    rates: dict[str, float] = {}
    for row in rows:
        for entry in row["launches"]:
            rates[entry["name"]] = rates.get(entry["name"], 1.0) * (row["baseline_us"] / entry["us"]) ** (1 / len(rows))
    whole = {name: rate for name, rate in rates.items() if all(name in names_in(row) for row in rows)}
    return dict(sorted(whole.items(), key=lambda entry: -entry[1]))


def names_in(row: dict[str, Any]) -> set[str]:
    return {entry["name"] for entry in row["launches"]}


def random_pool() -> Tensor:
    """Draw numbers of e4m3 with either sign, none NaN."""
    drawn = torch.empty(POOL, dtype=torch.uint8, device="cuda").random_(0, 254)
    return drawn.add_(drawn > 126).view(paged_attention.E4M3)  # 127 and 255 are NaN


def write(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    parser = racing.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="check the forms of one tile, interpreted on the CPU")
    options = racing.options_of(parser)
    device = resolve_device("cpu" if options.quick else "cuda")
    every = [*kernels()]
    if options.quick:  # fewer programs, too: each takes tens of milliseconds
        every = [replace(launch, processors=1) for launch in every if (launch.keys, launch.stages) == (64, 3)][:4]
    if not options.quick:
        racing.compile_in_processes(compile_one, [(shape, each) for shape in SHAPES for each in every], options.workers)
    results: dict[str, Any] = racing.device_facts(device) | {"rows": [], "over_all": {}, "errors": {}}
    for shape in SHAPES:
        check = Check(shape, device.type)
        errors, wrong = racing.race({launch: partial(check.error_of, launch) for launch in every})
        results["errors"][shape.name] = {name_of(launch): error for launch, error in errors.items()}
        worst = max(errors.values(), default=float("nan"))
        print(f"{shape.name}: {len(errors)} of {len(every)} right, error at most {worst:.2g}", flush=True)
        results.setdefault("wrong", {})[shape.name] = wrong
        if not options.quick:
            Step.pool = random_pool() if Step.pool is None else Step.pool
            launches = [launch for kernel in every if kernel in errors for launch in contenders(kernel)]
            rows = [*timed(shape, launches)]
            results["rows"] += rows
            results["over_all"][shape.name] = found = over_all(rows)
            print(f"\n{shape.name}, over all steps:")
            for name, rate in [*found.items()][:10]:
                print(f"  {rate:5.2f} x  {name}", flush=True)
        write(options.out, results)


if __name__ == "__main__":
    sys.exit(ran(main))
