"""Fewer bits for each weight of the layers: what does a token cost then, multiplied as they are or widened first?"""

from collections.abc import Sequence

from gradus.bench.declare.declaration import Benchmark, Row, Table
from gradus.bench.predict.prediction import Clock, reusing
from gradus.bench.predict.roofline import Widths, streamed_parameters
from gradus.bench.workloads import Job, Workload, burst, single_stream
from gradus.models.config import ModelConfig, matrix_parameters

BYTES = {"int8": 1.0, "int4": 4.5 / 8}
"""Per weight of the layers. A row's scale for eight bits, 4 bytes for all of it, is left out."""

GPU_RATE = 10e12
"""Operations per second that every GPU of this course exceeds, and no CPU reaches: p07 has eight bits on the one, and
four on the other."""


def bytes_per_weight(config: ModelConfig, layers: float, rest: float) -> float:
    """Average over all weights that a step reads: `layers` for those of the layers' matrices, `rest` for the others.

    Most of the rest is the head, which is unchanged.
    """
    matrices, read = matrix_parameters(config), streamed_parameters(config)
    return (matrices * layers + (read - matrices) * rest) / read


def quantized(jobs: Sequence[Job], clock: Clock, batch: int) -> None:
    """p06's schedule, in which a step reads fewer bytes for each weight of the layers."""
    wide, scheme = clock.widths, "int8" if clock.machine.rate > GPU_RATE else "int4"
    clock.widths = Widths(bytes_per_weight(clock.config, BYTES[scheme], wide.weight), wide.kv)
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
    question="A quarter of the bytes for each weight: is that a quarter of the time?",
    prediction=(
        "A token of a single stream costs the bytes of all weights. In bfloat16 SmolLM2's are 269 MB. With four bits "
        "and a half for each weight of the layers, and the head as it was, they are 116 MB, so a decode's floor falls "
        "to 0.43 of what it was. It falls for few rows only: with many the step waits for arithmetic, and that is the "
        "same. Whether it shows depends on who widens the weights. On a CPU p07 multiplies codes in registers, so what "
        "reading weights takes of a step should shrink by nearly as much as their bytes; attention and the host's part "
        "of a step stay. On a GPU p07 keeps eight bits and torch widens them, by writing the matrix anew: for each "
        "weight a product reads one byte, then writes and reads wide copies of it, where p06 reads two bytes once. "
        "There p07 should be slower than p06, until a kernel widens in registers."
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
    step="Beside the ladder, p06 with fewer bits per weight: {chat/all/p07/itl_ms} ms between tokens.",
)
