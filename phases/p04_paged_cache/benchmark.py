"""How many sequences does the same memory hold when they take it page by page, and what does the detour cost?"""

from gradus.bench.declare.declaration import Benchmark, Row, Table
from gradus.bench.predict.prediction import continuous
from gradus.bench.workloads import Workload, burst, conversational

CONTEXT = 1024  # what a server promises, whatever is really asked of it
BATCHES = {"cuda": (1, 4, 16, 64, 256, 1024, 2048), "cpu": (1, 4, 8, 16)}
POOLS = {"cuda": (16_384, 65_536), "cpu": (4_096, 8_192)}
GATHERED = {"cuda": (1, 8, 32, 128), "cpu": (1, 4, 16, 32)}


def _lengths(device: str, count: int) -> Workload:
    """Draw lengths as in people's conversations; a CPU gets a quarter of the length."""
    return conversational(count) if device == "cuda" else conversational(count, prompt=50, output=45, longest=256)


def _memory(batch: int) -> Row:
    on = {device: _lengths(device, batch) for device, batches in BATCHES.items() if batch in batches}
    return Row(str(batch), batch, on, context=CONTEXT)


def _pool(positions: int) -> Row:
    counts = {"cuda": 256, "cpu": 24}
    on = {device: _lengths(device, counts[device]) for device, pools in POOLS.items() if positions in pools}
    return Row(f"{positions:,}", positions, on, batch=256, context=CONTEXT, cache_tokens=positions)


def _gather(batch: int) -> Row:
    on = {}
    if batch in GATHERED["cuda"]:
        on["cuda"] = burst(batch, 256, 64)
    if batch in GATHERED["cpu"]:
        on["cpu"] = burst(batch, 64, 24)
    return Row(str(batch), batch, on)


BENCHMARK = Benchmark(
    question="What do sequences of all lengths take of the cache's memory, page by page instead of slot by slot?",
    prediction=(
        "A slot holds the longest sequence that may come, a page sixteen positions: what a sequence wastes falls from "
        "the context's length less its own to half a page. So at the same memory as many more sequences run at once as "
        "the context is longer than they are on average, and where memory was the limit of the batch, the tokens per "
        "second grow with it. The price is a detour: where attention reads a contiguous copy of the pages, the "
        "cache's bytes are read, written and read again in every step. That costs little while the weights' bytes or "
        "the launches set the time, and up to three times attention's share when it is large."
    ),
    policy=continuous,
    tables=(
        Table(
            name="memory",
            title="Cache that a batch holds, each sequence promised a context of 1,024 tokens",
            axis="sequences at once",
            rows=tuple(_memory(batch) for batch in sorted({*BATCHES["cuda"], *BATCHES["cpu"]})),
            quick=tuple(Row(str(batch), batch, burst(batch, (4, 24), (4, 16)), context=256) for batch in (1, 4)),
            quick_title="Cache that a batch holds, each sequence promised a context of 256 tokens",
            contenders=("p03", "p04"),
            metric="cache_mb",
            columns=("waste", "output_tok_s", "itl_ms", "peak_mb"),
            against="p03",
        ),
        Table(
            name="equal-memory",
            title="The same cache for both, sequences of all lengths, as many at once as it holds",
            axis="positions of cache",
            rows=tuple(_pool(positions) for positions in sorted({*POOLS["cuda"], *POOLS["cpu"]})),
            quick=(Row("512", 512, burst(12, (4, 24), (4, 16)), batch=12, context=256, cache_tokens=512),),
            contenders=("p03", "p04"),
            columns=("ttft_ms", "ttft_ms_p99", "itl_ms", "itl_ms_p99", "e2e_ms_p99", "preemptions", "waste"),
            against="p03",
        ),
        Table(
            name="gather",
            title="The same batch in slots and in pages: what the detour costs",
            axis="sequences at once",
            rows=tuple(_gather(batch) for batch in sorted({*GATHERED["cuda"], *GATHERED["cpu"]})),
            contenders=("p03", "p04"),
            metric="itl_ms",
            columns=("output_tok_s", "ttft_ms", "host_us"),
            against="p03",
        ),
    ),
    profile=("p03", "p04"),
    step="Pages instead of reserved slots: more sequences fit, {chat/all/p04/tokens_a_step} tokens per step.",
)
