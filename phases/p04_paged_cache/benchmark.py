"""How many sequences does the same memory hold when they take it page by page, and what does the detour cost?"""

from gradus.bench.declare.declaration import Account, Benchmark, Row, Table
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
    accounts={
        "h200": Account(
            explains=(
                "At {memory/256/p04/cache_mb} MB instead of {memory/256/p03/cache_mb} for two hundred and fifty-six "
                "sequences, pages hold the same tokens in {memory/256/p04/speedup} times less memory: of what a slot "
                "reserves {memory/256/p03/waste} is never filled, of pages {memory/256/p04/waste}. With a thousand and "
                "twenty-four slots hold {memory/1024/p03/cache_mb} MB and pages {memory/1024/p04/cache_mb}. Twice as "
                "many slots are more than this GPU has; pages are, too, as long as their pool is made for the worst "
                "case, as in this table: what they gain is that it may be smaller. A sequence alone gains less, "
                "{memory/1/p04/speedup} times, because the first of these workloads happens to be a long one. That the "
                "larger batches are also faster, {memory/256/p04/output_tok_s} against {memory/256/p03/output_tok_s} "
                "tok/s, has another reason than memory: p03's attention works on a rectangle as long as its longest "
                "slot and reads all of it, for every sequence. Given the same memory instead, that of sixteen slots, "
                "pages run the same requests at {equal-memory/16,384/p04/output_tok_s} tok/s where slots reach "
                "{equal-memory/16,384/p03/output_tok_s}, and the first token comes after "
                "{equal-memory/16,384/p04/ttft_ms} ms, not {equal-memory/16,384/p03/ttft_ms}: what ran out was memory, "
                "and {equal-memory/16,384/p04/preemptions} preemptions are what betting on it cost. Four times the "
                "memory makes the gain smaller, {equal-memory/65,536/p04/speedup} times, for then launches set the "
                "pace of both."
            ),
            loses=(
                "The detour. Alone, a sequence does not notice it ({gather/1/p04/itl_ms} against {gather/1/p03/itl_ms} "
                "ms between tokens), for launches are all that a step takes; with the batch the copies grow, and at a "
                "hundred and twenty-eight sequences it is {gather/128/p04/itl_ms} ms against {gather/128/p03/itl_ms}. "
                "The peak of the device's memory is the same for both ({memory/256/p03/peak_mb} and "
                "{memory/256/p04/peak_mb} MB), because both allocate their whole cache when they are built. Pages "
                "save memory only where the room is used: by more sequences at once."
            ),
        ),
        "cpu": Account(
            explains=(
                "People's lengths against a promised context: a batch of sixteen holds {memory/16/p04/cache_mb} MB in "
                "pages and {memory/16/p03/cache_mb} in slots, {memory/16/p04/speedup} times less; of the slots "
                "{memory/16/p03/waste} is empty, of the pages {memory/16/p04/waste}. Given the same memory, slots run "
                "as many sequences as whole contexts fit, and the others wait: the smaller cache gives "
                "{equal-memory/4,096/p03/output_tok_s} tok/s and a first token after "
                "{equal-memory/4,096/p03/ttft_ms} ms, pages {equal-memory/4,096/p04/output_tok_s} tok/s after "
                "{equal-memory/4,096/p04/ttft_ms} ms, without a preemption."
            ),
            loses=(
                "The detour, in every layer of every step: {gather/1/p04/itl_ms} ms between tokens against "
                "{gather/1/p03/itl_ms} alone, {gather/16/p04/itl_ms} against {gather/16/p03/itl_ms} at sixteen equal "
                "sequences, for which slots are a rectangle without gaps. The matrices' products are most of a step, "
                "so it costs a small part of the time. The host has more to do, too: {gather/32/p04/host_us} µs per "
                "step against {gather/32/p03/host_us} at thirty-two."
            ),
        ),
    },
    step="Pages instead of reserved slots: more sequences fit, {chat/all/p04/tokens_a_step} tokens per step.",
)
