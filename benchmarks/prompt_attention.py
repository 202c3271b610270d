"""Time attention of prompts alone: the kernel of every GPU against the one for Hopper, both checked first.

    PYTHONPATH=src:. python3 benchmarks/prompt_attention.py --out benchmarks/prompt_attention.json

The check compares uneven spans after cached prefixes with float64. A time is that of one layer, in a CUDA
graph of several, the median of several replays; pages lie in random order. The file's "shipped" has the results;
its "race" has the variants that were raced before one of them was chosen.
"""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.measure.gpu import graph_microseconds
from gradus.bench.run.script import need_triton, ran
from gradus.models.precision import resolve_device

if __name__ == "__main__":
    need_triton()

from benchmarks.paged_attention import Shape, Step, operations
from gradus.kernels.attention.hopper import HopperPrompts
from gradus.kernels.attention.launch import HOPPER, fills_hopper, launches
from gradus.kernels.attention.paged import paged_attention
from gradus.kernels.attention.reference import paged_attention_reference

SHAPE = Shape("llama-3.1-8b", kv_heads=8, group=4, head_dim=128)
SCALE = SHAPE.head_dim**-0.5
WORST = 0.01  # relative error
# new tokens of each span, and positions with them
UNEVEN = ([37, 200, 64, 129, 300, 16, 257], [37, 200, 1000, 513, 305, 16, 777])
STEPS = {
    "8 x 8192": ([8192] * 8, [8192] * 8),
    "1 x 8192": ([8192], [8192]),
    "4 x 2048": ([2048] * 4, [2048] * 4),
    "1 x 2048": ([2048], [2048]),
    "16 x 512": ([512] * 16, [512] * 16),
    "chunk 2048 at 8192": ([2048], [8192]),
}
Layer = Callable[[int], None]  # attends in one layer


def on_every_gpu(step: Step, processors: int) -> Layer:
    works = step.plan(launches(SHAPE.head_dim, torch.bfloat16, SHAPE.group, processors))
    partials = step.partials(works)

    def attend(layer: int) -> None:
        for work in works:
            pages = step.keys[layer], step.values[layer]
            paged_attention(step.q, *pages, step.tables, work, partials, step.out, scale=SCALE)

    return attend


def on_hopper(step: Step, processors: int) -> Layer:
    prompts = HopperPrompts(list(zip(step.keys, step.values, strict=True)), processors)
    (work,) = step.plan([HOPPER])
    return lambda layer: prompts.attend(layer, step.q, step.tables, work, step.out, SCALE)


KERNELS = {"paged_attention": on_every_gpu, "hopper_attention": on_hopper}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a file for the results; only stdout by default")
    parser.add_argument("--commit", help="of this code; asked of git by default")
    asked = parser.parse_args()
    device = resolve_device("cuda")
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    found: dict[str, Any] = {"commit": asked.commit or commit(), **fingerprint(device, quick=True)}
    found["worst_error"] = {name: worst_error(attend, processors) for name, attend in KERNELS.items()}
    found["rows"] = []
    for name, (counts, lengths) in STEPS.items():
        found["rows"] += measured(name, Step(SHAPE, counts, lengths), processors)
    print(json.dumps(found, indent=1))
    if asked.out:
        before = json.loads(asked.out.read_text()) if asked.out.exists() else {}
        asked.out.write_text(json.dumps(before | {"shipped": found}, indent=1) + "\n")
    assert max(found["worst_error"].values()) < WORST, found["worst_error"]


def worst_error(attend: Callable[[Step, int], Layer], processors: int) -> float:
    """Return the largest relative error of any span's rows."""
    step = Step(SHAPE, *UNEVEN)
    step.out.fill_(float("nan"))
    attend(step, processors)(0)
    starts = torch.tensor([0, *step.counts]).cumsum(0).tolist()
    q, keys, values = (part.double() for part in (step.q, step.keys[0], step.values[0]))
    wanted = paged_attention_reference(
        q, keys, values, step.tables, range(len(step.counts)), starts, step.lengths, scale=SCALE
    ).split(step.counts)
    errors = [
        (rows.double() - right).norm() / right.norm()
        for rows, right in zip(step.out.split(step.counts), wanted, strict=True)
    ]
    return torch.stack(errors).max().item()  # a NaN is the greatest


def measured(name: str, step: Step, processors: int) -> list[dict[str, Any]]:
    """Measure a row per kernel. chosen: whether the engine uses it for this step."""
    hopper = fills_hopper(step.counts, SHAPE.group, SHAPE.kv_heads, processors)
    rows = []
    for kernel, attend in KERNELS.items():
        layer = attend(step, processors)
        us = graph_microseconds([partial(layer, index) for index in range(len(step.keys))])
        row = {"kernel": kernel, "step": name, "us": round(us, 1), "tflop_s": round(operations(step) / us / 1e6, 1)}
        rows.append(row | {"chosen": hopper == (attend is on_hopper)})
    return rows


if __name__ == "__main__":
    sys.exit(ran(main))
