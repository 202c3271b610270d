"""How slow is the slowest correct engine, and what is its time made of?"""

from gradus.bench.declare.declaration import Account, Benchmark, Row, Table
from gradus.bench.predict.prediction import recompute
from gradus.bench.workloads import single_stream

OUTPUTS = {"cpu": (25, 50, 100), "cuda": (50, 100, 200, 400)}


def _answer(output: int) -> Row:
    return Row(str(output), output, {on: single_stream(32, output) for on, which in OUTPUTS.items() if output in which})


BENCHMARK = Benchmark(
    question="How does the time of an answer grow with its length when nothing is kept between two tokens?",
    prediction=(
        "Every token costs a forward pass over all tokens so far, so the rows grow with the square of the answer's "
        "length. Where arithmetic is the limit, time grows with the rows: the longer the answer, the fewer tokens per "
        "second. Where the weights' bytes or the launches are the limit, the extra rows cost little, and the tokens "
        "per second stay almost level."
    ),
    policy=recompute,
    tables=(
        Table(
            name="output-length",
            title="The longer the answer, the slower",
            axis="tokens generated",
            rows=tuple(_answer(output) for output in sorted({*OUTPUTS["cpu"], *OUTPUTS["cuda"]})),
            quick=tuple(Row(str(output), output, single_stream(16, output)) for output in (8, 48)),
            contenders=("p00",),
            columns=("rows", "itl_ms", "itl_ms_p99"),
            against="first row",
            scale="linear",
        ),
    ),
    profile=("p00",),
    accounts={
        "h200": Account(
            explains=(
                "From the shortest answer to the longest the rows grow from {output-length/50/p00/rows} to "
                "{output-length/400/p00/rows}, and the time between two tokens hardly by half, from "
                "{output-length/50/p00/itl_ms} to {output-length/400/p00/itl_ms} ms. A short sequence's step is a "
                "string of launches: {profile/p00/kernels} kernels, each of which Python must ask for, whether it then "
                "works on thirty rows or on three hundred. At a context of {profile/p00/context} the kernels do catch "
                "up with the launches: they run for {profile/p00/device_ms} of {profile/p00/step_ms} ms, most of it in "
                "float32 products, which this GPU does without its matrix units. So the ratio to the prediction falls "
                "from {output-length/50/p00/times_floor} to {output-length/400/p00/times_floor} as the answer grows: "
                "the arithmetic that was predicted comes to be what is measured."
            ),
            loses=(
                "Against itself: the longest answer comes at {output-length/400/p00/speedup} times the rate of the "
                "shortest, and that falls on for as long as the answer goes on."
            ),
        ),
        "cpu": Account(
            explains=(
                "Four times the answer takes {output-length/100/p00/rows} rows instead of {output-length/25/p00/rows}, "
                "and the time between two tokens grows from {output-length/25/p00/itl_ms} to "
                "{output-length/100/p00/itl_ms} ms: a processor has no arithmetic to spare, so what is computed again "
                "shows at once. That it grows more slowly than the rows do is the weights' doing, which every step "
                "reads whatever its length. Steps are {output-length/25/p00/times_floor} to "
                "{output-length/100/p00/times_floor} times the prediction: products of a few dozen rows are too thin "
                "for the rate that a large product was measured at."
            ),
            loses=(
                "Against itself, sooner than on a GPU: the longest of these answers comes at "
                "{output-length/100/p00/speedup} times the rate of the shortest."
            ),
        ),
    },
    step="Computes the whole sequence again for every token: {chat/all/p00/rows} rows.",
)
