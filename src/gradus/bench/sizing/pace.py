"""How long a step takes: the roofline of a machine's measured rates, and what an engine takes beyond it.

    seconds = max(weights / (m x bandwidth), products / (p x rate)) + the same for keys and values, and attention
            + layers x (a layer's time, and more in fewer bits) + sequences x a sequence's time
            + layers x exchanges among ranks

m, p and the times are one set for all models and batch sizes on GPUs, and one for CPUs. They were fitted by least
squares of the logarithms to the repository's records (records.py), where each run is played step by step through the
schedule; two more models, and two GPUs, were compared afterwards. A layer's time is that of its kernels less reading
and multiplying: starts, norms, rotations, the activation, and on a CPU the passes over rows. It decides how a small
model decodes; the roofline alone would be wrong by up to a factor of four. A sequence's time is sampling and the host's
part.

The times were measured on H100 and H200, and a machine with two cores. Slower cards and hosts may take more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gradus.bench.predict.prediction import Clock, continuous
from gradus.bench.predict.roofline import Cost, Machine, SpanShape, Widths, step_cost
from gradus.bench.workloads import Workload
from gradus.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Pace:
    """memory, products: the parts of the measured rates that a step reaches. The rest: seconds.

    quantized: more for each layer whose matrices have fewer bits: their inputs are rounded, or they are unpacked.
    """

    memory: float
    products: float
    layer: float
    sequence: float
    quantized: float


ON_GPU = Pace(memory=0.91, products=0.68, layer=18e-6, sequence=2.8e-6, quantized=20e-6)
ON_CPU = Pace(memory=1.0, products=0.60, layer=83e-6, sequence=320e-6, quantized=0.0)

EXCHANGE, EXCHANGE_ROW = 4e-6, 0.05e-6
"""Seconds of a sum over two ranks, and more per row (benchmarks/tensor_parallel.json, "ours")."""
EXCHANGES = 2  # of a layer


@dataclass(frozen=True, slots=True)
class Speed:
    """The sizes and rates behind a model's times on a device.

    widths: bytes per weight as a step reads them, on average, and per key or value. faster: how many times the
    bfloat16 rate matrices in fewer bits are multiplied at. quantized: whether there are such matrices.
    """

    config: ModelConfig
    widths: Widths
    machine: Machine
    pace: Pace
    faster: float = 1.0
    quantized: bool = False
    ranks: int = 1

    def seconds(self, spans: Sequence[SpanShape]) -> float:
        """The time of one step."""
        cost, pace = step_cost(self.config, spans, self.widths), self.pace
        rows = sum(span.rows for span in spans)
        layer = pace.layer + (pace.quantized if self.quantized else 0.0)
        if self.ranks > 1:
            layer += EXCHANGES * (EXCHANGE + EXCHANGE_ROW * rows)
        return self._roofline(cost) + self.config.num_layers * layer + pace.sequence * len(spans)

    def _roofline(self, cost: Cost) -> float:
        bandwidth, rate = self.machine.bandwidth * self.pace.memory, self.machine.rate * self.pace.products
        matrices = max(cost.weight_bytes / bandwidth, cost.matrix_flops / (rate * self.faster))
        return matrices + max(cost.kv_bytes / bandwidth, cost.attention_flops / rate)

    def played(self, workload: Workload, batch: int, budget: int | None) -> float:
        """Play a workload through the engine's schedule. Returns the seconds until its last token."""
        clock = _Paced(
            self.config, self.widths, self.machine, times=[[] for _ in workload.jobs], budget=budget, speed=self
        )
        continuous(workload.whole, clock, batch)
        return clock.now


@dataclass(slots=True)
class _Paced(Clock):
    """A clock that a speed drives instead of the roofline alone."""

    speed: Speed | None = None

    def step(self, spans: Sequence[SpanShape]) -> None:
        assert self.speed is not None
        self.now += self.speed.seconds(spans)
        self.steps += 1
