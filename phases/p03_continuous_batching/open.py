"""The open task: shorter waits by another order.

A request of four tokens waits behind one of a hundred. Running the shortest first is best on average, and long ones
would never start. The mean time is scored, and the longest is bounded.
"""

from random import Random
from typing import Any

from gradus.course.open.declaration import Open, Trial
from gradus.course.open.workload import Ask, options, play, prompt, small_model

START = '''"""p03's open task. So far this is p03 itself, which scores 1.00."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p00_baseline.runner import ModelRunner
from phases.p02_static_batching.slots import Slots, SlotTensors
from phases.p03_continuous_batching.mixed import MixedAttention
from phases.p03_continuous_batching.scheduler import ContinuousBatching


class Yours(ContinuousBatching):
    """Change what you like: the order of requests, which sequence keeps its slot.

    A request's `max_tokens` is in `sequence.request.params`.
    """


def build(model: Model, options: EngineOptions) -> Engine:
    capacity, count = options.limits.context_length, options.max_sequences
    attention = MixedAttention(model.config, SlotTensors(model.config, count, capacity, model.dtype, model.device))
    runner = ModelRunner(model, attention, Sampler(model.config.vocab_size, model.device))
    return Engine(Yours(Slots(capacity, count), count), runner, options.limits)
'''

REQUESTS, SLOTS = 80, 4


def asks(seed: int) -> list[Ask]:
    """Four of five answers are short. They arrive a little faster than the slots can serve them."""
    random = Random(seed)
    lengths = [random.randint(50, 110) if number % 5 == 0 else random.randint(4, 16) for number in range(REQUESTS)]
    random.shuffle(lengths)
    return [
        Ask(f"r{number}", prompt(random, random.randint(3, 12)), tokens, 5 * number)
        for number, tokens in enumerate(lengths)
    ]


def trial(yours: Any, seed: int) -> Trial:
    model, wanted = small_model(seed), asks(seed)
    played = play(yours.build, model, options(model, max_sequences=SLOTS), wanted)
    times = [played.when(ask.name)[-1] + 1 - played.arrived[ask.name] for ask in wanted]
    return {"mean": sum(times) / len(times), "longest": max(times), "rows": played.rows}


TASK = Open(
    goal="Make the mean time from a request's arrival to its last token 30 % shorter than p03's, and the longest at "
    "most 1.35 times as long, with 10 % more rows at most.",
    counts="mean",
    unit="steps from arrival to the last token, on average",
    reach=0.7,
    bounds={"longest": 1.35, "rows": 1.1},
    trial=trial,
    trials=4,
    start=START,
)
