"""Computes what each part of a deployment beyond one GPU and one server could do, and which one breaks first.

A model on several GPUs: a step's bytes and operations (roofline.py) are divided among them, and every layer adds two
sums. Around the GPUs are a host that plans the steps, a front end that streams tokens, and memory that sequences fill.
Replicas of such a server share a front door and a router.

The inputs were measured, some of them on two GPUs: sums among more are computed from the bytes that each GPU then sends
or receives. No torch here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gradus.bench.predict.roofline import Machine, SpanShape, Widths, step_cost
from gradus.models.config import ModelConfig, kv_bytes_per_token, layer_matrix_parameters, parameter_count

LENGTH = 2000  # tokens of each sequence
WANTED = 256  # sequences at once, as many as fit
ANSWER = 256  # tokens
FOR_CACHE = 0.9  # of a GPU's memory, less the weights
MOST = 4096  # rows of one step
HALF = 2  # bytes of a bfloat16: activations, the head and the embedding, in fp8 too

Curve = Sequence[tuple[float, float]]
"""Measured points (x, y), x rising."""


def on(curve: Curve, x: float) -> float:
    """Interpolate between measured points, and continue the last line beyond them; below the first, y is constant."""
    if x <= curve[0][0]:
        return curve[0][1]
    lines = list(pairwise(curve))
    (x0, y0), (x1, y1) = next((line for line in lines if x <= line[1][0]), lines[-1])
    return y0 + (x - x0) * (y1 - y0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Seconds of an exchange between two GPUs, by the bytes of the tensor: there each GPU sends as many."""

    pushed: Curve
    two_shot: Curve
    nccl: Curve

    def sum(self, size: float, gpus: int) -> float:
        """The engine's way: every GPU receives all others' rows, or NCCL's ring where that is faster."""
        return min(self._push(size, gpus), self._reduce(size, gpus))

    def _push(self, size: float, gpus: int) -> float:
        return on(self.pushed, (gpus - 1) * size)

    def _reduce(self, size: float, gpus: int) -> float:
        return on(self.nccl, _ring(size, gpus))

    def most_pushed_rows(self, row: int, gpus: int) -> int:
        """Return up to how many rows, of `row` bytes, pushing is faster than NCCL: a power of two."""
        rows = 1
        while rows < MOST and self._push(2 * rows * row, gpus) <= self._reduce(2 * rows * row, gpus):
            rows *= 2
        return rows

    def two_shot_sum(self, size: float, gpus: int) -> float:
        """Each GPU adds up its share of the rows, and all collect the shares."""
        return min(on(self.two_shot, _ring(size, gpus)), self.sum(size, gpus))

    def join(self, size: float, gpus: int) -> float:
        """Every GPU collects the others' parts of a tensor of `size` bytes."""
        return on(self.nccl, size * (gpus - 1) / gpus)


def _ring(size: float, gpus: int) -> float:
    return 2 * size * (gpus - 1) / gpus


@dataclass(frozen=True, slots=True)
class Gpu:
    """machine: measured; its rate is bfloat16's, and fp8 is taken to have twice that. memory: bytes."""

    machine: Machine
    memory: float


@dataclass(frozen=True, slots=True)
class Around:
    """The host and the front end of a server.

    Seconds as functions of the batch size. host: schedule and commit a step. pack: pack its plan. send: send the plan
    to one rank. front_end: tokens per second over HTTP.
    """

    host: Curve
    pack: Curve
    send: Curve
    front_end: float

    def host_seconds(self, sequences: int, gpus: int) -> float:
        """The host's time for a step: with overlap it is hidden as long as the GPUs take longer."""
        messages = on(self.pack, sequences) + on(self.send, sequences) * (gpus - 1) if gpus > 1 else 0.0
        return on(self.host, sequences) + messages


