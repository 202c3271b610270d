"""The open task: forty answers in sixteen pages, and little computed twice.

p04 lets sequences in as soon as their prompts fit, and learns later that their answers do not. Whatever it then
preempts, it computes again. Running few at a time would avoid that, and take more steps: both are counted.
"""

from random import Random
from typing import Any

from gradus.course.open.declaration import Open, Trial
from gradus.course.open.workload import Ask, options, play, prompt, small_model

START = '''"""p04's open task. So far this is p04 itself, which scores 1.00."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p04_paged_cache.cache import PagedCache
from phases.p04_paged_cache.engine import paged_engine
from phases.p04_paged_cache.scheduler import PagedBatching


class Yours(PagedBatching):
    """Change what you like: which sequence starts, which is preempted, which waits."""


def build(model: Model, options: EngineOptions) -> Engine:
    cache = PagedCache(options.cache_blocks, options.page_size)
    return paged_engine(model, options, Yours(cache, options.max_sequences))
'''

PAGES, PAGE_SIZE, REQUESTS = 16, 8, 40


def asks(seed: int) -> list[Ask]:
    """Two arrivals per step; prompts of up to three pages, answers of up to six."""
    random = Random(seed)
    return [
        Ask(f"r{number}", prompt(random, random.randint(4, 20)), random.randint(6, 44), number // 2)
        for number in range(REQUESTS)
    ]


def trial(yours: Any, seed: int) -> Trial:
    model, wanted = small_model(seed), asks(seed)
    settings = options(model, max_sequences=16, page_size=PAGE_SIZE, cache_tokens=PAGES * PAGE_SIZE)
    played = play(yours.build, model, settings, wanted, storage=True)
    once = sum(len(ask.prompt) + ask.tokens - 1 for ask in wanted)
    bytes_held = max(step.live for step in played.steps)
    return {"recomputed": played.rows - once, "steps": len(played.steps), "bytes": bytes_held}


TASK = Open(
    goal="Serve forty answers from sixteen pages, and compute at most a quarter of the rows that p04 computes "
    "again, in no more steps and no more memory.",
    counts="recomputed",
    unit="rows computed again",
    reach=0.25,
    bounds={"steps": 1.0, "bytes": 1.02},
    trial=trial,
    start=START,
)
