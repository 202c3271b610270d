"""Time a prompt's products in int8 alone: the kernel of every GPU against shapes of the one for Hopper.

    PYTHONPATH=src:. python3 benchmarks/int8_product.py --out benchmarks/int8_product.json

Each contender has its own process: all begin together and then take turns, so that compared times were measured
within seconds of each other, on an equally hot GPU. One that fails, or does not answer in time, is reported and left
out.

Each is checked first: with small integers, whose results are exact in bfloat16, on uneven rows, with nothing written
after the last; then with every matrix against sums in float64. A time is that of one launch in a CUDA graph, replayed
for a
while before it counts: a GPU at its power limit runs slower than one that has just begun. Values are normally
distributed, like a model's, since that limit depends on their bits.
"""

import argparse
import json
import multiprocessing as mp
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradus.bench.measure.fingerprint import commit, fingerprint
from gradus.bench.run.script import need_triton, ran
from gradus.models.precision import resolve_device

if __name__ == "__main__":
    need_triton()

from gradus.kernels.quantized.hopper_launch import HopperLaunch

# rows of the matrix, columns, and whether the product is added to the residual stream
MATRICES = {
    "qkv": (6144, 4096, False),
    "output": (4096, 4096, True),
    "gate_up": (28672, 4096, False),
    "down": (4096, 14336, True),
}
EVERY_GPU, SUMS_ALONE = "eight_bits", "torch._int_mm, sums alone"
LAUNCHES = {
    "64x256 x2": HopperLaunch(64, 256, 4, 2, 16),
    "64x256 x2, 8 together": HopperLaunch(64, 256, 4, 2, 8),
    "128x128 x2": HopperLaunch(128, 128, 4, 1, 16),
}
LAUNCHED = 4  # in a graph, on two matrices in turn
BEFORE_MS, TIMED_MS = 40, 40  # of replays
START_S, CHECK_S, TIME_S = 40.0, 7.0, 4.0  # longest waits for a process
BEHIND = 300  # rows of a result that nothing may write
UNEVEN = (1, 63, 300, 8192 - 5)  # rows of x
KEPT: list[Any] = []  # tensors that graphs read and write


class Operands(NamedTuple):
    """x int8 [M, K], x_scales float32 [1, M], weight int8 [N, K], scales float32 [N]."""

    x: Tensor
    x_scales: Tensor
    weight: Tensor
    scales: Tensor


Product = Callable[[Operands, Tensor, bool], Tensor]
"""(operands, memory for the result, whether to add to it) → the result, perhaps in other memory."""


# -- the contenders ----------------------------------------------------------------------------------------------------


def on_every_gpu(given: Operands, out: Tensor, onto: bool) -> Tensor:
    from gradus.kernels.quantized.eight_bits import EightBitWeights, eight_bit_product
    from gradus.kernels.quantized.quantize import Rounded
    from gradus.kernels.quantized.tile import TileLaunch

    launch = TileLaunch(rows=128, columns=128, tokens=128, splits=1, stages=3, warps=8)
    x, weights = Rounded(given.x, given.x_scales), EightBitWeights(given.weight, given.scales)
    return eight_bit_product(x, weights, torch.bfloat16, launch, residual=out if onto else None)


def sums_alone(given: Operands, out: Tensor, onto: bool) -> Tensor:
    return torch._int_mm(given.x, given.weight.t())


def on_hopper(launch: HopperLaunch) -> Product:
    from gradus.kernels.quantized.hopper_product import HopperProducts

    products = HopperProducts(torch.cuda.get_device_properties(0).multi_processor_count)

    def multiply(given: Operands, out: Tensor, onto: bool) -> Tensor:
        products.multiply(*given, out, launch, residual=out if onto else None)
        return out

    return multiply


def product_of(name: str) -> Product:
    if name == SUMS_ALONE:
        return sums_alone
    return on_every_gpu if name == EVERY_GPU else on_hopper(LAUNCHES[name])


# -- in a contender's process ------------------------------------------------------------------------------------------


def contend(name: str, rows: int, parent: Connection) -> None:
    """Answer each question, ("check",) or ("time", matrix), with ("done", result) or ("failed", reason)."""
    try:
        product = product_of(name)
        operands = {matrix: drawn(rows, n, k) for matrix, (n, k, _) in MATRICES.items()}
        compile_only(product, operands["output"])
        torch.cuda.synchronize()
        parent.send(("done", None))
        graphs: dict[str, torch.cuda.CUDAGraph] = {}
        while True:
            question, *about = parent.recv()
            if question == "check":
                parent.send(("done", checked(product, operands)))
            else:
                parent.send(("done", timed(product, operands, graphs, *about)))
    except EOFError:
        return
    except Exception:
        parent.send(("failed", traceback.format_exc()[-1500:]))


