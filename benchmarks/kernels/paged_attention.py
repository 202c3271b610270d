"""Time paged attention alone: the Triton kernels against the memory's bandwidth, or torch's flash attention.

    PYTHONPATH=src:. python3 benchmarks/kernels/paged_attention.py --out "$OUT"/paged_attention.json        # as shipped
    PYTHONPATH=src:. python3 benchmarks/kernels/paged_attention.py --out "$OUT"/paged_attention.json --sweep
    PYTHONPATH=src:. python3 benchmarks/kernels/paged_attention.py --out "$OUT"/paged_attention_fp8.json --fp8

Only useful bytes count: keys and values of real positions, each once. A time is one layer's, measured as in racing.py;
pages lie in random order. `--sweep` also tries other launch shapes: the table in `gradus.kernels.attention.launch` was
made from its results.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.kernels import racing
from gradus.bench.measure.gpu import graph_microseconds
from gradus.bench.run.script import need_triton, ran
from gradus.models.precision import resolve_device
from gradus.quantization.fp8 import E4M3
from gradus.quantization.kv import SCALE

if __name__ == "__main__":
    need_triton()

from gradus.attention.triton_paged import FUSED_ROPE_WIDTH
from gradus.kernels.attention.launch import Launch, launches
from gradus.kernels.attention.paged import paged_attention
from gradus.kernels.attention.splits import Partials
from gradus.kernels.attention.work import Work
from gradus.kernels.rows.passage import Passage

PAGE = 16
CACHE = 400 << 20  # bytes a graph reads at least: several times an H200's L2
ROOM = 20 << 30  # of keys and values in all
PROCESSORS = 132


@dataclass(frozen=True)
class Shape:
    """Attention of a model: key heads, query heads that share one, their width, and whether positions rotate them."""

    name: str
    kv_heads: int
    group: int
    head_dim: int
    rotates: bool = True
    fp8: bool = False  # keys and values in 8 bits

    def bytes_of(self, positions: int) -> int:
        head = self.head_dim * E4M3.itemsize + SCALE.itemsize if self.fp8 else self.head_dim * 2
        return 2 * positions * self.kv_heads * head


SHAPES = (
    Shape("gpt2-124m", 12, 1, 64, rotates=False),
    Shape("qwen3-0.6b", 8, 2, 128),
    Shape("llama-3.2-1b", 8, 4, 64),
    Shape("llama-3.1-8b", 8, 4, 128),
)


# -- a step to time ----------------------------------------------------------------------------------------------------


class Step:
    """Spans of `counts` new tokens and `lengths` in total, over more layers than the cache can hold.

    As in the engine, attention itself rotates and stores heads if all spans are decodes and heads are narrow.
    """

    pool: Tensor | None = None  # random keys and values that every step cuts its own from

    def __init__(self, shape: Shape, counts: list[int], lengths: list[int]) -> None:
        self.shape, self.counts, self.lengths = shape, counts, lengths
        self.bytes = shape.bytes_of(sum(lengths))
        layers = min(64, racing.copies(self.bytes, CACHE))
        needed = [-(-length // PAGE) for length in lengths]
        pages = sum(needed) + 1
        if Step.pool is None:
            Step.pool = random_pool(shape.fp8)
        size = layers * pages * PAGE * shape.kv_heads * shape.head_dim
        assert 2 * size <= len(Step.pool), f"{2 * size} values of {len(Step.pool)}"
        shaped = (layers, pages, PAGE, shape.kv_heads, shape.head_dim)
        self.keys = Step.pool[:size].view(shaped)
        self.values = Step.pool[size : 2 * size].view(shaped)
        scales = torch.ones(2, layers, pages, shape.kv_heads, PAGE, device="cuda") if shape.fp8 else None
        self.scales = None if scales is None else list(zip(*scales, strict=True))
        self.tables = torch.zeros(len(lengths), -(-max(needed) // 16) * 16, dtype=torch.int64, device="cuda")
        order = (torch.randperm(pages - 1, device="cuda") + 1).split(needed)
        for slot, mine in enumerate(order):
            self.tables[slot, : len(mine)] = mine
        heads = shape.kv_heads * shape.group
        self.q = torch.randn(sum(counts), heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.q)
        self.passage: Passage | None = None
        if max(counts) == 1 and shape.head_dim <= FUSED_ROPE_WIDTH:
            angles = torch.randn(max(lengths) + 1, shape.head_dim, device="cuda") if shape.rotates else None
            self.passage = Passage(angles)
            width = (heads + 2 * shape.kv_heads) * shape.head_dim
            self.q = torch.randn(len(counts), width, device="cuda", dtype=torch.bfloat16)
        ends = torch.tensor([0, *counts]).cumsum(0)
        self.numbers = [
            torch.tensor(part, dtype=torch.int32, device="cuda")
            for part in (list(range(len(counts))), ends.tolist(), lengths)
        ]

    def spans(self, choices: Iterable[Launch]) -> Iterator[tuple[Launch, list[int], int]]:
        """Give each span to the first launch whose tile holds it, or to the last, as the backend does.

        Yields (launch, new tokens of its spans, the fewest that it takes).
        """
        choices, fewest = list(choices), 1
        for launch in choices:
            tokens = launch.rows // self.shape.group
            last = launch is choices[-1]
            mine = [count for count in self.counts if count >= fewest and (last or count <= tokens)]
            if mine:
                yield launch, mine, fewest
            fewest = tokens + 1

    def plan(self, choices: Iterable[Launch]) -> list[Work]:
        """Lay out a step whose kernels have been launched before, as the engine has when it starts."""
        spans = list(self.spans(choices))
        works = [
            Work(
                launch, tiles=sum(-(-count // (launch.rows // self.shape.group)) for count in mine),
                group=self.shape.group, kv_heads=self.shape.kv_heads, window=None, device=self.q.device,
            )
            for launch, mine, _ in spans
        ]  # fmt: skip
        partials = self.partials(works)
        for again in (False, True):
            for work, (_, mine, fewest) in zip(works, spans, strict=True):
                work.lay_out(*self.numbers, fewest=fewest, most=max(mine))
                if not again:
                    self.attend(0, work, partials)
        return works

    def microseconds(self, choices: Iterable[Launch]) -> float:
        works = self.plan(choices)
        partials = self.partials(works)

        def layer(index: int) -> None:
            for work in works:
                self.attend(index, work, partials)

        return graph_microseconds([partial(layer, index) for index in range(len(self.keys))])

    def attend(self, index: int, work: Work, partials: Partials) -> None:
        paged_attention(
            self.q, self.keys[index], self.values[index], self.tables, work, partials, self.out,
            scale=self.shape.head_dim**-0.5, passage=self.passage,
            scales=self.scales[index] if self.scales else None,
        )  # fmt: skip

    def partials(self, works: list[Work]) -> Partials:
        return Partials(
            [work.launch for work in works], kv_heads=self.shape.kv_heads, head_dim=self.shape.head_dim,
            device=self.q.device,
        )  # fmt: skip


def random_pool(fp8: bool) -> Tensor:
    """Draw numbers for keys and values; in e4m3 any except NaN."""
    if fp8:
        return torch.empty(ROOM, dtype=torch.uint8, device="cuda").random_(0, 127).view(E4M3)
    return torch.empty(ROOM // 2, dtype=torch.bfloat16, device="cuda").normal_()


def copy_bandwidth() -> float:
    """Measure the bytes per second, read and written, of a large copy on the device. (In a graph it is slower.)"""
    source = torch.empty(1 << 30, dtype=torch.bfloat16, device="cuda").normal_()
    target, times = torch.empty_like(source), []
    for _ in range(8):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return 2 * source.nbytes / statistics.median(times)


# -- the measured steps ------------------------------------------------------------------------------------------------


def decodes(shape: Shape) -> Iterator[tuple[str, Step]]:
    for batch, context in product((64, 256), (1024, 2048, 4096, 8192)):
        if shape.bytes_of(batch * context) * 2 < ROOM:
            yield f"decode {batch} x {context}", Step(shape, [1] * batch, [context] * batch)
    generator = torch.Generator().manual_seed(0)
    uneven = torch.randint(100, 2000, (256,), generator=generator).tolist()
    yield "decode 256 x U[100, 2000]", Step(shape, [1] * 256, uneven)
    yield "decode 63 x 500 + 1 x 30000", Step(shape, [1] * 64, [500] * 63 + [30000])


def singles(shape: Shape) -> Iterator[tuple[str, Step]]:
    for context in (256, 1024, 4096, 16384, 65536):
        yield f"decode 1 x {context}", Step(shape, [1], [context])
    yield "decode 8 x 1024", Step(shape, [1] * 8, [1024] * 8)


def verifications(shape: Shape) -> Iterator[tuple[str, Step]]:
    yield "verify 1 x 5 at 4096", Step(shape, [5], [4096])
    yield "verify 64 x 5 at 2048", Step(shape, [5] * 64, [2048] * 64)


def prompts(shape: Shape) -> Iterator[tuple[str, Step]]:
    yield "prefill 8192", Step(shape, [8192], [8192])
    yield "prefill 8 x 1024", Step(shape, [1024] * 8, [1024] * 8)
    yield "chunk 512 at 7680", Step(shape, [512], [8192])
    yield "mixed 2048 + 128 x 1024", Step(shape, [2048] + [1] * 128, [2048] + [1024] * 128)


def operations(step: Step) -> int:
    """Count the floating-point operations of causal attention."""
    pairs = sum(
        count * (length - count) + count * (count + 1) // 2
        for count, length in zip(step.counts, step.lengths, strict=True)
    )
    return 4 * pairs * step.shape.kv_heads * step.shape.group * step.shape.head_dim


def flash_microseconds(step: Step) -> float:
    """Time torch's flash attention over the same numbers of rows, with equally long prompts side by side."""
    shape, batch, count = step.shape, len(step.counts), step.counts[0]
    q = step.q.view(batch, count, shape.kv_heads * shape.group, shape.head_dim).transpose(1, 2)
    size = batch * count * shape.kv_heads * shape.head_dim
    k, v = (
        kept.flatten()[:size].view(batch, count, shape.kv_heads, -1).repeat_interleave(shape.group, 2).transpose(1, 2)
        for kept in (step.keys, step.values)
    )
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return graph_microseconds([lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)] * 2)


