"""The open task: the graphs that a load needs, and no others.

p10 records every size that it might need before the first request, and fills a batch up to the next one. Each graph
takes time at the start and memory for good; each row of padding is computed in every step. A load that is known a
little better needs fewer of both, and it is known best while it runs.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from torch import Tensor

from gradus.config.options import EngineOptions
from gradus.course.open.declaration import Open, Refused, Trial
from gradus.course.open.workload import Ask, options, play, prompt, small_model
from gradus.engine.engine import Engine
from gradus.models import Model
from phases.p10_cuda_graphs.recording import Recording

START = '''"""p10's open task. So far this is p10 itself, which scores 1.00."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p04_paged_cache.attention import PageTensors
from phases.p05_prefix_cache.cache import PrefixCache
from phases.p09_triton_attention.paged_attention import paged_attention_reference
from phases.p10_cuda_graphs.graph_runner import GraphAttention, GraphRunner, Recorder
from phases.p10_cuda_graphs.scheduler import PlanningAhead


class Yours(GraphRunner):
    """Change what you like: which sizes are recorded, when, and which steps are replayed.

    A recording costs 40 rows, a decode step that is not replayed 24, and each row of padding one.
    """


def build(model: Model, options: EngineOptions, record: Recorder) -> Engine:
    storage = PageTensors(model.config, options.cache_blocks, options.page_size, model.dtype, model.device)
    attention = GraphAttention(model.config, storage, paged_attention_reference)
    sampler, slots = Sampler(model.config.vocab_size, model.device), options.max_sequences
    pages = -(-options.limits.context_length // options.page_size)
    scheduler = PlanningAhead(PrefixCache(options.cache_blocks, options.page_size), slots, token_budget=256)
    return Engine(scheduler, Yours(model, attention, sampler, slots, pages, record), options.limits, lag=1)
'''

SLOTS, LEVELS, LENGTH = 24, 4, 24
RECORDING, LAUNCHES = 40, 24  # what a recording costs, and a decode step without one, in rows


class Counted:
    """The recorder for a CPU, which counts recordings and replays. rows: computed while a step was recorded."""

    def __init__(self) -> None:
        self.recordings = self.replays = self.rows = 0

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def noted() -> Tensor:
            out = step()
            self.rows += len(out)
            return out

        self.recordings += 1
        replay = Recording.of(noted)

        def counted() -> Tensor:
            self.replays += 1
            return replay()

        return counted


def asks(seed: int) -> list[Ask]:
    """The load stays at a level for a while, then at another: answers of about one length begin together."""
    random = Random(seed)
    levels = random.sample(range(3, SLOTS), LEVELS)
    return [
        Ask(f"r{at} {number}", prompt(random, random.randint(2, 6)), LENGTH + random.randint(-3, 3), at * 2 * LENGTH)
        for at, level in enumerate([*levels, *levels])
        for number in range(level)
    ]


def trial(yours: Any, seed: int) -> Trial:
    counted, model = Counted(), small_model(seed)

    def build(model: Model, settings: EngineOptions) -> Engine:
        engine: Engine = yours.build(model, settings, counted)
        counted.rows = 0  # those of recordings before the first step are in no step
        return engine

    settings = options(model, max_sequences=SLOTS, page_size=16, cache_tokens=SLOTS * 64)
    played = play(build, model, settings, asks(seed))
    steps = [seen.step for seen in played.steps if seen.step]
    decodes = [step for step in steps if all(span.count == 1 for span in step.spans)]
    if counted.replays > len(decodes):
        raise Refused("more was replayed than there were steps of decodes")
    padding = played.rows - counted.rows - sum(step.tokens for step in steps)
    eager = len(decodes) - counted.replays
    return {"cost": padding + RECORDING * counted.recordings + LAUNCHES * eager, "steps": len(played.steps)}


TASK = Open(
    goal="Serve a load that changes its level at 85 % of p10's cost of graphs: 40 rows for each recording, 1 for each "
    "row of padding, 24 for a decode step without a graph.",
    counts="cost",
    unit="rows' worth of recordings, padding and launches",
    reach=0.85,
    bounds={"steps": 1.02},
    trial=trial,
    start=START,
    trials=4,
)
