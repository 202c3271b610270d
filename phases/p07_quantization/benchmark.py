"""A byte for each weight of the layers: what is a token worth then, and what does widening in torch take of it?"""

from collections.abc import Sequence

from gradus.bench.declare.declaration import Benchmark, Row, Table
from gradus.bench.predict.prediction import Clock, reusing
from gradus.bench.predict.roofline import Widths, streamed_parameters
from gradus.bench.workloads import Job, Workload, burst, single_stream
from gradus.models.config import ModelConfig, matrix_parameters

BYTES = {"int8": 1.0, "int4": 4.5 / 8}
"""Per weight of the layers. p07's engine has eight bits; a row's scale, 4 bytes for all of it, is left out."""


def bytes_per_weight(config: ModelConfig, layers: float, rest: float) -> float:
    """Average over all weights that a step reads: `layers` for those of the layers' matrices, `rest` for the others.

    Most of the rest is the head, which is unchanged.
    """
    matrices, read = matrix_parameters(config), streamed_parameters(config)
    return (matrices * layers + (read - matrices) * rest) / read


def quantized(jobs: Sequence[Job], clock: Clock, batch: int) -> None:
    """p06's schedule, in which a step reads a byte for each weight of the layers."""
    wide = clock.widths
    clock.widths = Widths(bytes_per_weight(clock.config, BYTES["int8"], wide.weight), wide.kv)
    reusing(jobs, clock, batch)


PROMPTS = {"cpu": (32, 256), "cuda": (128, 4096)}
BATCHES = {"cpu": (1, 4, 16), "cuda": (1, 16, 64)}


def _prompt(length: int) -> Row:
    work = {device: single_stream(length, 32) for device, lengths in PROMPTS.items() if length in lengths}
    return Row(f"{length:,}", length, work, batch=1)


def _batch(size: int) -> Row:
    lengths: dict[str, tuple[int, int]] = {"cpu": (32, 24), "cuda": (128, 64)}
    work: dict[str, Workload] = {
        device: burst(size, *lengths[device]) for device, sizes in BATCHES.items() if size in sizes
    }
    return Row(str(size), size, work, batch=size)


BENCHMARK = Benchmark(
    question="Half the bytes for each weight: is that half the time?",
    prediction=(
        "A token of a single stream costs the bytes of all weights. A byte for each weight of the layers, and the head "
        "as it was, is a little more than half of them in bfloat16, so a decode's floor falls by almost as much. It "
        "falls for few rows only: with many the step waits for arithmetic, which is the same, for the weights are "
        "widened before they are multiplied. And none of this need show. Torch widens a matrix by writing it anew: "
        "for each weight a product reads one byte, and then writes and reads wide copies of it, where p06 reads two or "
        "four bytes once. So p07 should be slower than p06, until a kernel widens in registers; less so where the "
        "copies stay in a processor's cache. What is sure to be smaller is the memory that the weights take."
    ),
    policy=quantized,
    tables=(
        Table(
            name="alone",
            title="One sequence at a time",
            axis="tokens of prompt",
            rows=tuple(_prompt(length) for length in sorted({*PROMPTS["cpu"], *PROMPTS["cuda"]})),
            quick=(Row("16", 16, single_stream(16, 16), batch=1),),
            contenders=("p06", "p07"),
            metric="itl_ms",
            columns=("output_tok_s", "ttft_ms", "itl_ms_p99"),
            against="p06",
        ),
        Table(
            name="batch",
            title="Several at once",
            axis="sequences at once",
            rows=tuple(_batch(size) for size in sorted({*BATCHES["cpu"], *BATCHES["cuda"]})),
            quick=(Row("4", 4, burst(4, 16, 12), batch=4),),
            contenders=("p06", "p07"),
            columns=("itl_ms", "ttft_ms"),
            against="p06",
        ),
    ),
    profile=("p06", "p07"),
    step="Beside the ladder, p06 with a byte per weight, in plain torch: {chat/all/p07/itl_ms} ms between tokens.",
)
