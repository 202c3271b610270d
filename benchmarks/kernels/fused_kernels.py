"""Time products of 16-bit matrices against cuBLAS, and write the file that products are chosen by.

    PYTHONPATH=src:. python3 benchmarks/kernels/fused_kernels.py --out "$OUT"/fused_kernels.json  # on the GPU: minutes
    PYTHONPATH=src:. python3 benchmarks/kernels/fused_kernels.py --table fused_kernels.json       # anywhere: the file

`--known` races only the launches that were fastest in another device's results, which takes a fraction of the time. The
part "chains" checks each launch against the torch reference before it times it. The floor is the bytes that must move
over `--bandwidth`; times are as in racing.py.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.kernels import racing
from benchmarks.kernels.racing import copies, error
from gradus.bench.measure.gpu import graph_microseconds
from gradus.bench.run.script import need_triton, ran
from gradus.device.capability import SHARED_MEMORY
from gradus.models.precision import resolve_device

if __name__ == "__main__":
    need_triton()

from gradus.kernels.core.overlap import early_launches
from gradus.kernels.core.tuning import launch_of, stored_form
from gradus.kernels.linear.dispatch import fused_linear, linear
from gradus.kernels.linear.epilogue import Norm
from gradus.kernels.linear.launch_tables import FusedLaunch, Launch
from gradus.kernels.linear.launches import (
    DEPTH,
    FEW_ROWS,
    LANE_ROWS,
    WARP_COLUMNS,
    FewRowsLaunch,
    GemvLaunch,
    SplitKLaunch,
    StreamedLaunch,
)
from gradus.kernels.linear.splitk import splitk
from gradus.kernels.quantized.reference import product_reference
from gradus.kernels.rows import activation, norm

PRODUCTS = {"gemv": (1,), "splitk": (8, 16, 32, 64)}  # parts that measure products alone, of so many rows
FEW = (1, 2, 4, 8, 16)  # the part "few" measures each product with what a model has around it
ROWS = tuple(sorted({*FEW, *(m for rows in PRODUCTS.values() for m in rows)}))
# `few_rows` may take this many times as long as the fastest contender alone: it loads weights before the previous
# launch has ended, which pays off only in a chain of launches (the part "chains").
IN_A_CHAIN = 1.25
CACHE = 128 << 20  # bytes, twice an H200's L2
DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
TOLERANCE = 1e-2  # of ‖out - reference‖ / ‖reference‖, with a result in 16 bits
MEASURED = Path(__file__).parents[2] / "src/gradus/kernels/linear/measured"

# (vocabulary, hidden, query heads, key heads, head dim, MLP width or 0 of experts, layers, gated)
MODELS = {
    "gpt2-124m": (50257, 768, 12, 12, 64, 3072, 12, False),
    "qwen3-0.6b": (151936, 1024, 16, 8, 128, 3072, 28, True),
    "llama-3.2-1b": (128256, 2048, 32, 8, 64, 8192, 16, True),
    "llama-3.1-8b": (128256, 4096, 32, 8, 128, 14336, 32, True),
    "qwen3-30b-a3b": (151936, 2048, 32, 4, 128, 0, 48, True),
    "gpt-oss-20b": (201088, 2880, 64, 8, 64, 0, 24, True),
    "gemma3-270m": (262144, 640, 4, 1, 256, 2048, 18, True),
    "smollm2-135m": (49152, 576, 9, 3, 64, 1536, 30, True),
    "qwen2.5-coder-0.5b": (151936, 896, 14, 2, 64, 4864, 24, True),
    "qwen2.5-coder-1.5b": (151936, 1536, 12, 2, 128, 8960, 28, True),
}
BIASED = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gpt-oss-20b")  # in their qkv
# (vocabulary, hidden, MLP width, drafts) of draft heads, of the kinds in gradus.speculative.heads
HEADS = {"smollm2-135m-heads": (21504, 576, 1536, 4)}
PADDED_HEAD = (50304, 768)  # GPT-2's, with rows added up to a multiple of 128: what an odd N costs


def matrices(model: str) -> dict[str, tuple[int, int]]:
    """Return [N, K] of every product of a model by name, or of draft heads of either kind."""
    if model in HEADS:
        vocabulary, hidden, width, drafts = HEADS[model]
        layer = {"fuse": (hidden, 2 * hidden), "up": (2 * width, hidden), "down": (hidden, width)}
        return layer | {"out": (hidden, hidden), "blocks": (drafts * hidden, hidden), "head": (vocabulary, hidden)}
    vocabulary, hidden, heads, kv_heads, dim, width, _, gated = MODELS[model]
    mlp = {"up": (2 * width if gated else width, hidden), "down": (hidden, width)} if width else {}
    attention = {"qkv": ((heads + 2 * kv_heads) * dim, hidden), "output": (hidden, heads * dim)}
    return attention | mlp | {"head": (vocabulary, hidden)}


# -- timing ------------------------------------------------------------------------------------------------------------


def noise(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=DTYPE, device=DEVICE).normal_()


def race(contenders: dict[str, Callable[[Any], Any]], buffers: list[Any]) -> dict[str, float]:
    """Return microseconds of each contender, over all the buffers, the fastest first."""
    graphs = {
        name: partial(graph_microseconds, [partial(contender, buffer) for buffer in buffers])
        for name, contender in contenders.items()
    }
    return racing.race(graphs)[0]


# -- products ----------------------------------------------------------------------------------------------------------


def gemv_launches(m: int, k: int) -> Iterator[GemvLaunch]:
    """Yield launches with 16 to 64 weights in flight per thread, or 8 to 16 with several rows of x, which all have
    sums."""
    least, most = (16, 64) if m == 1 else (8, 16)
    for rows, columns, warps in product((1, 2, 4, 8), (256, 512, 1024, 2048, 4096), (1, 2, 4, 8)):
        if least <= rows * columns // (32 * warps) <= most and columns < 2 * k and (m == 1 or rows <= 2):
            yield GemvLaunch(rows, columns, warps)


TILES = ((16, 128), (16, 256), (32, 128), (32, 256), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128))


def splitk_tiles(m: int) -> Iterator[tuple[int, int, int]]:
    for (rows, columns), stages in product(TILES, (3, 5)):
        if (rows + max(16, m)) * columns * 2 * stages <= 200_000:
            yield rows, columns, stages


def splitk_launches(m: int, n: int, k: int) -> Iterator[SplitKLaunch]:
    """Between a program for every third multiprocessor and six for each, and a tile or more a program."""
    for rows, columns, stages in splitk_tiles(m):
        tiles = math.ceil(n / rows)
        for splits in (1, 2, 4, 8, 16):
            if (splits == 1 and tiles > 400) or (40 <= tiles * splits <= 800 and k >= columns * splits):
                yield SplitKLaunch(rows, columns, splits, stages, 4)


class Known:
    """The fastest launches in the results of another device: those that race, where there are any."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = {"products": [], "few": []} | found
        self.products = {
            (entry["m"], entry["n"], entry["k"]): [launch_of(stored) for stored, _ in entry["launches"]]
            for entry in self.found["products"]
        }
        self.few = {use_of(entry): [*filter(is_ours, entry["times"])] for entry in self.found["few"]}

    def candidates(self, m: int, n: int, k: int) -> list[Launch]:
        """For the product alone: `gemv`'s launches for one row, `splitk`'s for more."""
        return self.products.get((m, n, k)) or [*(gemv_launches(m, k) if m == 1 else splitk_launches(m, n, k))]

    def fused_candidates(self, use: "Use", m: int) -> list[FusedLaunch]:
        """One row is `gemv`'s, and more than FEW_ROWS are `few_rows`'. What `streamed_gemv` is worth, chains show."""
        found = [launch for launch in map(named, self.few.get((use, m), [])) if not isinstance(launch, SplitKLaunch)]
        if found:
            return found
        if m <= FEW_ROWS:
            found += dict.fromkeys(halved(launch) if use.gated else launch for launch in gemv_launches(m, use.k))
        if m > 1 and use.norm != "layer":
            found += launcheses(use, m)
        return found


