"""The tables of docs/design/beyond.md, computed from benchmarks/beyond.json: see `gradus.bench.predict.beyond`."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from gradus.bench.predict import beyond
from gradus.bench.predict.beyond import Around, Curve, Door, Exchanges, Gpu, Server
from gradus.bench.predict.roofline import Machine
from gradus.bench.record.metrics import shown
from gradus.models.shapes import SHAPES

if TYPE_CHECKING:
    from gradus.bench.record.scripts import Part

Found = Mapping[str, Any]

MODELS = tuple(product(("llama-3.1-8b", "llama-3.1-70b"), (16, 8)))
GPUS = (1, 2, 4, 8)
LENGTHS = {
    "1": 128 + 128,
    "64": 512 + 128,
}  # prompt and half of the answer, by requests in benchmarks/tensor_parallel.py
REPLICAS = (1, 2, 4, 8, 16, 32, 64, 100)


def gpu_tables(found: Found, samples: str) -> list["Part"]:
    """Compute servers on 1 to 8 GPUs, and what breaks first: a table for each kind of GPU."""
    row, exchanges = found["exchanges"]["row_bytes"], _exchanges(found)
    pushed = ", ".join(f"{exchanges.most_pushed_rows(row, count)} on {count}" for count in GPUS[1:])
    parts: list[Part] = [
        f"Up to {beyond.WANTED} sequences of {beyond.LENGTH:,} tokens. One front end streams "
        f"{found['around']['front_end_tok_s']:,} tokens/s. Pushing is the faster sum up to this many rows of "
        f"{row // beyond.HALF:,}: {pushed} GPUs. {samples}"
    ]
    for name, gpu in found["gpus"].items():
        parts.append(f"**{name}**, which reads {gpu['read_gb_s']:,.0f} GB/s and has {gpu['gib']} GiB.")
        parts.append(_gpu_table(found, name))
    return parts


def _gpu_table(found: Found, gpu: str) -> "Part":
    header = ["weights", "GPUs", "matrices, ms", "cache, ms", "sums, ms", "as two-shot, ms", "step, ms", "tokens/s"]
    header += ["host could", "room, tokens", "sequences", "breaks first"]
    rows = []
    for model, bits in MODELS:
        for one in servers(found, gpu, model, bits):
            name = f"{model}, {bits} bits" if one.gpus == GPUS[0] else ""
            rows.append([name, str(one.gpus), *_step(one), f"{one.room:,}", str(one.sequences), one.breaks_first])
    return header, rows


def servers(found: Found, gpu: str, model: str, bits: int) -> Iterator[Server]:
    """A model on each number of GPUs."""
    for count in GPUS:
        yield beyond.server(SHAPES[model], bits, _gpu(found, gpu), count, _exchanges(found), _around(found))


def check_table(found: Found, samples: str) -> list["Part"]:
    """Compare the formulas with what two H100 do."""
    header = ["requests", "tokens each, at the middle", "computed, tokens/s", "measured, tokens/s", "reached"]
    rows = []
    for count, measured in found["two"].items():
        requests, length = int(count), LENGTHS[count]
        given = SHAPES["llama-3.1-8b"], 16, _gpu(found, "H100"), 2, _exchanges(found), _around(found)
        rate = requests / beyond.server(*given, requests, length).seconds
        rows.append([count, str(length), f"{rate:,.0f}", f"{measured:,.0f}", f"{100 * measured / rate:.0f} %"])
    return [f"Llama 3.1 8B's shape in bfloat16 on two H100. {samples}", (header, rows)]


def _step(one: Server) -> list[str]:
    """A step's parts, its time, and the rates of GPUs and host."""
    if not one.sequences:
        return [""] * 7
    sums = [shown(1e3 * part) if one.gpus > 1 else "" for part in (one.sums, one.two_shot)]
    parts = [shown(1e3 * one.matrices), shown(1e3 * one.cache), *sums, shown(1e3 * one.seconds)]
    return [*parts, f"{one.sequences / one.seconds:,.0f}", f"{one.rates['host']:,.0f}"]


def replica_table(found: Found, samples: str) -> list["Part"]:
    """Compute how busy replicas keep the parts that they share: shares of one processor, by way."""
    rate, doors = found["around"]["replica_tok_s"], {name: _door(found, name) for name in found["door"]["ways"]}
    header = ["replicas", "tokens/s", "lists, KB/s", "router"]
    header += [f"{part}, {name}" for name, door in doors.items() for part in door.way]
    rows = []
    for count in REPLICAS:
        asked = {name: beyond.deployment(count, rate, door) for name, door in doors.items()}
        one = next(iter(asked.values()))
        row = [str(count), f"{one.demand:,.0f}", f"{one.published / 1e3:,.0f}", _share(one.busy["router"])]
        rows.append(row + [_share(asked[name].busy[part]) for name, door in doors.items() for part in door.way])
    return [
        f"Each replica gives {rate:,} tokens/s, in answers of {beyond.ANSWER} tokens. Processor times were measured on "
        f"an {found['processor']}. {samples}",
        (header, rows),
    ]


def _share(share: float) -> str:
    """A share of a processor; in bold if one is not enough."""
    text = f"{100 * share:,.2g} %" if share < 0.1 else f"{100 * share:,.0f} %"
    return f"**{text}**" if share > 1 else text


# -- from JSON ---------------------------------------------------------------------------------------------------------


def _curve(points: Mapping[str, float], x: float = 1.0, y: float = 1e-6) -> Curve:
    """Points of a file, x and y times a unit; y is in microseconds if nothing is said."""
    return [(x * float(at), y * value) for at, value in points.items()]


def _gpu(found: Found, name: str) -> Gpu:
    rates = found["gpus"][name]
    return Gpu(Machine(1e9 * rates["read_gb_s"], 1e12 * rates["bfloat16_tflop_s"]), rates["gib"] * 2**30)


def _exchanges(found: Found) -> Exchanges:
    row, took = found["exchanges"]["row_bytes"], found["exchanges"]["us"]
    return Exchanges(*(_curve(took[name], row) for name in ("pushed", "two_shot", "nccl")))


def _around(found: Found) -> Around:
    around = found["around"]
    host, pack, send = (_curve(around[name]) for name in ("host_us", "pack_us", "send_us"))
    return Around(host, pack, send, around["front_end_tok_s"])


def _door(found: Found, way: str) -> Door:
    door = found["door"]
    seconds = {part: 1e-6 * us for part, us in door["ways"][way].items()}
    return Door(seconds, _curve(door["choose_us"]), 1e-6 * door["publish_us"], door["every_s"], door["list_bytes"])