def compile_only(product: Product, given: Operands) -> None:
    """Compile without launching, since all contenders would launch at once."""
    from gradus.kernels.core import compilers
    from gradus.kernels.quantized import eight_bits, hopper_product

    kernels = compilers.kernels_of([eight_bits.__name__, hopper_product.__name__])
    for kernel in kernels:
        kernel.run = partial(without_launch, kernel.run)
    out = torch.empty(len(given.x), len(given.weight), dtype=torch.bfloat16, device="cuda")
    for onto in (False, True):
        product(given, out, onto)
    for kernel in kernels:
        del kernel.run


def without_launch(run: Callable[..., Any], *args: Any, warmup: bool, **more: Any) -> Any:
    return run(*args, warmup=True, **more)


def drawn(rows: int, n: int, k: int) -> Operands:
    torch.manual_seed(n + k)
    x, x_scales = rounded(torch.randn(rows, k, device="cuda"))
    weight, scales = rounded(torch.randn(n, k, device="cuda") / k**0.5)
    return Operands(x, x_scales.unsqueeze(0), weight, scales)


def rounded(values: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to integers up to 127. Returns them and the scales."""
    scales = values.abs().amax(1) / 127
    return (values / scales.unsqueeze(1)).round().to(torch.int8), scales


def checked(product: Product, operands: dict[str, Operands]) -> str:
    if product is sums_alone:
        return "a library's"
    for rows in UNEVEN:
        for n, k in ((512, 1024), (1024, 256)):
            check_integers(product, rows, n, k)
    worst = 0.0
    for matrix, (n, _, onto) in MATRICES.items():
        worst = max(worst, check_matrix(product, operands[matrix], n, onto))
    return f"exact; {worst:.1e} of a model's results round to the other side"


def check_integers(product: Product, rows: int, n: int, k: int) -> None:
    """Check results of at most 256: exact, written to their places, in rows that lie apart, and nowhere else."""
    generator = torch.Generator("cuda").manual_seed(rows + n)
    x, weight = (
        torch.randint(-3, 4, (count, k), device="cuda", generator=generator, dtype=torch.int8)
        * (torch.rand(count, k, device="cuda", generator=generator) < 0.1)
        for count in (rows, n)
    )
    given = Operands(x.to(torch.int8), torch.ones(1, rows, device="cuda"), weight.to(torch.int8), torch.ones(n).cuda())
    sums = given.x.double() @ given.weight.double().t()
    assert sums.abs().max() <= 192
    for onto in (False, True):
        memory = torch.full((rows + BEHIND, n + 64), 77.0, dtype=torch.bfloat16, device="cuda")
        stream = torch.randint(-64, 65, (rows, n), device="cuda", generator=generator).bfloat16()
        out = memory[:rows, :n]
        out.copy_(stream if onto else torch.full_like(stream, float("nan")))
        found = product(given, out, onto)
        expected = sums + stream.double() if onto else sums
        assert torch.equal(found.double(), expected), f"{rows} x {n} x {k}, onto {onto}: {wrong(found, expected)}"
        assert (memory[rows:] == 77).all() and (memory[:, n:] == 77).all(), f"{rows} x {n}: wrote beside its result"


def wrong(found: Tensor, expected: Tensor) -> str:
    off = (found.double() != expected).nonzero()
    return f"{len(off)} of {expected.numel()} differ, from {off[0].tolist()} to {off[-1].tolist()}"


def check_matrix(product: Product, given: Operands, n: int, onto: bool) -> float:
    """Return the share of results that differ from the expected ones. Fused with a sum, they may: by one step at
    most."""
    rows = given.x.shape[0]
    stream = torch.randn(rows, n, device="cuda").bfloat16()
    found = product(given, stream.clone() if onto else torch.full_like(stream, float("nan")), onto)
    beside = 0
    for start in range(0, rows, 1024):
        here = slice(start, start + 1024)
        sums = (given.x[here].double() @ given.weight.double().t()).float()
        wide = sums * given.x_scales[0, here, None] * given.scales
        expected = (wide + stream[here].float() if onto else wide).bfloat16()
        differs = found[here] != expected
        if not onto:
            assert not differs.any(), f"{n}: {wrong(found[here], expected.double())}"
        torch.testing.assert_close(found[here], expected, rtol=2**-7, atol=1e-30 if not onto else 2**-16)
        beside += int(differs.sum())
    assert beside < 1e-4 * rows * n, f"{n}: {beside} results differ"
    return beside / (rows * n)


def timed(
    product: Product, operands: dict[str, Operands], graphs: dict[str, torch.cuda.CUDAGraph], matrix: str
) -> float:
    """Measure the microseconds of a launch. Graphs are kept."""
    if matrix not in graphs:
        graphs[matrix] = captured(product, operands[matrix], *MATRICES[matrix])
    once = replayed(graphs[matrix], 2)
    replayed(graphs[matrix], max(1, round(BEFORE_MS / once)))
    return replayed(graphs[matrix], max(2, round(TIMED_MS / once))) * 1000 / LAUNCHED


def captured(product: Product, given: Operands, n: int, k: int, onto: bool) -> torch.cuda.CUDAGraph:
    """Capture launches on two copies of the matrix, in turn."""
    pair = [given, given._replace(weight=given.weight.clone())]
    out = torch.zeros(len(given.x), n, dtype=torch.bfloat16, device="cuda")
    KEPT.extend([pair, out])
    product(given, out, onto)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(LAUNCHED):
            product(pair[number % 2], out, onto)
    return graph


def replayed(graph: torch.cuda.CUDAGraph, times: int) -> float:
    """Measure the milliseconds of a replay."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


# -- in the process that asks ------------------------------------------------------------------------------------------


class Contender:
    """A contender's process. failure: the reason, once it has failed."""

    def __init__(self, name: str, rows: int) -> None:
        self.name, self.failure, self.checked = name, "", ""
        context = mp.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=contend, args=(name, rows, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.times: dict[str, list[float]] = {matrix: [] for matrix in MATRICES}

    def ask(self, *question: str, patience: float) -> Any:
        try:
            self.connection.send(question)
        except OSError as error:
            self.fail(repr(error))
            return None
        return self.answer(question[0], patience)

    def answer(self, what: str, patience: float) -> Any:
        try:
            if not self.connection.poll(max(0.0, patience)):
                return self.fail(f"{what}: no answer in {patience:.0f} s")
            how, found = self.connection.recv()
        except (EOFError, OSError) as error:
            return self.fail(f"{what}: {error!r}")
        return found if how == "done" else self.fail(f"{what}: {found}")

    def fail(self, why: str) -> None:
        print(f"{self.name} FAILED: {why}", flush=True)
        self.failure = why
        self.process.kill()
        self.process.join(5)

    def row(self, rows: int) -> dict[str, Any]:
        median = {matrix: statistics.median(times) for matrix, times in self.times.items() if times}
        operations = {matrix: 2 * rows * n * k for matrix, (n, k, _) in MATRICES.items()}
        found: dict[str, Any] = {"kernel": self.name, "launch": LAUNCHES.get(self.name), "checked": self.checked}
        if self.failure:
            found["failure"] = self.failure
        found["us"] = {matrix: round(us, 1) for matrix, us in median.items()}
        found["top_s"] = {matrix: round(operations[matrix] / us / 1e6, 1) for matrix, us in median.items()}
        if len(median) == len(MATRICES):
            found["layer_us"] = round(sum(median.values()), 1)
            found["layer_top_s"] = round(sum(operations.values()) / sum(median.values()) / 1e6, 1)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a file for the results; only stdout by default")
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--rows", type=int, default=8192, help="of x")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="kernels, separated by semicolons")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds, for all of it")
    asked = parser.parse_args()
    device = resolve_device("cuda")
    begun = time.monotonic()
    until = begun + asked.limit - 10  # the rest is for the machine's fingerprint

    def left(most: float) -> float:
        return min(most, until - time.monotonic())

    names = asked.only.split(";") if asked.only else [EVERY_GPU, SUMS_ALONE, *LAUNCHES]
    contenders = [Contender(name, asked.rows) for name in names]
    for each in contenders:
        each.answer("start", left(begun + START_S - time.monotonic()))
    for each in contenders:
        if not each.failure:
            each.checked = each.ask("check", patience=left(CHECK_S)) or ""
            print(f"{each.name}: {each.checked or 'wrong'} ({until - time.monotonic():.0f} s left)", flush=True)
    for _ in range(asked.rounds):
        for matrix in MATRICES:
            for each in contenders:
                if not each.failure and left(TIME_S) > 0.5:
                    us = each.ask("time", matrix, patience=left(TIME_S))
                    each.times[matrix] += [us] if us else []
    for each in contenders:
        each.process.kill()
    rows = [each.row(asked.rows) for each in contenders]
    for row in sorted(rows, key=lambda row: row.get("layer_us", float("inf"))):
        print(f"{row['kernel']:28} {row.get('layer_us', '-'):>8} us per layer, TOP/s {row['top_s']}", flush=True)
    found = {"commit": asked.commit or commit(), **fingerprint(device, quick=True), "m": asked.rows}
    found["rows"] = rows
    print(json.dumps(found, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(ran(main))
