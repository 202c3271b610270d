"""The open task: a better choice of pages to forget.

p05 evicts the page that has been idle longest. A long prompt that never comes again then pushes out prefixes that come
back all the time. What is counted is rows: each hit saves some.
"""

from random import Random
from typing import Any

from gradus.course.open.declaration import Open, Trial
from gradus.course.open.workload import Ask, options, play, prompt, small_model

START = '''"""p05's open task. So far this is p05 itself, which scores 1.00."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p04_paged_cache.engine import paged_engine
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p05_prefix_cache.scheduler import PrefixBatching


class Yours(PrefixCache):
    """Change what you like: which page is evicted, which are published, what is remembered of those that are gone."""


def build(model: Model, options: EngineOptions) -> Engine:
    cache = Yours(options.cache_blocks, options.page_size)
    return paged_engine(model, options, PrefixBatching(cache, options.max_sequences))
'''

PAGES, PAGE_SIZE, REQUESTS = 48, 8, 160
SYSTEMS, SKEW = 16, 1.0  # prompts that come back, the k-th with a weight of k^-SKEW


def asks(seed: int) -> list[Ask]:
    """Two of three requests begin with one of a few prompts. The third is long, and never comes again."""
    random = Random(seed)
    systems = [prompt(random, random.choice((32, 40, 48))) for _ in range(SYSTEMS)]
    weights = [(1 + place) ** -SKEW for place in range(SYSTEMS)]
    wanted = []
    for number in range(REQUESTS):
        (shared,) = random.choices(systems, weights)
        alone = random.random() < 1 / 3
        text = prompt(random, 64) if alone else shared + prompt(random, random.randint(2, 10))
        wanted.append(Ask(f"r{number}", text, 2, number))
    return wanted


def trial(yours: Any, seed: int) -> Trial:
    model = small_model(seed)
    settings = options(model, max_sequences=4, page_size=PAGE_SIZE, cache_tokens=PAGES * PAGE_SIZE)
    played = play(yours.build, model, settings, asks(seed), storage=True)
    return {"rows": played.rows, "bytes": max(step.live for step in played.steps), "steps": len(played.steps)}


TASK = Open(
    goal="Choose better which pages to forget: serve a mixed trace with 88 % of the rows that p05 computes for it, in "
    "the same pages.",
    counts="rows",
    unit="rows",
    reach=0.88,
    bounds={"bytes": 1.02, "steps": 1.05},
    trial=trial,
    start=START,
)
