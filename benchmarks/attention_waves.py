"""Into how many parts are a sequence's keys best split, given what runs on the GPU at once?

    PYTHONPATH=src:. python3 benchmarks/attention_waves.py --out benchmarks/attention_waves.json
    PYTHONPATH=src:. python3 benchmarks/attention_waves.py --steps --out benchmarks/attention_waves_steps.json

Decodes, drafts and chunks of prompts, of a few models' heads. First what each compiled kernel takes and how many of its
programs live at once, by our arithmetic and by the driver's. Then the time of one layer for each number of parts that a
rule would choose: the engine's (`chosen`), one to six programs per multiprocessor, and whole waves of live programs.
Results are compared with torch's before anything is timed. `--steps` times whole decode steps of models with random
weights instead, in captured graphs, whose pages lie in random order.
"""

import argparse
import ctypes
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gradus.bench.run.script import need_triton, ran

if __name__ == "__main__":
    need_triton()

import triton

from benchmarks.paged_attention import PAGE, ROOM, Shape, Step
from benchmarks.recorded_step import recorded_step
from gradus import LLM
from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.device.capability import capability, multiprocessors
from gradus.execution.gpu.capturing import replay_ms
from gradus.execution.runner import Runner
from gradus.kernels.attention.launch import Launch, launches
from gradus.kernels.attention.reference import paged_attention_reference
from gradus.kernels.attention.splits import Partials
from gradus.kernels.attention.work import live_programs
from gradus.models.precision import resolve_device

SHAPES = (
    Shape("llama-3.1-8b", 8, 4, 128),
    Shape("llama-3.2-1b", 8, 4, 64),
    Shape("qwen3-0.6b", 8, 2, 128),
    Shape("smollm2-135m", 3, 3, 64),
    Shape("gemma3-1b", 1, 4, 256),
    Shape("gemma3-1b window", 1, 4, 256, window=512),
    Shape("llama-3.1-8b fp8", 8, 4, 128, fp8=True),
)
BATCHES, LENGTHS = (1, 8, 32, 48, 64, 96), (1024, 8192, 32_000)
FACTORS, WAVES = (1, 2, 3, 4, 5, 6), (1, 2, 3, 4)
OTHERS = (([5], 4096), ([5] * 8, 32_000), ([5] * 64, 2048), ([512], 8192), ([2048], 8192))  # new tokens, and length
UNEVEN = ((8, 8000), (32, 2000), (32, 16_000), (60, 2000), (60, 16_000), (200, 4000))  # sequences, and longest
STEP_MODELS = ("random:llama-3.2-1b", "random:llama-3.1-8b")
STEP_CASES = ((8, 32_000, (4, 6, 7, 8, 9, 12)), (1, 32_000, (16, 33, 50, 66)), (8, 1024, (1, 4, 8)))  # and parts
CLOSE = 2e-2
GPU = torch.device("cuda")


# -- one layer ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A compiled kernel's needs. live, driver: programs on a multiprocessor at once, by us and by the driver."""

    registers: int
    shared: int
    warps: int
    live: int
    driver: int


def occupancy(step: Step, launch: Launch) -> Found:
    """Run the step once with this shape, and ask its kernel."""
    kernel = step.launch(launch)
    live, count = live_programs(kernel, capability(GPU)), ctypes.c_int()
    taken = kernel.metadata
    driver(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        ctypes.byref(count), ctypes.c_void_p(kernel.function), 32 * taken.num_warps, ctypes.c_size_t(taken.shared),
    )  # fmt: skip
    return Found(kernel.n_regs, taken.shared, taken.num_warps, live, count.value)


def driver(name: str, *arguments: Any) -> None:
    error = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    assert error == 0, f"{name} answers {error}"


def parts_of(step: Step, launch: Launch) -> int:
    """Count the parts of each tile of equally long spans: chunks are whole steps, so not always what was asked for."""
    items = step.plan([launch])[0].items
    return int(items[items[:, 1] > 0, 7].max())


def in_parts(launch: Launch, parts: int, tiles: int, kv_heads: int) -> Launch:
    """Change a launch so that it splits each of `tiles` equal tiles into `parts` parts."""
    return replace(launch, live=1, processors=parts * tiles * kv_heads, whole=0, adding=1e-3)


