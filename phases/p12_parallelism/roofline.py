"""How long does a step take on 1 to 8 devices? Bytes over bandwidth, and a toll for every sum.

    python -m phases.p12_parallelism.roofline
    python -m phases.p12_parallelism.roofline --model smollm2-135m --batch 1
    python -m phases.p12_parallelism.roofline --pair h100

Bandwidths and tolls were measured, the tolls on two devices. For more devices they are taken to be the same, which
flatters them.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from gradus.errors import ConfigError
from gradus.models import SHAPES, ModelConfig, kv_bytes_per_token, parameter_count
from phases.p12_parallelism.model import sizes
from phases.p12_parallelism.place import Place

Tolls = Mapping[int, float]
"""Microseconds of one sum of [rows, 4096] in bfloat16, inside a CUDA graph, by rows. Narrower rows are charged as much:
at few rows it is latency."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two GPUs with NVLink. bandwidth: bytes/s that one of them reads. tolls: by the way in which they sum."""

    bandwidth: float
    tolls: Mapping[str, Tolls]


NCCL, ONE_LAUNCH = "NCCL", "one launch"
LAUNCH_TOLLS = {1: 3.3, 8: 3.5, 64: 6.2, 256: 15.3}
"""The final engine's kernel, which also adds the residual and normalizes, as measured on two H100."""

PAIRS = {
    "h200": Pair(4.3e12, {NCCL: {1: 14.1, 8: 14.9, 64: 17.9, 256: 36.7, 2048: 83.9}, ONE_LAUNCH: LAUNCH_TOLLS}),
    "h100": Pair(2.9e12, {NCCL: {1: 9.1, 8: 9.8, 64: 12.9, 256: 32.0}, ONE_LAUNCH: LAUNCH_TOLLS}),
}
"""The tolls of the H100's NCCL contain the norm that follows, as the engine's kernel does."""
WIDTH = 2  # bytes of a bfloat16
MOST_DEVICES, BATCHES, LENGTH = 8, (1, 64), 1000


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds that a step spends on reading weights, on reading the cache, and on sums."""

    weights: float
    cache: float
    sums: float

    @property
    def seconds(self) -> float:
        return self.weights + self.cache + self.sums


def step(
    config: ModelConfig, devices: int, batch: int, length: int = LENGTH, pair: str = "h200", way: str = NCCL
) -> Step:
    """One decode step of `batch` sequences of `length` tokens, with every matrix cut over the devices.

    Arithmetic is left out: at 64 rows it still takes less time than the weights do.
    """
    # of a table that is not the head as well, only a row per token is read
    table = 0 if config.tie_embeddings else config.vocab_size * config.hidden_size
    weights = WIDTH * (parameter_count(config) - table) / devices
    cache = batch * length * kv_bytes_per_token(config, WIDTH) / min(devices, config.num_kv_heads)
    sums = 2 * config.num_layers if devices > 1 else 0
    bandwidth = PAIRS[pair].bandwidth
    return Step(weights / bandwidth, cache / bandwidth, sums * toll(PAIRS[pair].tolls[way], batch) / 1e6)


def toll(tolls: Tolls, rows: int) -> float:
    """The toll for the smallest measured number of rows that is not below `rows`. Raises ConfigError beyond them."""
    found = next((cost for measured, cost in tolls.items() if measured >= rows), None)
    if found is None:
        raise ConfigError(f"a sum was measured up to {max(tolls)} rows, got {rows}: give a smaller --batch")
    return found


def divisors(config: ModelConfig) -> list[int]:
    """The numbers of devices that the model's heads and features can be divided among."""
    return [devices for devices in range(1, MOST_DEVICES + 1) if _divides(config, devices)]


def _divides(config: ModelConfig, devices: int) -> bool:
    try:
        sizes(config, Place(0, parts=devices))
    except ConfigError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b", choices=sorted(SHAPES), help="a shape by name")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="sequences (1 64)")
    parser.add_argument("--length", type=int, default=LENGTH, help=f"tokens of each sequence ({LENGTH})")
    parser.add_argument("--pair", default="h200", choices=sorted(PAIRS), help="whose rates (h200)")
    asked = parser.parse_args()
    try:
        sizes(SHAPES[asked.model], Place(0))
        for tolls in PAIRS[asked.pair].tolls.values():
            toll(tolls, max(asked.batch))
    except ConfigError as error:
        parser.error(str(error))
    for way in PAIRS[asked.pair].tolls:
        print(f"sums by {way}\nbatch  devices  weights  cache   sums     ms  tokens/s   gain")
        for batch in asked.batch:
            show(SHAPES[asked.model], batch, asked.length, asked.pair, way)


def show(config: ModelConfig, batch: int, length: int, pair: str, way: str) -> None:
    """Print a line per number of devices."""
    alone = step(config, 1, batch, length, pair).seconds
    for devices in divisors(config):
        one = step(config, devices, batch, length, pair, way)
        parts = " ".join(f"{1e3 * part:6.2f}" for part in (one.weights, one.cache, one.sums, one.seconds))
        print(f"{batch:5}  {devices:7}   {parts}  {batch / one.seconds:8,.0f}  {alone / one.seconds:4.2f}×")


if __name__ == "__main__":
    main()
