"""Up to which batch is another sequence almost free?"""

from gradus.bench.declare.declaration import FIRST_ROW, Benchmark, Row, Table
from gradus.bench.predict.prediction import static
from gradus.bench.workloads import burst

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_ON_A_CPU = 32


def _batch(count: int) -> Row:
    """All alike, so that nothing is padding: the question is the batch alone."""
    on = {"cuda": burst(count, 32, 200)} | ({"cpu": burst(count, 32, 64)} if count <= MOST_ON_A_CPU else {})
    return Row(str(count), count, on)


BENCHMARK = Benchmark(
    question="Sequences of equal length, started together: how many tokens per second as the batch doubles?",
    prediction=(
        "A step reads the weights once for all its sequences, so until arithmetic or the reading of the caches takes "
        "longer than that, twice the batch is twice the tokens in the same time. The knee comes where the operations "
        "of the batch's rows take as long as the bytes of the weights: early on a CPU, late on a GPU."
    ),
    policy=static,
    tables=(
        Table(
            name="batch-size",
            title="Tokens per second against batch size",
            axis="sequences at once",
            rows=tuple(_batch(count) for count in BATCHES),
            quick=tuple(Row(str(count), count, burst(count, 16, 12)) for count in (1, 8)),
            contenders=("p02",),
            columns=("itl_ms", "ttft_ms", "host_us", "peak_mb"),
            against=FIRST_ROW,
        ),
        Table(
            name="padding",
            title="Eight at a time, mixed lengths: what padding costs",
            axis="workload",
            rows=(
                Row(
                    "mixed",
                    0,
                    {"cuda": burst(32, (32, 256), (32, 256)), "cpu": burst(16, (16, 64), (16, 64))},
                    batch=8,
                ),
            ),
            quick=(Row("mixed lengths", 0, burst(8, (4, 16), (4, 16)), batch=4),),
            quick_title="Four at a time, mixed lengths: what padding costs",
            contenders=("p01", "p02"),
            columns=("padding", "ttft_ms", "itl_ms", "e2e_ms_p99"),
            against="p01",
        ),
    ),
    profile=("p01", "p02"),
    step="Several sequences share a reading of the weights; {chat/all/p02/padding} of the rows are filler.",
)