# -- other launch shapes -----------------------------------------------------------------------------------------------

SMALL = [
    Launch(16, keys, warps, stages, 4, PROCESSORS)
    for keys, warps, stages in product((32, 64, 128), (1, 2, 4, 8), (2, 3, 5))
    if 8 <= keys // warps <= 64
]
LARGE = [
    Launch(rows, keys, warps, stages, 1, PROCESSORS)
    for (rows, warps), keys, stages in product(((64, 4), (128, 4), (128, 8), (256, 16)), (32, 64, 128), (2, 3, 4))
    if rows * keys <= (8192 if warps == 4 else 16384)
]
SPLITTING = (1, 2, 4, 8, 16)  # programs per processor


def compile_one(task: tuple[Shape, Launch]) -> None:
    shape, launch = task
    Step.pool = torch.zeros(1 << 25, dtype=E4M3 if shape.fp8 else torch.bfloat16, device="cuda")
    tokens = 1 if launch.rows == 16 else launch.rows // shape.group
    Step(shape, [tokens], [64 + tokens]).microseconds([launch])


def race(step: Step, candidates: Iterable[Launch]) -> list[tuple[float, Launch]]:
    """Time all candidates. Returns the fastest first, without those that do not fit the GPU."""
    times, _ = racing.race({launch: partial(step.microseconds, [launch]) for launch in candidates})
    return [(us, launch) for launch, us in times.items()]


