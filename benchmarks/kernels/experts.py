"""Time mixtures of experts on a GPU, against the memory's bandwidth, and print the table that launches are chosen by.

    PYTHONPATH=src:. python3 benchmarks/kernels/experts.py --out "$OUT"/experts.json              # on the GPU: minutes
    PYTHONPATH=src:. python3 benchmarks/kernels/experts.py --out "$OUT"/experts.json --shipped    # only what is chosen
    PYTHONPATH=src:. python3 benchmarks/kernels/experts.py --show experts.json                    # anywhere: the table

For each number of rows, launches of each product race alone, and the fastest of both race as a whole mixture (`onto`,
from the stream to the stream, with the norm, the router and the sum), layer behind layer with weights of their own. A
launch is checked against the torch reference before it is timed. The floor is the bytes of the distinct experts that
were chosen, and of the router, over `--bandwidth`; times are as in racing.py, in a CUDA graph whose launches start
early.
"""

import json
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels import racing
from benchmarks.kernels.racing import error
from gradus.bench.measure.gpu import graph_microseconds
from gradus.bench.run.script import need_triton, ran
from gradus.models.precision import resolve_device

if __name__ == "__main__":
    need_triton()

from gradus.kernels.core.overlap import early_launches
from gradus.kernels.core.view import view
from gradus.kernels.experts import launches as table
from gradus.kernels.experts.combine import combine
from gradus.kernels.experts.few import down_few, up_few
from gradus.kernels.experts.launches import MOST_FEW, FewLaunch, MixtureLaunch
from gradus.kernels.experts.routing import Routed, route
from gradus.kernels.fuse import model as fused_model
from gradus.kernels.linear.dispatch import fused_linear
from gradus.kernels.linear.epilogue import NORM_WITHIN, Norm
from gradus.kernels.linear.launches import GemvLaunch
from gradus.models.config import Experts, ModelConfig
from gradus.models.experts import Mixture
from gradus.models.layers import Linear, RMSNorm
from gradus.models.shapes import SHAPES as MODELS

assert fused_model  # names the twins
DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
# (hidden, experts, chosen, features of one, biases)
SHAPES = {
    "qwen3-30b-a3b": (2048, 128, 8, 768, False),
    "olmoe-7b": (2048, 64, 8, 1024, False),
    "gpt-oss-20b": (2880, 32, 4, 2880, True),
    "glm-4.5-air": (4096, 128, 8, 1408, False),
    "mixtral-8x7b": (4096, 8, 2, 14336, False),
}
LAYERS = 6  # with weights of their own: one row of Qwen3-30B-A3B reads 450 MB of them, seven times an H200's L2
ROWS = (1, 2, 4, 8, 16, 32, 64)
FINALISTS = 4  # launches of each product that race as a whole mixture
TOLERANCE = 1e-2  # of ‖out - reference‖ / ‖reference‖, in bfloat16
SHARED = 200_000  # bytes of tiles in a multiprocessor's shared memory

SHIPPED, GROUPED = "shipped", "grouped"

Choice = MixtureLaunch | str
"""How a mixture computes: SHIPPED is what the table says, GROUPED the products of many rows."""

# -- what races --------------------------------------------------------------------------------------------------------


def few_launches(width: int, matrices: int, together: int) -> Iterator[FewLaunch]:
    """Launches whose tiles find room in shared memory, at least 16 KiB of them in flight."""
    for (outputs, columns), stages, warps in product(
        ((16, 128), (16, 256), (32, 64), (32, 128), (32, 256), (64, 64), (64, 128), (128, 64)), (2, 3, 4, 6), (4, 8)
    ):
        tiles = 2 * (outputs * matrices + together) * columns * (stages - 1)
        enough = warps == 4 or outputs * columns >= 8192
        if 16 << 10 <= tiles <= SHARED // 2 and enough and stages <= -(-width // columns) + 1:
            yield FewLaunch(outputs, columns, stages, warps)


def up_launches(case: "Case") -> list[FewLaunch]:
    return [*few_launches(case.config.hidden_size, 2, case.together)]


def down_launches(case: "Case") -> list[FewLaunch]:
    return [*few_launches(case.experts.width, 1, case.together)]


