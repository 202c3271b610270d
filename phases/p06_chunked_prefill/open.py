"""The open task: the worst gap between two tokens, a fifth shorter, at nearly the same throughput.

Time is counted, so it is the same on every machine: a step costs FIXED, and a row costs 1 and KEY for each position
that it attends to. So a chunk at a prompt's end costs more than one of as many tokens at its beginning, and a smaller
budget pays FIXED more often.
"""

from itertools import pairwise
from random import Random
from typing import Any

from gradus.course.open.declaration import Open, Refused, Trial
from gradus.course.open.workload import Ask, Played, Seen, options, play, prompt, small_model

START = '''"""p06's open task. So far this is p06 itself, which scores 1.00."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p04_paged_cache.engine import paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p06_chunked_prefill.scheduler import ChunkedPrefill

FIXED, ROW, KEY = 40.0, 1.0, 1 / 256  # the cost of a step, of a row in it, and of each position that the row attends to


class Yours(ChunkedPrefill):
    """Change what you like: how long a chunk is, and in which steps there is one."""


def build(model: Model, options: EngineOptions) -> Engine:
    cache = PrefixCache(options.cache_blocks, options.page_size)
    return paged_engine(model, options, Yours(cache, options.max_sequences, options.token_budget or 64))
'''

FIXED, ROW, KEY = 40.0, 1.0, 1 / 256
BUDGET = 64


def asks(seed: int) -> list[Ask]:
    """Six people read answers. Meanwhile others paste long texts, now and then two at once."""
    random = Random(seed)
    readers = [
        Ask(f"reader {number}", prompt(random, random.randint(4, 24)), random.randint(60, 90), 2 * number)
        for number in range(6)
    ]
    texts = [
        Ask(f"text {number}", prompt(random, random.randint(240, 440)), random.randint(2, 8), 5 * number + at)
        for number in range(14)
        for at in [random.randint(0, 8)]
    ]
    return [*readers, *texts]


def cost(seen: Seen) -> float:
    """The time of a step. Raises Refused if the layers computed other rows than the plan says."""
    spans = seen.step.spans if seen.step else ()
    if abs(seen.rows - sum(span.count for span in spans)) > 0.01:
        raise Refused(
            f"a step's plan has {sum(span.count for span in spans)} tokens, and {seen.rows:.1f} were computed"
        )
    keys = sum(span.count * span.start + span.count * (span.count + 1) / 2 for span in spans)
    return FIXED + ROW * seen.rows + KEY * keys


def worst_gap(played: Played, wanted: list[Ask]) -> float:
    """The longest time between two tokens of any answer."""
    ends, now = [], 0.0
    for step in played.steps:
        now += cost(step)
        ends.append(now)
    tokens = [[ends[number] for number in played.when(ask.name)] for ask in wanted]
    return max(later - sooner for times in tokens for sooner, later in pairwise(times))


def trial(yours: Any, seed: int) -> Trial:
    model, wanted = small_model(seed), asks(seed)
    settings = options(model, max_sequences=12, page_size=16, cache_tokens=4096, token_budget=BUDGET)
    played = play(yours.build, model, settings, wanted)
    return {"gap": worst_gap(played, wanted), "time": sum(map(cost, played.steps))}


TASK = Open(
    goal="Make the worst gap between two tokens at least 20 % shorter than p06's, and keep 97 % of its throughput.",
    counts="gap",
    unit="rows' worth of time, in the longest gap",
    reach=0.8,
    bounds={"time": 1.03},
    trial=trial,
    start=START,
)