def sweep(shape: Shape) -> Iterator[dict[str, Any]]:
    """Race launch shapes on a few steps: first kernels, then the numbers of splits for the best of them."""
    small, large = dict.fromkeys(SMALL, 1.0), dict.fromkeys(LARGE, 1.0)
    tried = (
        ([1] * 64, [1024] * 64, small),
        ([1] * 256, [2048] * 256, small),
        ([1] * 256, torch.randint(100, 2000, (256,), generator=torch.Generator().manual_seed(0)).tolist(), small),
        ([1], [1024], small),
        ([1], [4096], small),
        ([8192], [8192], large),
        ([1024] * 8, [1024] * 8, large),
        ([512], [8192], large),
    )
    for counts, lengths, scores in tried:
        step = Step(shape, counts, lengths)
        times = race(step, scores)
        yield row(shape, f"sweep {len(counts)} x {counts[0]} at {lengths[0]}", step, times)
        for us, launch in times:
            scores[launch] *= us
        for launch in scores.keys() - {launch for _, launch in times}:
            scores[launch] = math.inf
    leaders, wide = sorted(small, key=small.__getitem__)[:4], min(large, key=large.__getitem__)
    for name, step in (*decodes(shape), *singles(shape)):
        splits = [replace(best, live=1, processors=k * PROCESSORS) for best in leaders for k in SPLITTING]
        yield row(shape, f"split {name}", step, race(step, splits))
    for name, step in verifications(shape):
        tall = min((launch for launch in LARGE if launch.rows == 64), key=large.__getitem__)
        rows = [replace(best, rows=rows) for best in leaders[:2] for rows in (16, 32, 64)]
        split = replace(tall, live=4)
        yield row(shape, f"rows {name}", step, race(step, [*rows, tall, split]))
    for counts, lengths in (([512], [8192]), ([2048], [8192])):
        step = Step(shape, counts, lengths)
        splits = [replace(wide, live=1, processors=k * PROCESSORS // 2) for k in (1, 2, 3, 4, 8)]
        yield row(shape, f"split chunk {counts[0]} at {lengths[0]}", step, race(step, splits))


def row(shape: Shape, name: str, step: Step, times: list[tuple[float, Launch]], **more: Any) -> dict[str, Any]:
    """Format one result: the fastest launch, and the times of the others."""
    us = times[0][0]
    found = {
        "shape": shape.name,
        "step": name,
        "us": round(us, 2),
        "gb_s": round(step.bytes / us / 1e3, 1),
        "tflop_s": round(operations(step) / us / 1e6, 1),
        "launches": [[round(us, 2), *asdict(launch).values()] for us, launch in times],
    } | more
    print(shape.name, name, f"{us:.1f} us", f"{found['gb_s']:.0f} GB/s", f"{found['tflop_s']:.0f} TFLOP/s", flush=True)
    return found


def as_shipped(shape: Shape) -> Iterator[dict[str, Any]]:
    choices = launches(shape.head_dim, torch.bfloat16, shape.group, PROCESSORS, eight_bits=shape.fp8)
    for steps in (decodes, singles, verifications, prompts):
        for name, step in steps(shape):
            more = {}
            if name.startswith("prefill") and not shape.fp8:
                more["flash_us"] = round(flash_microseconds(step), 1)
            yield row(shape, name, step, [(step.microseconds(choices), choices[0])], **more)


def planning(shape: Shape) -> Iterator[dict[str, Any]]:
    """Time the planning of a step, once for all layers."""
    launch = launches(shape.head_dim, torch.bfloat16, shape.group, PROCESSORS, eight_bits=shape.fp8)[0]
    for batch, context in ((1, 4096), (64, 1024), (256, 2048)):
        step = Step(shape, [1] * batch, [context] * batch)
        works = step.plan([launch])
        us = graph_microseconds([partial(works[0].lay_out, *step.numbers, most=1)] * 16)
        yield {"shape": shape.name, "step": f"plan of {batch} x {context}", "plan_us": us}
        print(shape.name, f"plan of {batch} x {context}: {us:.1f} us", flush=True)


def main() -> None:
    parser = racing.arguments(__doc__)
    parser.add_argument("--sweep", action="store_true", help="try other launch shapes too")
    parser.add_argument("--fp8", action="store_true", help="keys and values in 8 bits")
    parser.add_argument("--shapes", default=",".join(shape.name for shape in SHAPES))
    options = racing.options_of(parser)
    resolve_device("cuda")
    shapes = [shape for shape in SHAPES if shape.name in options.shapes.split(",")]
    if options.fp8:
        shapes = [replace(shape, name=f"{shape.name} fp8", fp8=True) for shape in shapes]
    if options.sweep:
        racing.compile_in_processes(compile_one, product(shapes, (*LARGE, *SMALL)), options.workers)
    results: dict[str, Any] = {"copy_gb_s": copy_bandwidth() / 1e9, "rows": []}
    print(f"copy {results['copy_gb_s']:.0f} GB/s", flush=True)
    for shape in shapes:
        for part in (as_shipped, planning, *([sweep] if options.sweep else [])):
            start = time.perf_counter()
            for found in part(shape):
                results["rows"].append(found)
                options.out.write_text(json.dumps(results))
            print(f"({part.__name__}: {time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(ran(main))