@dataclass(frozen=True)
class Case:
    """A mixture's shape and a number of rows."""

    shape: str
    rows: int

    @property
    def experts(self) -> Experts:
        _, count, chosen, width, biased = SHAPES[self.shape]
        return Experts(count, chosen, width, biased=biased)

    @property
    def config(self) -> ModelConfig:
        base = MODELS["tiny-qwen3-moe"]
        activation = "clamped_silu" if self.experts.biased else "silu"
        return replace(
            base,
            hidden_size=SHAPES[self.shape][0],
            experts=(self.experts,) * base.num_layers,
            activation=activation,
        )

    @property
    def together(self) -> int:
        """Rows that `few.py` computes."""
        return max(16, 1 << (self.rows - 1).bit_length())


class Layers:
    """Layers of a mixture with noise for weights, and this number of rows for each."""

    def __init__(self, case: Case, count: int) -> None:
        self.case, made = case, []
        for _ in range(count):
            mixture = Mixture(case.config, 0, Linear, DTYPE, DEVICE)
            for name, weights in mixture.named_parameters():
                weights.data.normal_(std=0.02 if "weight" in name else 0.1)
            made.append(mixture)
        hidden = case.config.hidden_size
        self.plain_norm = RMSNorm(hidden, 1e-6, DTYPE, DEVICE)
        self.plain_norm.weight.data.fill_(1)
        self.mixtures, self.norm = made, view(self.plain_norm)
        self.seen: list[Any] = [view(each) for each in made]

    def with_rows(self, case: Case) -> "Inputs":
        return Inputs(self, case)


class Inputs:
    """Inputs of each layer's products."""

    def __init__(self, layers: Layers, case: Case) -> None:
        self.layers, self.case = layers, case
        self.x = torch.randn(case.rows, case.config.hidden_size, device=DEVICE).to(DTYPE)
        self.onto, self.normed = self.x.clone(), layers.plain_norm(self.x)
        self.routed = [Routed(each.router.product(self.normed).contiguous(), case.experts) for each in layers.mixtures]
        self.chosen = [route(each) for each in self.routed]
        pairs = case.rows * case.experts.chosen
        self.features = torch.randn(pairs, case.experts.width, device=DEVICE).to(DTYPE)
        self.results = torch.randn(pairs, case.config.hidden_size, device=DEVICE).to(DTYPE)

    @cached_property
    def distinct(self) -> float:
        """Distinct experts per layer, on average."""
        return statistics.mean(len(chosen.unique()) for chosen, _ in self.chosen)

    def up(self, layer: int, launch: FewLaunch) -> Tensor:
        seen = self.layers.seen[layer]
        weight, bias, activation = seen.up.weight, seen.up.bias, seen.activation
        chosen, count = self.chosen[layer][0], self.case.experts.count
        return up_few(self.normed, weight, chosen, count, activation, launch, bias)

    def down(self, layer: int, launch: FewLaunch) -> Tensor:
        seen = self.layers.seen[layer]
        chosen, count = self.chosen[layer][0], self.case.experts.count
        return down_few(self.features, seen.down.weight, chosen, count, launch, seen.down.bias)

    def router(self, layer: int, launch: GemvLaunch | None) -> Tensor:
        product, norm = self.layers.seen[layer].router.product, self.layers.plain_norm
        if launch is None:
            return product.after(self.layers.norm, self.x)
        return fused_linear(self.x, product.weight, launch, norm=Norm(norm.weight, None, 1e-6))

    def whole(self, layer: int) -> Tensor:
        return self.layers.seen[layer].onto(self.x, self.layers.norm)


# -- timing ------------------------------------------------------------------------------------------------------------


def timed(run: Callable[[int], Any], count: int) -> float:
    """Microseconds of one layer's."""
    with early_launches():
        return graph_microseconds([partial(run, layer) for layer in range(count)])


def checked(run: Callable[[int], Tensor], reference: Tensor, count: int) -> float:
    with early_launches(), racing.poisoned():
        wrong = error(run(0), reference)
    if not wrong < TOLERANCE:
        raise ValueError(f"the result is wrong by {wrong:.3g}")
    return timed(run, count)


