"""How slow is the slowest correct engine, and what is its time made of?"""

from gradus.bench.declare.declaration import Benchmark, Row, Table
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
    step="Computes the whole sequence again for every token: {chat/all/p00/rows} rows.",
)