class Server(NamedTuple):
    """A server's decode step, in seconds.

    room: tokens that the cache holds. matrices: weights read, or multiplied, whichever takes longer. two_shot: sums as
    they could be. host: for one step.
    """

    gpus: int
    room: int
    sequences: int
    matrices: float
    cache: float
    sums: float
    two_shot: float
    host: float
    front_end: float

    @property
    def seconds(self) -> float:
        return self.matrices + self.cache + self.sums

    @property
    def rates(self) -> dict[str, float]:
        """Tokens per second that each part could do."""
        parts = {"matrices": self.matrices, "cache": self.cache, "sums": self.sums}
        largest = max(parts, key=lambda name: parts[name])
        return {
            f"GPU: {largest}": self.sequences / self.seconds,
            "host": self.sequences / self.host,
            "front end": self.front_end,
        }

    @property
    def breaks_first(self) -> str:
        """Name the slowest part, after memory if that holds fewer sequences than wanted."""
        if not self.sequences:
            return "memory: the weights alone"
        slowest = min(self.rates, key=lambda name: self.rates[name])
        return slowest if self.sequences == WANTED else f"memory, then {slowest}"


def server(
    config: ModelConfig,
    bits: int,
    gpu: Gpu,
    gpus: int,
    exchanges: Exchanges,
    around: Around,
    wanted: int = WANTED,
    length: int = LENGTH,
) -> Server:
    """Compute a decode step of `wanted` sequences of `length` tokens, or as many as fit.

    bits: of weights, keys and values.
    """
    width = bits // 8
    head = config.vocab_size * config.hidden_size
    narrow = config.num_layers * layer_matrix_parameters(config)
    weights = (width * narrow + HALF * (parameter_count(config) - narrow)) / gpus
    token = kv_bytes_per_token(config, width) / min(gpus, config.num_kv_heads)
    room = max(0, int((FOR_CACHE * gpu.memory - weights) / token))
    sequences = min(wanted, room // length)
    cost = step_cost(config, [SpanShape(length, 1)] * sequences, Widths(width, width))
    read = cost.weight_bytes + (HALF - width) * head
    rate = gpu.machine.rate * HALF / width
    rows, count = sequences * config.hidden_size * HALF, 2 * config.num_layers + 1
    joined = exchanges.join(sequences * config.vocab_size * HALF, gpus)
    return Server(
        gpus,
        room,
        sequences,
        matrices=max(read / gpu.machine.bandwidth, cost.matrix_flops / rate) / gpus,
        cache=cost.kv_bytes / gpu.machine.bandwidth / min(gpus, config.num_kv_heads),
        sums=count * exchanges.sum(rows, gpus) + joined if gpus > 1 else 0.0,
        two_shot=count * exchanges.two_shot_sum(rows, gpus) + joined if gpus > 1 else 0.0,
        host=around.host_seconds(sequences, gpus),
        front_end=around.front_end,
    )


# -- replicas ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Door:
    """The parts that all replicas share, in seconds of one processor.

    way: each process that a token passes, and its seconds per token. choose: the router's seconds to choose among
    replicas, by their number. publish: to take one replica's list. every: seconds between a replica's lists.
    list_bytes: the size of one.
    """

    way: Mapping[str, float]
    choose: Curve
    publish: float
    every: float
    list_bytes: int


class Deployment(NamedTuple):
    """A number of replicas at work. demand: tokens per second of all. published: bytes per second of their lists. busy:
    shares of a processor, by part."""

    replicas: int
    demand: float
    published: float
    busy: dict[str, float]

    @property
    def breaks_first(self) -> str:
        """Name the part that has the most to do; "" while all have a processor's time left."""
        busiest = max(self.busy, key=lambda name: self.busy[name])
        return busiest if self.busy[busiest] > 1 else ""


def deployment(replicas: int, rate: float, door: Door) -> Deployment:
    """rate: tokens per second of each replica."""
    demand = replicas * rate
    router = demand / ANSWER * on(door.choose, replicas) + replicas * door.publish / door.every
    busy = {part: demand * seconds for part, seconds in door.way.items()}
    return Deployment(replicas, demand, replicas * door.list_bytes / door.every, busy | {"router": router})