def product_tasks(asked: "Asked", row_counts: tuple[int, ...]) -> Iterator["Task"]:
    """Yield what a part with products alone compiles: any N of a kind, and of K only what the kernels depend on."""
    for (n, k), m in product(asked.shapes, row_counts):
        rows = 129 if n % 16 else 128
        for launch in asked.known.candidates(m, n, k):
            if isinstance(launch, GemvLaunch):
                yield Use(rows, k, head=True), m, name_of(launch)
            elif isinstance(launch, SplitKLaunch):
                inner = 2048 if k % launch.columns == 0 else 2048 + 64
                yield Use(rows, inner, head=True), m, name_of(launch._replace(splits=min(launch.splits, 2)))


def measure_products(asked: "Asked", row_counts: tuple[int, ...]) -> Iterator[dict]:
    for n, k in asked.shapes:
        weights = [noise(n, k) for _ in range(copies(2 * n * k, CACHE))]
        for m in row_counts:
            x = noise(m, k)
            contenders: dict[str, Callable[[Any], Any]] = {"cublas": partial(F.linear, x)}
            contenders |= {
                name_of(launch): partial(run, x, launch=launch) for launch in asked.known.candidates(m, n, k)
            }
            times = race(contenders, weights)
            cublas = times.pop("cublas")
            best = [*times.items()]
            yield {
                "m": m, "n": n, "k": k, "cublas": cublas, "ours": best[0][1] if best else None,
                "floor": floor_of(m, n, k, asked.rate), "launches": [[json.loads(name), us] for name, us in best[:3]],
            }  # fmt: skip


