"""Measure p14: the experts that real text reads, the time of a layer by its rows, and what left-out slices lose.

    PYTHONPATH=src:. python3 benchmarks/lessons/experts_lesson.py --out benchmarks/lessons/experts_lesson.json
    PYTHONPATH=src:. python3 benchmarks/lessons/experts_lesson.py --parts times --device cuda --out experts.json

`choices` and `quality` count and do not depend on the machine; `times` is the only part with a clock. Parts that are
not asked for stay as the file has them.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import ran
from gradus.loading import load_model, open_checkpoint
from gradus.models import MatrixId, Model
from gradus.models.config import Experts
from phases.p07_quantization.quality import inputs_of
from phases.p14_experts.balance import correction, fullest
from phases.p14_experts.dispatch import combine, sort_by_expert
from phases.p14_experts.distinct import expected_distinct
from phases.p14_experts.fitting import lengths, regression
from phases.p14_experts.grouped import grouped, padded, padding
from phases.p14_experts.quality import losses, texts
from phases.p14_experts.router import choose, route

MODEL, COUNT, CHOSEN = "smollm2-135m", 16, 2
LAYERS = (5, 15, 25)  # early, middle, late
USERS, DRAWS = (1, 2, 4, 8, 16, 32, 64), 200
LAYER = {"hidden": 1024, "experts": Experts(32, 8, 512)}  # of Granite 3.1 1B-A400M, in float32
ROWS, RUNS = (1, 2, 4, 8, 16, 32, 64, 256), 15
WARM = 128  # rows that are computed first, and not kept


# -- the experts that real text reads ----------------------------------------------------------------------------------


def choices(model: Model) -> dict[str, Any]:
    """Count by router, corrected or not: the experts that users read, and as many neighbors in one text; and the load
    of the fullest expert. Averages over draws and layers."""
    seen, judged = (inputs_of(model, tokens) for tokens in texts(MODEL))
    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[dict[str, Any]]] = {}
    for number in LAYERS:
        x, y = (each[MatrixId("gate_up", number)] for each in (seen, judged))
        down = model.get_parameter(f"layers.{number}.down.weight")
        routers = {
            "random": torch.randn(COUNT, x.shape[1], generator=generator) * x.shape[1] ** -0.5,
            "fitted": regression(x, lengths(seen[MatrixId("down", number)], down, COUNT)),
        }
        for name, router in routers.items():
            before, after = ((each @ router.T).softmax(-1) for each in (x, y))
            for title, fix in ((name, None), (f"{name}, corrected", correction(before, CHOSEN))):
                found.setdefault(title, []).append(read(choose(after, CHOSEN, fix), generator))
    return {title: averaged(rows) for title, rows in found.items()}


def read(chosen: Tensor, generator: torch.Generator) -> dict[str, Any]:
    """Count the experts that some of the tokens read. chosen: [T, k]."""

    def average(rows: Callable[[int], Tensor], count: int) -> float:
        return sum(len(chosen[rows(count)].unique()) for _ in range(DRAWS)) / DRAWS

    def anywhere(count: int) -> Tensor:
        return torch.randint(len(chosen), (count,), generator=generator)

    def together(count: int) -> Tensor:
        return torch.arange(count) + int(torch.randint(len(chosen) - count, (1,), generator=generator))

    ways = {"users": anywhere, "neighbors": together}
    counted = {name: [average(rows, count) for count in USERS] for name, rows in ways.items()}
    return counted | {"fullest": [fullest(chosen, COUNT)]}


def averaged(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        name: [round(sum(column) / len(rows), 3) for column in zip(*(row[name] for row in rows), strict=True)]
        for name in rows[0]
    }


# -- the time of a layer -----------------------------------------------------------------------------------------------


def times(device: torch.device) -> list[dict[str, Any]]:
    """Time one layer's experts, with rows of noise and a router that balances: milliseconds by the number of rows."""
    experts, hidden = LAYER["experts"], LAYER["hidden"]
    assert isinstance(experts, Experts) and isinstance(hidden, int)
    count, width, dtype = experts.count, experts.width, torch.float32 if device.type == "cpu" else torch.bfloat16
    generator = torch.Generator(device).manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=dtype) * hidden**-0.5

    gates, features = noise(count, width, hidden), noise(count, width, hidden)
    down, router = noise(count, hidden, width), noise(count, hidden)
    found = []
    for rows in (WARM, *ROWS):
        batches = [noise(rows, hidden) * hidden**0.5 for _ in range(RUNS + 1)]
        routed = [route(x @ router.T, experts) for x in batches]

        def expert(number: int, x: Tensor) -> Tensor:
            return (torch.nn.functional.silu(x @ gates[number].T) * (x @ features[number].T)) @ down[number].T

        def by_loop(x: Tensor, starts: list[int]) -> Tensor:
            return grouped(x, starts, expert)

        def by_padding(x: Tensor, starts: list[int]) -> Tensor:
            return padded(x, starts, gates, features, down)

        ways = {"loop": by_loop, "padded": by_padding}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for x, (chosen, weights) in zip(batches, routed, strict=True):
            for name, way in ways.items():
                taken[name].append(timed(lambda: mixed(x, chosen, weights, count, way), device))  # noqa: B023
        starts = [sort_by_expert(chosen, count)[1] for chosen, _ in routed[1:]]
        distinct = [sum(start < end for start, end in pairwise(each)) for each in starts]
        row = {name: [round(each, 4) for each in values[1:]] for name, values in taken.items()}  # the first one warms
        if rows == WARM:
            continue
        found.append({"rows": rows, "read": distinct, "padding": [round(padding(each), 4) for each in starts], **row})
        print(rows, {name: median(row[name]) for name in ways}, flush=True)
    return found


def mixed(x: Tensor, chosen: Tensor, weights: Tensor, count: int, way: Callable[[Tensor, list[int]], Tensor]) -> Tensor:
    """The whole dispatch, with the product that is timed."""
    pairs, starts = sort_by_expert(chosen, count)
    return combine(way(x[pairs // chosen.shape[1]], starts), pairs, weights)


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Milliseconds."""
    start = perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (perf_counter() - start)


# -- what left-out slices lose -----------------------------------------------------------------------------------------


def quality(model: Model) -> Iterator[dict[str, Any]]:
    for chosen, *found in losses(model, *texts(MODEL), COUNT):
        row: dict[str, Any] = {"chosen": chosen}
        for name, (divergence, same, perplexity) in zip(("first", "fitted"), found, strict=True):
            row[name] = {"divergence": round(divergence, 4), "same": round(same, 4), "perplexity": round(perplexity, 2)}
        print(row, flush=True)
        yield row


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--device", default="cpu", help="of `times` (cpu)")
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    found: dict[str, Any] = json.loads(asked.out.read_text("utf-8")) if asked.out.is_file() else {}
    found |= {"commit": asked.commit or commit(), **fingerprint(device, quick=True)}
    if set(asked.parts) & {"choices", "quality"}:
        model = load_model(open_checkpoint(MODEL), dtype=torch.float32, device="cpu")
        found |= {"model": MODEL, "experts": COUNT, "chosen": CHOSEN, "users": USERS}
        found["predicted"] = [round(expected_distinct(COUNT, CHOSEN, users), 3) for users in USERS]
    if "choices" in asked.parts:
        found["choices"] = choices(model)
    if "quality" in asked.parts:
        found["quality"] = list(quality(model))
    if "times" in asked.parts:
        found["times"] = times(device)
    asked.out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


PARTS = ("choices", "times", "quality")

if __name__ == "__main__":
    sys.exit(ran(main))