def candidates(launch: Launch, tiles: int, keys: int, kv_heads: int, processors: int, live: int) -> list[int]:
    """Numbers of parts to race: what one to six programs per multiprocessor give, rounded down and up, and waves."""
    room = [factor * processors / kv_heads / tiles for factor in FACTORS]
    waves = [wave * live * processors // kv_heads // tiles for wave in WAVES]
    found = {1, 2, 4, 8, *map(math.floor, room), *map(math.ceil, room), *waves}
    return sorted(parts for parts in found if 1 <= parts <= max(1, keys // launch.keys))


def check(shape: Shape) -> None:
    """Against torch, in several numbers of parts."""
    step = Step(shape, [1, 1, 1], [1000, 37, 5000], turns=False)
    choices = shapes_of(shape)
    numbers = [part.tolist() for part in step.numbers]
    expected = paged_attention_reference(
        step.q.float(), step.keys[0].float(), step.values[0].float(), step.tables, *numbers,
        scale=shape.head_dim**-0.5, window=shape.window,
    )  # fmt: skip
    for parts in (1, 3, 8):
        step.launch(in_parts(choices[0], parts, 3, shape.kv_heads))
        error = (step.out.float() - expected).abs().max().item()
        assert error < CLOSE, f"{shape.name} in {parts} parts: {error} from torch's"


def shapes_of(shape: Shape) -> tuple[Launch, ...]:
    return launches(
        shape.head_dim, torch.bfloat16, shape.group, multiprocessors(GPU), capability(GPU), eight_bits=shape.fp8
    )  # fmt: skip


def uneven(shape: Shape) -> Iterator[dict[str, Any]]:
    """Decodes of many lengths: as shipped, and aiming at one to six programs per multiprocessor."""
    launch = shapes_of(shape)[0]
    for batch, longest in UNEVEN if shape.window is None else ():
        lengths = torch.randint(100, longest, (batch,), generator=torch.Generator().manual_seed(batch)).tolist()
        lengths[0] *= 4
        step = Step(shape, [1] * batch, lengths)
        us = {factor: round(step.microseconds([replace(launch, live=factor)]), 2) for factor in FACTORS[:4]}
        as_is = round(step.microseconds([launch]), 2)
        row = {"shape": shape.name, "uneven": batch, "longest": longest, "chosen_us": as_is, "live_us": us}
        print(row, flush=True)
        yield row


def cases(shape: Shape) -> Iterator[tuple[list[int], int]]:
    for batch in BATCHES:
        for length in LENGTHS if shape.window is None else (8192,):
            if 2 * shape.bytes_of(batch * length) < ROOM:
                yield [1] * batch, length
    if shape.window is None:
        yield from OTHERS


def measure(shape: Shape, short: bool) -> Iterator[dict[str, Any]]:
    choices, processors = shapes_of(shape), multiprocessors(GPU)
    if Step.pool is not None and (Step.pool.dtype == torch.bfloat16) == shape.fp8:
        Step.pool = None
    for counts, length in cases(shape):
        if short and len(counts) > 8:
            continue
        launch = next((each for each in choices if each.rows // shape.group >= counts[0]), choices[-1])
        tiles = len(counts) * triton.cdiv(counts[0], launch.rows // shape.group)
        step = Step(shape, counts, [length] * len(counts))
        found, chosen = occupancy(step, launch), parts_of(step, launch)
        keys = min(length, shape.window + counts[0]) if shape.window else length
        tried = candidates(launch, tiles, keys, shape.kv_heads, processors, found.live)
        others = [in_parts(launch, parts, tiles, shape.kv_heads) for parts in tried]
        us = {parts_of(step, other): round(step.microseconds([other]), 2) for other in others}
        as_is = round(step.microseconds([launch]), 2)
        best = min(us, key=us.__getitem__)
        row = {
            "shape": shape.name, "new": counts[0], "batch": len(counts), "keys": length, "tiles": tiles,
            "launch": asdict(launch), **asdict(found), "chosen": chosen, "chosen_us": as_is, "best": best, "us": us,
        }  # fmt: skip
        print(
            f"{shape.name} {len(counts)} x {counts[0]} at {length}: {found.live} live ({found.driver}), "
            f"{chosen} parts {as_is:.1f} us, best {best} {us[best]:.1f} us, {shape.kv_heads * tiles} tiles; {us}",
            flush=True,
        )
        yield row
    if not short:
        yield from uneven(shape)


# -- whole steps -------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def steps(model: str) -> Iterator[dict[str, Any]]:
    """Captured decode steps as shipped, and with other numbers of parts."""
    most = max(batch for batch, _, _ in STEP_CASES)
    longest = max(length for _, length, _ in STEP_CASES)
    llm = LLM(
        model, device="cuda", max_sequences=most, context_length=longest + 2 * PAGE, cache_tokens=most * (longest + 64)
    )
    runner = llm.engine.runner
    assert isinstance(runner, Runner) and runner.graphs is not None
    graphs = runner.graphs
    attention = graphs.step.attention
    shipped = attention.launches
    pages = attention.storage.keys.shape[1] - 1
    needed = triton.cdiv(longest, PAGE)
    for kept in (attention.storage.keys, attention.storage.values):
        kept.normal_()
    for slot, mine in enumerate((torch.randperm(pages, device="cuda") + 1)[: most * needed].split(needed)):
        attention.tables[:, slot, :needed] = mine
    decodes, heads = shipped[0], attention.config.num_kv_heads

    def milliseconds(batch: int, length: int, launch: Launch) -> float:
        attention.launches = (launch, *shipped[1:])
        attention._works.clear()
        attention.partials = Partials(
            attention.launches, kv_heads=heads, head_dim=attention.config.head_dim, device=attention.device
        )
        captured = recorded_step(graphs, range(batch), length)
        return round(min(replay_ms(captured.graph) for _ in range(3)), 3)

    for batch, length, tried in STEP_CASES:
        row: dict[str, Any] = {"model": model, "batch": batch, "keys": length, "launch": asdict(decodes)}
        row["shipped_ms"] = milliseconds(batch, length, decodes)
        row["ms"] = {parts: milliseconds(batch, length, in_parts(decodes, parts, batch, heads)) for parts in tried}
        print(row, flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", action="store_true", help="time whole decode steps")
    parser.add_argument("--short", action="store_true", help="one layer's, with few sequences alone")
    parser.add_argument("--only", default="", help="shapes or models whose name has this in it")
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--out", type=Path, help="a file for the results, beside stdout")
    asked = parser.parse_args()
    machine = fingerprint(resolve_device("cuda"), quick=True)
    found: dict[str, Any] = {"commit": asked.commit or commit(), **machine, "rows": []}
    start = time.perf_counter()
    if not asked.steps:
        for shape in SHAPES:
            if not shape.fp8:  # tests/gpu compares those
                check(shape)
    parts = [partial(steps, model) for model in STEP_MODELS if asked.only in model] if asked.steps else [
        partial(measure, shape, asked.short) for shape in SHAPES if asked.only in shape.name
    ]  # fmt: skip
    for part in parts:
        for row in part():
            found["rows"].append(row)
            if asked.out:
                asked.out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"({time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(ran(main))
