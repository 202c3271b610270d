"""How long does a step take on 1 to 8 devices? Bytes over bandwidth, and a toll for every exchange.

    python -m phases.p12_parallelism.roofline
    python -m phases.p12_parallelism.roofline --model smollm2-135m --batch 1

Nothing is measured here but the toll, and that on two devices. For more it is taken to be the same, which flatters
them.
"""

import argparse
from dataclasses import dataclass

from gradus.errors import ConfigError
from gradus.models import SHAPES, ModelConfig, kv_bytes_per_token, parameter_count
from phases.p12_parallelism.model import sizes
from phases.p12_parallelism.place import Place

BANDWIDTH = 4.8e12  # bytes/s, of one H200 by its data sheet
REDUCE_US = {1: 14.1, 8: 14.9, 64: 17.9, 256: 36.7, 2048: 83.9}
"""NCCL's all-reduce of [rows, 4096] in bfloat16 inside a CUDA graph, measured on two H200 with NVLink, by rows.
Narrower rows are charged as much: at few rows it is latency."""
WIDTH = 2  # bytes of a bfloat16
MOST_DEVICES, BATCHES, LENGTH = 8, (1, 64), 1000


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds that a step spends on reading weights, on reading the cache, and on exchanges."""

    weights: float
    cache: float
    exchanges: float

    @property
    def seconds(self) -> float:
        return self.weights + self.cache + self.exchanges


def step(config: ModelConfig, devices: int, batch: int, length: int = LENGTH) -> Step:
    """One decode step of `batch` sequences of `length` tokens, with every matrix cut over the devices.

    Arithmetic is left out: at 64 rows it still takes less time than the weights do.
    """
    table = (
        0 if config.tie_embeddings else config.vocab_size * config.hidden_size
    )  # of it, only a row per token is read
    weights = WIDTH * (parameter_count(config) - table) / devices
    cache = batch * length * kv_bytes_per_token(config, WIDTH) / min(devices, config.num_kv_heads)
    exchanges = 2 * config.num_layers if devices > 1 else 0
    return Step(weights / BANDWIDTH, cache / BANDWIDTH, exchanges * reduce_us(batch) / 1e6)


def divisors(config: ModelConfig) -> list[int]:
    """The numbers of devices that the model's heads and features can be divided among."""
    return [devices for devices in range(1, MOST_DEVICES + 1) if _divides(config, devices)]


def _divides(config: ModelConfig, devices: int) -> bool:
    try:
        sizes(config, Place(0, parts=devices))
    except ConfigError:
        return False
    return True


def reduce_us(rows: int) -> float:
    """The toll for the smallest measured number of rows that is not below `rows`."""
    return next(cost for measured, cost in REDUCE_US.items() if measured >= rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b", choices=sorted(SHAPES), help="a shape by name")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="sequences (1 64)")
    parser.add_argument("--length", type=int, default=LENGTH, help=f"tokens of each sequence ({LENGTH})")
    asked = parser.parse_args()
    config = SHAPES[asked.model]
    try:
        sizes(config, Place(0))
    except ConfigError as error:
        parser.error(str(error))
    print("batch  devices  weights  cache  exchanges     ms  tokens/s   gain")
    for batch in asked.batch:
        alone = step(config, 1, batch, asked.length).seconds
        for devices in divisors(config):
            one = step(config, devices, batch, asked.length)
            parts = "  ".join(f"{1e3 * part:6.2f}" for part in (one.weights, one.cache, one.exchanges, one.seconds))
            print(f"{batch:5}  {devices:7}  {parts}  {batch / one.seconds:8,.0f}  {alone / one.seconds:4.2f}×")


if __name__ == "__main__":
    main()