def reference_up(inputs: Inputs) -> Tensor:
    """The first layer's features, expert by expert."""
    mixture, chosen = inputs.layers.mixtures[0], inputs.chosen[0][0].long()
    width, count = inputs.case.experts.width, inputs.case.experts.count
    out = inputs.normed.new_empty(chosen.numel(), width)
    for expert in chosen.unique().tolist():
        pair = (chosen.flatten() == expert).nonzero().flatten()
        rows = inputs.normed[pair // chosen.shape[1]].float()
        starts = [(half * count + expert) * width for half in range(2)]
        parts = [mixture.up.part(start, start + width) for start in starts]
        sums = [rows @ part.weight.float().T + (0 if part.bias is None else part.bias.float()) for part in parts]
        out[pair] = mixture.activation(torch.cat(sums, 1)).to(out.dtype)
    return out


def reference_down(inputs: Inputs) -> Tensor:
    """The first layer's results of each pair."""
    mixture, chosen = inputs.layers.mixtures[0], inputs.chosen[0][0]
    hidden = inputs.case.config.hidden_size
    out = inputs.features.new_empty(chosen.numel(), hidden)
    for expert in chosen.unique().tolist():
        pair = (chosen.flatten() == expert).nonzero().flatten()
        part = mixture.down.part(expert * hidden, (expert + 1) * hidden)
        out[pair] = part(inputs.features[pair])
    return out


@contextmanager
def chosen_launch(case: Case, launch: Choice) -> Iterator[None]:
    """Make the table choose this launch; SHIPPED leaves it as it is."""
    before = dict(table.FASTEST)
    if launch != SHIPPED:
        choice = None if isinstance(launch, str) else launch
        table.FASTEST[(case.config.hidden_size, case.experts.width)] = {case.rows: choice}
    try:
        yield
    finally:
        table.FASTEST.clear()
        table.FASTEST.update(before)


def whole_microseconds(inputs: Inputs, launch: Choice) -> float:
    case, layers = inputs.case, inputs.layers
    with chosen_launch(case, launch):
        if case.rows <= MOST_FEW:
            reference = layers.mixtures[0].forward(inputs.x, layers.plain_norm)
            with early_launches(), racing.poisoned():
                wrong = error(layers.seen[0].forward(inputs.x, layers.norm), reference)
            if not wrong < 2 * TOLERANCE:
                raise ValueError(f"the mixture is wrong by {wrong:.3g}")
        before = inputs.x.clone()
        taken = timed(inputs.whole, len(layers.seen))
        inputs.x.copy_(before)  # the sums went into it
    return taken


# -- the race ----------------------------------------------------------------------------------------------------------


def named(launch: FewLaunch | MixtureLaunch | GemvLaunch) -> str:
    return repr(launch)


def raced(inputs: Inputs, shipped: bool) -> Iterator[dict[str, Any]]:
    """Time the small launches, both products, and the whole, in each way."""
    case, count = inputs.case, len(inputs.layers.seen)
    hidden, experts = case.config.hidden_size, case.experts
    small = {
        "router": timed(partial(inputs.router, launch=None), count),
        "route": timed(lambda layer: route(inputs.routed[layer]), count),
        "combine": timed(lambda layer: combine(inputs.results, inputs.chosen[layer][1], inputs.onto), count),
    }
    if case.rows == 1 and hidden <= NORM_WITHIN:
        for rows, columns, warps in ((1, 512, 1), (1, 1024, 2), (1, 2048, 4), (2, 1024, 4), (1, 2048, 8)):
            launch = GemvLaunch(rows, columns, warps)
            small[f"router {launch}"] = timed(partial(inputs.router, launch=launch), count)
    # bytes of one expert
    size = {"up": 4 * hidden * experts.width, "down": 2 * hidden * experts.width}
    entry: dict[str, Any] = {"shape": case.shape, "rows": case.rows, "distinct": inputs.distinct, "small": small}
    entry["floor_bytes"] = inputs.distinct * sum(size.values()) + 2 * hidden * experts.count
    wholes: list[Choice] = [SHIPPED, *([GROUPED] if 4 <= case.rows <= MOST_FEW and not shipped else [])]
    if not shipped and case.rows <= MOST_FEW:
        tops: list[list[FewLaunch]] = []
        for name, run, launches, reference in (
            ("up", inputs.up, up_launches(case), reference_up(inputs)),
            ("down", inputs.down, down_launches(case), reference_down(inputs)),
        ):
            contenders = {each: partial(checked, partial(run, launch=each), reference, count) for each in launches}
            times, failed = racing.race(contenders)
            rates = {named(each): (us, inputs.distinct * size[name] / us / 1e3) for each, us in times.items()}
            entry[name] = rates
            entry.setdefault("failed", []).extend(failed)
            tops.append([*times][:FINALISTS])
            for each, (us, rate) in [*rates.items()][:3]:
                print(f"  {name} {each}: {us:.2f} us, {rate:.0f} GB/s", flush=True)
        wholes += [MixtureLaunch(*both) for both in product(*tops)]
    times, failed = racing.race({each: partial(whole_microseconds, inputs, each) for each in wholes})
    entry["whole"] = {each if isinstance(each, str) else named(each): us for each, us in times.items()}
    entry.setdefault("failed", []).extend(failed)
    yield entry


def shown(entry: Mapping[str, Any], bandwidth: float) -> str:
    best, us = next(iter(entry["whole"].items()))
    floor = entry["floor_bytes"] / bandwidth * 1e6
    small = ", ".join(f"{name} {taken:.2f}" for name, taken in entry["small"].items())
    shipped = entry["whole"].get("shipped", float("nan"))
    head = f"{entry['shape']}, {entry['rows']} rows, {entry['distinct']:.1f} experts: {us:.2f} us (floor {floor:.2f}"
    return f"{head}, {entry['floor_bytes'] / us / 1e3:.0f} GB/s), shipped {shipped:.2f}\n  {best}\n  {small}"


def table_text(found: Mapping[str, Any]) -> str:
    """Write FASTEST of `gradus.kernels.experts.launches`."""
    best: dict[tuple[int, int], dict[int, str]] = {}
    for entry in found["cases"]:
        hidden, _, _, width, _ = SHAPES[entry["shape"]]
        names = [name for name in entry["whole"] if name != SHIPPED]
        if names:
            best.setdefault((hidden, width), {})[entry["rows"]] = "None" if names[0] == GROUPED else names[0]
    lines = []
    for sizes, rows in best.items():
        lines.append(f"    {sizes}: {{")
        lines += [f"        {count}: {_positional(name)}," for count, name in sorted(rows.items())]
        lines.append("    },")
    return "\n".join(["FASTEST: dict[Sizes, dict[int, MixtureLaunch | None]] = {", *lines, "}"])


def _positional(name: str) -> str:
    fields = ("up", "down", "rows", "columns", "warps", "outputs", "stages")
    for field in fields:
        name = name.replace(f"{field}=", "")
    return name


# -- compiling ---------------------------------------------------------------------------------------------------------


def compile_one(task: tuple[Case, str, FewLaunch]) -> None:
    """Launch it on memory as it comes: what is read does not matter."""
    case, name, launch = task
    experts, hidden = case.experts, case.config.hidden_size
    empty = partial(torch.empty, device=DEVICE)
    mixture: Any = view(Mixture(case.config, 0, Linear, DTYPE, DEVICE))
    chosen = torch.zeros(case.rows, experts.chosen, dtype=torch.int32, device=DEVICE)
    x = empty(case.rows, hidden, dtype=DTYPE)
    features = empty(case.rows * experts.chosen, experts.width, dtype=DTYPE)
    up, down = (mixture.up.weight, mixture.up.bias), (mixture.down.weight, mixture.down.bias)
    with early_launches():
        if name == "up":
            up_few(x, up[0], chosen, experts.count, mixture.activation, launch, up[1])
        else:
            down_few(features, down[0], chosen, experts.count, launch, down[1])


def tasks(cases: list[Case]) -> Iterator[tuple[Case, str, FewLaunch]]:
    for case in cases:
        yield from ((case, "up", launch) for launch in up_launches(case))
        yield from ((case, "down", launch) for launch in down_launches(case))


def main() -> None:
    parser = racing.arguments(__doc__)
    parser.add_argument("--shapes", default="qwen3-30b-a3b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--shipped", action="store_true", help="time only the launches that are chosen")
    parser.add_argument("--bandwidth", type=float, default=4.57e12, help="bytes per second of a large read on this GPU")
    parser.add_argument("--show", type=Path, help="measure nothing: print the table from these results")
    options = racing.options_of(parser)
    if options.show:
        print(table_text(json.loads(options.show.read_text())))
        return
    resolve_device("cuda")
    measure(options)


@torch.inference_mode()
def measure(options: Namespace) -> None:
    torch.manual_seed(0)
    cases = [Case(shape, int(rows)) for shape in options.shapes.split(",") for rows in options.rows.split(",")]
    if not options.shipped:
        racing.compile_in_processes(compile_one, tasks(cases), options.workers)
    found: dict[str, Any] = racing.device_facts(DEVICE) | {"bandwidth": options.bandwidth, "cases": []}
    layers: Layers | None = None
    for case in cases:
        start = time.perf_counter()
        if layers is None or layers.case.shape != case.shape:
            layers = None  # gives the memory back first
            layers = Layers(case, LAYERS)
        for entry in raced(layers.with_rows(case), options.shipped or case.rows > MOST_FEW):
            found["cases"].append(entry)
            options.out.write_text(json.dumps(found, indent=1))
            print(f"{shown(entry, options.bandwidth)} ({time.perf_counter() - start:.0f} s)", flush=True)
    print(table_text(found), flush=True)


if __name__ == "__main__":
    sys.exit(ran(main))
