"""A lower bound for a step: the bytes it must move and the operations it must do, from the configuration alone.

A forward pass is two kinds of work. Products read every weight once, however many rows go through, so few rows wait for
memory and many for arithmetic. Attention reads the keys and values of every sequence, which sequences do not share, so
batching hardly helps it. Each kind takes as long as the slower of its two needs:

    matrices    max(weights / bandwidth,  2 x weights x rows / rate)
    attention   max(keys and values / bandwidth,  4 x query width x visible positions / rate)

A step reads those of a layer's experts that any of its rows chose, and multiplies each row by its own. Each expert is
taken to be as likely as any other, and rows are taken to choose independently. Tokens of one text choose more alike,
so a step may beat this floor.

A step takes the sum. That is a floor: it leaves out activations, norms, sampling, every launch and all Python. What an
engine takes beyond it is what this course is about. (Williams et al. 2009, "Roofline"; Pope et al. 2022 for decoders.)
No torch here.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from gradus.models.config import (
    Experts,
    ModelConfig,
    active_parameters,
    distinct_experts,
    expert_parameters,
    parameter_count,
)


class SpanShape(NamedTuple):
    """`rows` tokens of one sequence from position `start`; the last `logits` of them are sampled from."""

    start: int
    rows: int
    logits: int = 1


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes per value: of a stored weight, and of a stored key or value."""

    weight: float
    kv: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured rates: bytes per second when reading memory, operations per second in a large product."""

    bandwidth: float
    rate: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes moved and floating-point operations done (a multiplication and an addition are two)."""

    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    matrix_flops: float = 0.0
    attention_flops: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.weight_bytes + other.weight_bytes,
            self.kv_bytes + other.kv_bytes,
            self.matrix_flops + other.matrix_flops,
            self.attention_flops + other.attention_flops,
        )

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes

    @property
    def flops(self) -> float:
        return self.matrix_flops + self.attention_flops

    def seconds(self, machine: Machine) -> float:
        """The floor of one step. (For a sum of steps it is the floor of their fusion, which no engine runs.)"""
        matrices = max(self.weight_bytes / machine.bandwidth, self.matrix_flops / machine.rate)
        attention = max(self.kv_bytes / machine.bandwidth, self.attention_flops / machine.rate)
        return matrices + attention


def streamed_parameters(config: ModelConfig) -> int:
    """Weights that a step reads whole, if its rows choose every expert. Tables that are looked up by
    row (embeddings) are not among them.

    A tied output head is: it is the same matrix, but the logits need all of it.
    """
    looked_up = 0 if config.tie_embeddings else config.vocab_size * config.hidden_size
    if config.learned_positions:
        looked_up += config.context_length * config.hidden_size
    looked_up += config.vocab_size * config.num_layers * config.per_layer_width
    return parameter_count(config) - looked_up


def step_cost(config: ModelConfig, spans: Iterable[SpanShape], widths: Widths) -> Cost:
    """One forward pass over these spans, padding included if it is among them: rows cost the same, useful or not."""
    sizes = _sizes(config)
    rows = logits = 0
    moved = visible = 0.0
    for span in spans:
        rows += span.rows
        logits += span.logits
        for kind, layers in sizes.kinds:
            written = span.rows * kind.stores
            moved += layers * 2 * kind.kv_width * (positions_read(span, kind.window) + written)  # keys and values
            visible += layers * kind.q_width * positions_visible(span, kind.window)
    head = config.vocab_size * config.hidden_size
    return Cost(
        weight_bytes=(sizes.streamed - sizes.unread(rows)) * widths.weight + 4.0 * logits * config.vocab_size,
        kv_bytes=moved * widths.kv,
        matrix_flops=2.0 * (rows * sizes.active + logits * head),
        attention_flops=4.0 * visible,
    )


def positions_read(span: SpanShape, window: int | None) -> int:
    """Stored positions that any row of this span may see; one layer reads each once."""
    end = span.start + span.rows
    return end if window is None else min(end, window + span.rows - 1)


def positions_visible(span: SpanShape, window: int | None) -> int:
    """Pairs of a row and a position that it may see, in one layer: the row at position p sees min(p + 1, window)."""
    start, end = span.start, span.start + span.rows
    if window is None or window >= end:
        return _triangle(end) - _triangle(start)
    growing = max(0, window - start)  # rows whose window is not full yet
    return _triangle(start + growing) - _triangle(start) + (span.rows - growing) * window


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


class _Kind(NamedTuple):
    """Layers that are alike in all that attention costs. Widths are in values of a token."""

    window: int | None
    q_width: int
    kv_width: int
    stores: bool


class _Sizes(NamedTuple):
    """A model's sizes, the same in every step.

    kinds: each with how many layers are of it. experts: each with the weights of one, and how many layers have them.
    """

    streamed: int
    active: int
    kinds: tuple[tuple[_Kind, int], ...]
    experts: tuple[tuple[Experts, int, int], ...]

    def unread(self, rows: int) -> float:
        """Weights of experts that none of `rows` rows chooses, as expected."""
        return sum(
            layers * (experts.count - distinct_experts(experts, rows)) * weights
            for experts, weights, layers in self.experts
        )


@cache
def _sizes(config: ModelConfig) -> _Sizes:
    """A workload has thousands of steps, and adding up a model's weights takes longer than a step's spans."""
    layers = [config.layer(index) for index in range(config.num_layers)]
    kinds = Counter(
        _Kind(config.windows[index], layer.q_width, layer.kv_width, config.stores_kv(index))
        for index, layer in enumerate(layers)
    )
    experts = Counter(each for each in config.experts if each is not None)
    return _Sizes(
        streamed_parameters(config),
        active_parameters(config),
        tuple(kinds.items()),
        tuple((each, expert_parameters(config, each), count) for each, count in experts.items()),
    )