def floor_of(m: int, n: int, k: int, rate: float) -> float:
    return 2 * (n * k + m * (n + k)) / rate * 1e6


def run(x: Tensor, weight: Tensor, launch: Launch) -> Tensor:
    return splitk(x, weight, launch) if isinstance(launch, SplitKLaunch) else fused_linear(x, weight, launch)


# -- few rows, with what is around a product ---------------------------------------------------------------------------


class Use(NamedTuple):
    """n, k: of the matrix, [2 N, K] if gated. norm: "rms" or "layer". head: its launches do not start early."""

    n: int
    k: int
    norm: str | None = None
    activation: str | None = None
    gated: bool = False
    bias: bool = False
    residual: bool = False
    head: bool = False


def use_of(entry: dict[str, Any]) -> tuple[Use, int]:
    """Return the use and the number of rows that an entry of the part "few" measured."""
    return Use(*(entry[name] for name in Use._fields)), entry["m"]


def uses(model: str) -> list[Use]:
    shapes = matrices(model)
    if model in HEADS:
        return [
            Use(*shapes["fuse"]),
            Use(*shapes["up"], norm="rms", activation="silu", gated=True),
            Use(*shapes["down"], residual=True),
            Use(*shapes["out"], norm="rms"),
            Use(*shapes["blocks"], norm="rms"),
            Use(*shapes["head"], head=True),
        ]
    gated = MODELS[model][-1]
    before, act = ("rms", "silu") if gated else ("layer", "gelu_tanh")
    of: dict[str, dict[str, Any]] = {
        "qkv": {"norm": before, "bias": model in BIASED},
        "output": {"residual": True},
        "up": {"norm": before, "activation": act, "gated": gated},
        "down": {"residual": True},
        "head": {"head": True},
    }
    return [Use(*shapes[name], **options) for name, options in of.items() if name in shapes]


class Around(NamedTuple):
    """The inputs of a use other than its matrix, for M rows."""

    x: Tensor
    options: dict[str, Any]

    @property
    def centered(self) -> bool:
        """Whether a LayerNorm comes before the product."""
        return self.options["norm"] is not None and self.options["norm"].bias is not None


def around(use: Use, m: int) -> Around:
    outputs = use.n // 2 if use.gated else use.n
    gain = noise(use.k) if use.norm else None
    shift = noise(use.k) if use.norm == "layer" else None
    options = {
        "norm": None if gain is None else Norm(gain, shift, 1e-5), "activation": use.activation, "gated": use.gated,
        "bias": noise(use.n) if use.bias else None, "residual": noise(m, outputs) if use.residual else None,
    }  # fmt: skip
    return Around(noise(m, use.k), options)


