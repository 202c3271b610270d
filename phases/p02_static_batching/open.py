"""The open task: batches with less than half of the padding.

p02 takes sequences in the order in which they came. A batch of unlike lengths is mostly padding: short prompts are
filled up at the start, and rows of ended sequences until the last one ends. Whoever chooses must not forget anyone.
"""

from random import Random
from typing import Any

from gradus.course.open.declaration import Open, Refused, Trial
from gradus.course.open.workload import Ask, Played, options, play, prompt, small_model

START = '''"""p02's open task. So far this is p02 itself, which scores 1.00."""

from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.models import Model
from gradus.sampling.sampler import Sampler
from phases.p02_static_batching.padded import PaddedAttention, PaddedRunner
from phases.p02_static_batching.scheduler import StaticBatching
from phases.p02_static_batching.slots import Slots, SlotTensors


class Yours(StaticBatching):
    """Change what you like about which sequences share a batch. It still starts together and ends together."""


def build(model: Model, options: EngineOptions) -> Engine:
    capacity, count = options.limits.context_length, options.max_sequences
    attention = PaddedAttention(model.config, SlotTensors(model.config, count, capacity, model.dtype, model.device))
    runner = PaddedRunner(model, attention, Sampler(model.config.vocab_size, model.device))
    return Engine(Yours(Slots(capacity, count), count), runner, options.limits)
'''

REQUESTS, PASSED = 48, 12  # PASSED: the most later requests that may start before one


def asks(seed: int) -> list[Ask]:
    """Short and long prompts, short and long answers, in any combination: some there at once, some later."""
    random = Random(seed)
    lengths = [(random.choice((4, 8, 40, 60)), random.choice((4, 8, 40, 56))) for _ in range(REQUESTS)]
    return [
        Ask(f"r{number}", prompt(random, one + random.randint(0, 4)), other + random.randint(0, 4), 4 * number)
        for number, (one, other) in enumerate(lengths)
    ]


def check_batches(played: Played, wanted: list[Ask]) -> None:
    """Raises Refused for a batch that others join, and for a request that too many later ones have passed."""
    order: list[str] = []
    for seen in played.steps:
        if seen.step and seen.step.admitted:
            if set(seen.step.admitted) != set(seen.step.running):
                raise Refused("a sequence started while others ran: that is p03's idea")
            order += [name for name, _ in seen.step.admitted]
    started = {name: place for place, name in enumerate(order)}
    for number, ask in enumerate(wanted):
        passed = sum(started[later.name] < started[ask.name] for later in wanted[number + 1 :])
        if passed > PASSED:
            raise Refused(f"{ask.name} was passed by {passed} later requests, and {PASSED} is the most")


def trial(yours: Any, seed: int) -> Trial:
    model, wanted = small_model(seed), asks(seed)
    played = play(yours.build, model, options(model, max_sequences=4), wanted)
    check_batches(played, wanted)
    needed = sum(len(ask.prompt) + ask.tokens - 1 for ask in wanted)
    return {"padding": played.rows - needed, "steps": len(played.steps)}


TASK = Open(
    goal="Form batches with 45 % of p02's rows of padding, in no more steps. A batch still starts and ends together, "
    "and at most 12 later requests start before one.",
    counts="padding",
    unit="rows of padding",
    reach=0.45,
    bounds={"steps": 1.0},
    trial=trial,
    start=START,
)
