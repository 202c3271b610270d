"""Up to which batch is another sequence almost free?"""

from gradus.bench.declare.declaration import FIRST_ROW, Account, Benchmark, Row, Table
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
    accounts={
        "cpu": Account(
            explains=(
                "Twice the batch is far from twice the tokens per second here: {batch-size/2/p02/speedup} times with "
                "two, {batch-size/8/p02/speedup} with eight, {batch-size/32/p02/speedup} with thirty-two. The weights "
                "are kept in bfloat16, which this processor can multiply only row by row: each row costs about as "
                "much again, so up to a handful of sequences a step grows with its rows "
                "({batch-size/1/p02/itl_ms}, {batch-size/2/p02/itl_ms}, {batch-size/4/p02/itl_ms} ms between tokens). "
                "From eight on it is cheaper to widen the weights first, once for all rows: a step then takes "
                "{batch-size/8/p02/itl_ms} ms, and hardly longer with twice as many ({batch-size/16/p02/itl_ms}), so "
                "from there on the batch pays."
            ),
            loses=(
                "In between: a batch of four has each of its users wait {batch-size/4/p02/itl_ms} ms for a token, for "
                "{batch-size/4/p02/speedup} times the tokens per second. Filler costs what rows cost on a CPU, so with "
                "mixed lengths static batching gains {padding/mixed/p02/speedup} times over one after the other, with "
                "{padding/mixed/p02/padding} of the rows empty."
            ),
        ),
        "h200": Account(
            explains=(
                "While the step is a string of launches, another sequence is free: from one to sixteen the time "
                "between tokens stays near {batch-size/1/p02/itl_ms} ms ({batch-size/16/p02/itl_ms} at sixteen), and "
                "the tokens per second go up {batch-size/16/p02/speedup} times. That is a different reason than the "
                "predicted one, the weights' bytes, which would allow steps many times as short: the ratio begins at "
                "{batch-size/1/p02/times_floor}. From {batch-size/128/p02/itl_ms} ms at a batch of a hundred and "
                "twenty-eight on, the GPU's own work shows, and the ratio falls to {batch-size/512/p02/times_floor}: "
                "float32 products without matrix units are close to their predicted limit. The largest batch makes "
                "{batch-size/512/p02/output_tok_s} tok/s, {batch-size/512/p02/speedup} times the first, in "
                "{batch-size/512/p02/peak_mb} MB. In bfloat16 the arithmetic ends later, so the same batch gives "
                "{random:gpt2-124m, bfloat16: batch-size/512/p02/speedup} times, and the larger Llama "
                "{random:llama-3.2-1b, bfloat16: batch-size/512/p02/speedup}. Sequences of mixed lengths, eight at a "
                "time, gain less, {padding/mixed/p02/speedup} times: {padding/mixed/p02/padding} of the rows are "
                "filler."
            ),
            loses=(
                "At a batch of one it is slower than p01: a step launches {profile/p02/kernels} kernels instead of "
                "{profile/p01/kernels}, for the mask and for stores and reads by slot, and takes {profile/p02/step_ms} "
                "instead of {profile/p01/step_ms} ms. The first token comes later as the batch grows, "
                "{batch-size/512/p02/ttft_ms} ms for the largest, because all prompts are one step. And memory is "
                "taken for every slot at its full length, filled or not."
            ),
        ),
    },
    step="Several sequences share a reading of the weights; {chat/all/p02/padding} of the rows are filler.",
)