def launcheses(use: Use, m: int) -> Iterator[FewRowsLaunch]:
    """Yield launches with as many tiles in flight as fit in registers, or half as many."""
    for (outputs, warps), sums in product(((16, 4), (16, 8), (16, 16), (32, 4), (32, 8)), (1, 2)):
        tiles = math.ceil(use.k / (DEPTH * warps))
        registers = outputs // 16 * 8 * (2 if use.gated else 1) + (4 if use.norm else 0) + (4 if m > 8 else 0)
        most = max(2, min(112, 1024 // warps) // registers)
        for ahead in sorted({min(tiles, most), min(tiles, max(2, most // 2))}):
            yield FewRowsLaunch(outputs, warps, ahead, sums)


# Row warps, column warps, and programs per multiprocessor (0: one per tile of outputs, for few rows).
SHARES = (
    (1, 8, 1), (2, 4, 1), (1, 4, 2), (1, 4, 1), (2, 2, 1), (2, 2, 2), (1, 2, 4), (1, 16, 1), (2, 8, 1),
    (1, 1, 0), (1, 2, 0), (1, 4, 0), (1, 8, 0), (1, 16, 0),
)  # fmt: skip
ROOM = (100, 200)  # KiB of weights per multiprocessor: so that two launches find room there, and one
TILE = 20 << 10  # bytes, at most
X_OF_A_LANE = 80, 128  # registers of x with 8 warps, for up to 16 rows and for more: the next launch needs some, too
X_PARTS = 160  # of x in a lane of each of 8 warps, or more: eight values each, and with more of them some are spilled
PROCESSORS = 132  # of an H100 or H200: those for which slices that are the same are left out


def streamed_launches(use: Use, m: int) -> Iterator[StreamedLaunch]:
    """With one row of x, one or two outputs per thread in a tile, and with more 16 or 32 in all; of their columns as
    many as a tile has room for. More rows have their LayerNorm in a launch of its own.
    """
    if use.head or (use.norm == "layer" and m == 1):
        return
    if use.norm == "layer":
        use = use._replace(norm=None)
    outputs, seen = use.n // 2 if use.gated else use.n, set()
    together = padded(m)
    for (row_warps, column_warps, programs), each, room in product(SHARES, (1, 2), ROOM):
        parts, rows = math.ceil(use.k / (WARP_COLUMNS * column_warps)), LANE_ROWS * row_warps * each
        if m > 1:
            if row_warps > 1 or (use.norm and parts * together > 8 * X_OF_A_LANE[m > 16] // column_warps):
                continue  # all warps share columns, and with a norm x is in registers
            rows = 16 * each
        elif not programs:
            continue
        most = max(1, TILE // (rows * WARP_COLUMNS * column_warps * (4 if use.gated else 2)))  # parts in a tile
        columns = math.ceil(parts / math.ceil(parts / most)) * WARP_COLUMNS * column_warps
        launch = StreamedLaunch(rows, columns, row_warps, column_warps, room // max(1, programs), programs)
        slices = launch.slices(
            outputs, use.k, use.gated, PROCESSORS, max(SHARED_MEMORY.values()), together, use.norm is not None
        )
        key, whole = (*launch._replace(kilobytes=0), slices), slices.groups * math.ceil(use.k / columns)
        tall = launch.warps <= 8 and (slices.groups > 1 or not programs)
        worth = slices.stages >= min(whole, 2) and (each == 1 or tall)
        if (m > 1 or parts * max(8, launch.warps) <= X_PARTS) and worth and key not in seen:
            seen.add(key)
            yield launch


def halved(launch: GemvLaunch) -> GemvLaunch:
    """Halve the rows per program: with a gate, every output needs two rows of the matrix."""
    return launch._replace(rows=max(1, launch.rows // 2))


Task = tuple[Use, int, str]
"""A use, rows of x, and a contender's name."""


def few_tasks(asked: "Asked") -> set[Task]:
    """What the part "few" compiles. `few_rows` is compiled for up to 8 rows, and for 16."""
    return {
        (use, m if isinstance(launch, GemvLaunch) else padded(m), name_of(launch))
        for use, m in product(asked.uses, FEW)
        for launch in asked.known.fused_candidates(use, m)
    }


def chain_tasks(asked: "Asked") -> set[Task]:
    """What the part "chains" compiles beside that."""
    known, counts = asked.known, asked.counts
    found = {
        (use, padded(m), name_of(launch))
        for use, m in product(asked.uses, counts)
        for launch in (*streamed_launches(use, m), *known.products.get((max(8, m), use.n, use.k), ())[:1])
    }
    return found | {(use, m, name) for use, m, name in few_tasks(asked) if known.few and m in counts}


def padded(m: int) -> int:
    """As many rows as a kernel on the matrix units is compiled for."""
    return m if m == 1 else max(8, 1 << (m - 1).bit_length())


def compile_use(task: Task) -> None:
    use, m, name = task
    given = around(use, m)
    with early_launches(not use.head):
        by_name(name, given)(noise(use.n, use.k))


def measure_few(asked: "Asked", alone: list[dict]) -> Iterator[dict]:
    """Against the parts one by one, as the device's table has them now; or where nothing is around a product, or the
    residual alone, against cuBLAS and the fastest launches of the product alone; with few rows, of the product with 8.
    """
    for use in asked.uses:
        weights = [noise(use.n, use.k).mul_(use.k**-0.5) for _ in range(copies(2 * use.n * use.k, CACHE))]
        for m in FEW:
            given = around(use, m)
            names = [name_of(launch) for launch in asked.known.fused_candidates(use, m)]
            names += ["apart" if use.norm else "cublas"]
            tops = [
                entry["launches"] for entry in alone if (entry["m"], entry["n"], entry["k"]) == (max(8, m), *use[:2])
            ]
            if tops and (m > 1 or use.head) and use.norm is None:
                names += [json.dumps(stored) for stored, _ in tops[0]]
            names = [*dict.fromkeys(names + asked.known.few.get((use, m), []))]
            with early_launches(not use.head):
                times = race({name: by_name(name, given) for name in names}, weights)
            yield {"m": m} | use._asdict() | {"floor": floor_of(m, use.n, use.k, asked.rate), "times": shown(times)}


def measure_chains(models: list[str], counts: list[int], few: list[dict], products: list[dict]) -> Iterator[dict]:
    """A model's products, layer behind layer as in a step, in microseconds per layer: by what was fastest alone of
    `gemv`, of parts, of all; by `splitk` and cuBLAS with the other parts in launches of their own; and by launches of
    `few_rows`, streamed ones, and a mix of both, each the fastest beside the others. One row mixes `gemv` and streamed.
    """
    times_of = {use_of(entry): entry["times"] for entry in few}
    splitk_of = {(entry["m"], entry["n"], entry["k"]): json.dumps(entry["launches"][0][0]) for entry in products}
    for model, m in product(models, counts):
        layer = [use for use in uses(model) if not use.head]
        weights = [[noise(use.n, use.k).mul_(use.k**-0.5) for use in layer] for _ in range(layers_of(model))]
        chain = Chain(weights, [around(use, m) for use in layer])
        times = [times_of.get((use, m), {}) for use in layer]
        best = {kind: [fastest(each, belongs) for each in times] for kind, belongs in KINDS.items()}
        best["splitk"] = [splitk_of.get((max(8, m), use.n, use.k)) for use in layer]
        best["cublas"] = ["cublas"] * len(layer)
        few_rows = chain.right([[name for name in each if KINDS["few rows"](name)] for each in times])
        streamed = chain.right([[name_of(launch) for launch in streamed_launches(use, m)] for use in layer])
        kinds = {kind: chain.right([[name] if name else [] for name in names]) for kind, names in best.items()}
        found = {kind: chain.time([name for (name,) in names]) for kind, names in kinds.items() if all(names)}
        entry: dict[str, Any] = {"model": model, "m": m, "layer": found}
        if m == 1 and all(kinds["gemv"]):
            names, found["streamed"] = chain.swept([name for (name,) in kinds["gemv"]], streamed)
            entry["launches"] = [json.loads(name) for name in names]
        elif m > 1:
            racing = {kind: names for kind, names in (("few rows", few_rows), ("streamed", streamed)) if all(names)}
            swept = {kind: chain.swept([name for name, *_ in names], names) for kind, names in racing.items()}
            found |= {kind: taken for kind, (_, taken) in swept.items()}
            if swept:
                start, _ = min(swept.values(), key=lambda way: way[1])
                names, found["mixed"] = chain.swept(
                    start, [few + more for few, more in zip(few_rows, streamed, strict=True)]
                )
                entry["launches"] = [json.loads(name) for name in names]
        yield entry


def layers_of(model: str) -> int:
    """A model's layers; of heads that draft as many passes as exceed the cache."""
    return MODELS[model][6] if model in MODELS else copies(2 * sum(use.n * use.k for use in uses(model)[:-1]), CACHE)


def is_right(name: str, given: Around, matrix: Tensor) -> bool:
    """Whether a contender gives what the torch reference gives. One that does not run says so, and is not raced."""
    residual = given.options["residual"]
    mine, theirs = (given.options | {"residual": None if residual is None else residual.clone()} for _ in range(2))
    try:
        with early_launches(DEVICE.type == "cuda"):
            out = by_name(name, Around(given.x, mine))(matrix)
    except Exception as problem:
        print(f"{name}: {type(problem).__name__} {problem}"[:200], flush=True)
        return False
    off = error(out, product_reference(given.x, matrix, **theirs))
    if not off < TOLERANCE:
        print(f"{name}: {list(given.x.shape)} by {list(matrix.shape)} is wrong by {off:.1e}", flush=True)
    return off < TOLERANCE


@dataclass(frozen=True)
class Chain:
    """Consecutive layers of products. weights: of each layer; given: the other inputs of each product of a layer."""

    weights: list[list[Tensor]]
    given: list[Around]

    def right(self, names: list[list[str]]) -> list[list[str]]:
        """Of each product's contenders those that give what the reference gives."""
        of_products = zip(names, self.given, self.weights[0], strict=True)
        return [[name for name in each if is_right(name, given, matrix)] for each, given, matrix in of_products]

    def time(self, names: list[str]) -> float:
        """Microseconds per layer; infinite where a launch does not fit the GPU."""
        parts = [by_name(name, each) for name, each in zip(names, self.given, strict=True)]
        with early_launches(DEVICE.type == "cuda"):
            times = race({str(names): partial(in_a_row, parts, self.weights)}, [None])
        return times.get(str(names), math.inf) / len(self.weights)

    def swept(self, names: list[str], candidates: list[list[str]]) -> tuple[list[str], float]:
        """Return launches that changing a single product's launch cannot improve, and the time of a layer with them.

        The gain of a launch depends on what runs before and after it: a single streamed one gains little. So the search
        starts from `names`, or from streamed launches for all products that divide their work in the same way.
        """
        least, names = min((self.time(each), each) for each in [names, *alike(candidates)])
        before = math.inf
        while least < 0.995 * before:
            before = least
            for place, others in enumerate(candidates):
                for other in others:
                    tried = [*names[:place], other, *names[place + 1 :]]
                    if (taken := self.time(tried)) < 0.998 * least:
                        names, least = tried, taken
        return names, least


def alike(candidates: list[list[str]]) -> Iterator[list[str]]:
    """Yield, for each of SHARES and ROOM, the first launch of every product, if all products have one."""
    for (*warps, programs), room in product(SHARES, ROOM):
        share = *warps, room // max(1, programs), programs
        four = [next((name for name in names if named(name)[2:] == share), None) for names in candidates]
        if all(four):
            yield [str(name) for name in four]


def name_of(launch: Launch) -> str:
    """Name a launch in results, by its kind and fields. The other contenders are "cublas" and "apart"."""
    return json.dumps(stored_form(launch))


def is_ours(name: str) -> bool:
    return name.startswith("{")


def named(name: str) -> Launch:
    return launch_of(json.loads(name))


KINDS: dict[str, Callable[[str], bool]] = {
    "gemv": lambda name: is_ours(name) and isinstance(named(name), GemvLaunch),
    "few rows": lambda name: is_ours(name) and isinstance(named(name), FewRowsLaunch),
    "apart": lambda name: not is_ours(name) or isinstance(named(name), SplitKLaunch),
    "fastest": lambda name: True,
}


def fastest(times: dict[str, float], belongs: Callable[[str], bool]) -> str | None:
    return min(filter(belongs, times), key=times.__getitem__, default=None)


def by_name(name: str, given: Around) -> Callable[[Tensor], Any]:
    """A contender, as a function of the matrix."""
    if name in LIBRARIES:
        return partial(apart, given, LIBRARIES[name])
    launch = named(name)
    if isinstance(launch, SplitKLaunch):
        return partial(apart, given, partial(splitk, launch=launch))
    if given.centered and not isinstance(launch, GemvLaunch):
        return partial(after_norm, given, launch)
    return partial(fused_linear, given.x, launch=launch, **given.options)


def in_a_row(parts: list[Callable[[Tensor], Any]], weights: list[list[Tensor]], _: None) -> None:
    for matrices in weights:
        for part, matrix in zip(parts, matrices, strict=True):
            part(matrix)


def library(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias) if residual is None else residual.addmm_(x, weight.t())


LIBRARIES: dict[str, Callable[..., Tensor]] = {"cublas": library, "apart": linear}
"""Products without a norm and an activation: cuBLAS's, and what the device's table has for them now."""


def apart(given: Around, product: Callable[..., Tensor], weight: Tensor) -> Tensor:
    """Norm, product and activation in launches of their own."""
    x, options = normed_first(given), given.options
    if options["activation"] is None:
        return product(x, weight, bias=options["bias"], residual=options["residual"])
    behind = activation.gated_activation if options["gated"] else activation.activation
    return behind(product(x, weight, bias=options["bias"]), options["activation"])


def after_norm(given: Around, launch: FusedLaunch, weight: Tensor) -> Tensor:
    """A LayerNorm in a launch of its own, the rest in one."""
    return fused_linear(normed_first(given), weight, launch, **given.options | {"norm": None})


def normed_first(given: Around) -> Tensor:
    norm = given.options["norm"]
    return given.x if norm is None else add_normed(given.x, *norm)


def add_normed(x: Tensor, gain: Tensor, shift: Tensor | None, eps: float) -> Tensor:
    if shift is None:
        return norm.add_rms_norm(x, None, gain, eps)
    return norm.add_layer_norm(x, None, gain, shift, eps)


def shown(times: dict[str, float]) -> dict[str, float]:
    """Keep the times of other libraries, and of the three fastest launches of each of our kernels."""
    kinds: dict[type | None, list[str]] = {}
    for name in sorted(times, key=times.__getitem__):
        kinds.setdefault(type(named(name)) if is_ours(name) else None, []).append(name)
    return {name: times[name] for names in kinds.values() for name in names[:3]}


# -- the command -------------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """The settings of a run. counts: rows of the part chains. rate: bytes per second that floors are computed with."""

    models: list[str]
    counts: list[int]
    known: Known
    rate: float

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """[N, K] of all products."""
        shapes = dict.fromkeys(shape for model in self.models for shape in matrices(model).values())
        return [*shapes, *([PADDED_HEAD] if "gpt2-124m" in self.models else [])]

    @property
    def uses(self) -> list[Use]:
        return list(dict.fromkeys(use for model in self.models for use in uses(model)))

    def is_measured_by(self, part: str, entry: dict[str, Any]) -> bool:
        """Whether the part measures an entry of its results, so that a new one replaces it."""
        if part == "chains":
            return entry["model"] in self.models and entry["m"] in self.counts
        if part == "few":
            return (entry["n"], entry["k"], entry["norm"]) in {(use.n, use.k, use.norm) for use in self.uses}
        return entry["m"] in PRODUCTS[part] and (entry["n"], entry["k"]) in self.shapes


def results_of(part: str) -> str:
    """Return the key of a part's entries in the results."""
    return "products" if part in PRODUCTS else part


def tasks(part: str, asked: Asked) -> Iterable[Task]:
    """Return what a part compiles in advance."""
    if part in PRODUCTS:
        return product_tasks(asked, PRODUCTS[part])
    return few_tasks(asked) if part == "few" else chain_tasks(asked)


def measure(part: str, asked: Asked, found: dict[str, Any]) -> Iterator[dict]:
    """Yield a part's entries. Chains race what is known of a like device, where `found` has nothing."""
    if part in PRODUCTS:
        return measure_products(asked, PRODUCTS[part])
    if part == "few":
        return measure_few(asked, found["products"])
    few, alone = (found[key] or asked.known.found[key] for key in ("few", "products"))
    return measure_chains(asked.models, asked.counts, few, alone)


def main() -> None:
    parser = racing.table_arguments(__doc__, parts="gemv,splitk,few,chains")
    parser.add_argument("--models", default=",".join([*MODELS, *HEADS]))
    parser.add_argument("--rows", default=",".join(map(str, FEW)), help="row counts of the part chains")
    options = racing.options_of(parser)
    if options.table:
        return racing.write_table(options.table, MEASURED, table)
    resolve_device("cuda")
    known = Known(json.loads(options.known.read_text()) if options.known else {})
    counts = [int(count) for count in options.rows.split(",")]
    asked, parts = Asked(options.models.split(","), counts, known, options.bandwidth), options.parts.split(",")
    found: dict[str, Any] = racing.device_facts(torch.device("cuda")) | {
        "bandwidth": asked.rate,
        "products": [],
        "few": [],
        "chains": [],
    }
    if options.out.exists():  # other parts, measured before
        found |= {key: entries for key, entries in json.loads(options.out.read_text()).items() if entries}
    for part in parts:
        key = results_of(part)
        found[key] = [entry for entry in found[key] if not asked.is_measured_by(part, entry)]
    compiled = dict.fromkeys(task for part in parts for task in tasks(part, asked))
    racing.compile_in_processes(compile_use, sorted(compiled, key=str), options.workers)
    for part in parts:
        start = time.perf_counter()
        for entry in measure(part, asked, found):
            found[results_of(part)].append(entry)
            options.out.write_text(json.dumps(found))
            brief = {name: round(v, 2) if isinstance(v, float) else v for name, v in entry.items()}
            print(*(f"{name} {v}" for name, v in brief.items() if name != "launches"), flush=True)
        print(f"{part}: {time.perf_counter() - start:.0f} s", flush=True)


# -- the device's file -------------------------------------------------------------------------------------------------

Stored = dict[str, Any]  # a launch as files have it


def table(found: dict[str, Any]) -> str:
    """Return the text of a device's file in `measured/`, one line per matrix.

    A launch of ours is stored if it took at most 97 % of cuBLAS's time. A fused launch for few rows is stored if it
    took no longer than its parts one by one, or hardly longer but less in a chain.
    """
    launches: dict[tuple[int, int], dict[int, Stored | None]] = {}
    fused: dict[tuple[int, int], dict[int, Stored | None]] = {}
    for entry in found["products"]:
        m, shape, best = entry["m"], (entry["n"], entry["k"]), entry["launches"][0][0]
        launches.setdefault(shape, {})[m] = best if entry["ours"] <= 0.97 * entry["cublas"] else None
        if m == 1:
            fused[shape] = {1: best}
    slower, swept = slower_in_a_chain(found["chains"]), swept_in_a_chain(found["chains"])
    for entry in found["few"]:
        shape = entry["n"], entry["k"]
        use = (*shape, entry["norm"], entry["m"])
        best = swept.get(use) or chosen(entry, few_rows=use not in slower)
        if entry["norm"] is None:
            launches.setdefault(shape, {})[entry["m"]] = best
        else:
            fused.setdefault(shape, {})[entry["m"]] = best
    for of, m in ((use, chain["m"]) for chain in found["chains"] for use in uses(chain["model"]) if not use.head):
        best = swept.get((of.n, of.k, of.norm, m))
        if m not in FEW and (best or of.norm):  # the part "few" measures fewer rows
            (launches if of.norm is None else fused).setdefault((of.n, of.k), {})[m] = best
    lines = [
        json.dumps({"n": n, "k": k, "launches": first(launches.get((n, k), {})), "fused": first(fused.get((n, k), {}))})
        for n, k in sorted({*launches, *fused})
    ]
    return racing.table_text(found, ROWS, "matrices", racing.one_per_line(lines, 2))


def slower_in_a_chain(chains: list[dict]) -> set[tuple[int, int, str | None, int]]:
    """Return matrix, norm and row count of layers that are slower with `few_rows` than with a launch for every part."""
    apart = [chain for chain in chains if chain["layer"].get("apart", math.inf) < chain["layer"].get("few rows", 0.0)]
    return {(use.n, use.k, use.norm, chain["m"]) for chain in apart for use in uses(chain["model"]) if not use.head}


def swept_in_a_chain(chains: list[dict]) -> dict[tuple[int, int, str | None, int], Stored]:
    """The launches of matrices, norms and numbers of rows that make a layer fastest. `gemv`'s are chosen alone."""
    return {
        (use.n, use.k, use.norm, chain["m"]): launch
        for chain in sorted(chains, key=lambda chain: chain["model"] in MODELS)  # rather than its heads' that draft
        if min(chain["layer"].get(kind, math.inf) for kind in ("mixed", "streamed")) <= min(chain["layer"].values())
        for use, launch in zip(uses(chain["model"]), chain.get("launches", ()), strict=False)  # the head has none
        if not isinstance(launch_of(launch), GemvLaunch)
    }


def chosen(entry: dict[str, Any], few_rows: bool) -> Stored | None:
    """Choose the launch for few rows. With a gate, `gemv`'s is the matrix's own: `choose_fused` halves it."""
    times, kind = entry["times"], KINDS["few rows"]
    ours = {name: taken for name, taken in times.items() if is_ours(name) and (few_rows or not kind(name))}
    best, few = fastest(ours, KINDS["fastest"]), fastest(ours, kind)
    if few and not entry["head"] and ours[few] <= IN_A_CHAIN * min(times.values()):
        return stored_form(named(few))
    if best is None or ours[best] > min(0.97 * times.get("cublas", math.inf), times.get("apart", math.inf)):
        return None
    launch = named(best)
    if entry["gated"] and isinstance(launch, GemvLaunch):
        launch = launch._replace(rows=2 * launch.rows)
    return stored_form(launch)


def first(chosen: dict[int, Stored | None]) -> list[Stored | None]:
    """Return the choice for each of ROWS, up to the most that were measured. A number in between that was not measured
    takes the choice of the next one: such a product has a norm before it, and is a fused launch's."""
    measured = sorted(chosen)
    return [chosen[next(known for known in measured if known >= m)] for m in ROWS if measured and m <= measured[-1]]


if __name__ == "__main__":
    sys.exit(ran(main))
