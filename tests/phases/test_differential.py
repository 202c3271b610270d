"""Two engines, one idea: a phase and the final engine with as much switched off give the same tokens.

Random arrivals into pools that are too small for them, so that sequences wait, share, come in chunks and are preempted.
The phase's parts are the lesson's, the engine's carry window groups, deltas of block tables and much else; what a
request gets must not tell them apart.
"""

import random

import pytest

from gradus.config.options import FINAL
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams, SchedulingParams
from tests.pairwise import first
from tests.phases.conftest import build_engine, limits_of, of
from tests.phases.drive import nothing_is_left, served

TWINS = {  # the phase, and what the final engine leaves out to be its twin
    "p04": {"prefix_cache": False, "chunked": False, "overlap": False},
    "p05": {"chunked": False, "overlap": False},
    "p06": {"overlap": False},
}
SHAPES = ["tiny-llama", "tiny-gpt2", "tiny-gemma3", "tiny-mistral"]
PAGE = 4
PAGES = 14
LONGEST = PAGE * PAGES // 2  # of one sequence: two may meet, and rarely three
Arrivals = list[tuple[int, Request]]


def arrivals(shape: str, seed: int) -> Arrivals:
    """Requests by the step in which they come: some begin alike, some are sampled, some have siblings or a salt."""
    draw = random.Random(seed)
    prefixes = [[draw.randrange(300) for _ in range(length)] for length in (0, 5, 9, 13)]
    made = []
    for number in range(8):
        prompt = [*draw.choice(prefixes), *(draw.randrange(300) for _ in range(draw.randint(1, 6)))]
        params = SamplingParams(
            max_tokens=draw.randint(1, LONGEST - len(prompt)),
            temperature=draw.choice([0.0, 0.0, 1.0]),
            seed=number,
            n=draw.choice([1, 1, 1, 2]),
            ignore_eos=True,
        )
        scheduling = SchedulingParams(cache_salt=draw.choice([None, None, None, "tenant"]))
        request = Request.create(f"r{number}", prompt, params, limits_of(shape), scheduling)
        made.append((draw.randrange(20), request))
    return sorted(made, key=lambda arrival: arrival[0])


def twins(phase: str, shape: str) -> tuple[Engine, Engine]:
    settings = {"max_sequences": 4, "page_size": PAGE, "cache_tokens": PAGE * PAGES}
    if phase == "p06":
        settings["token_budget"] = 6
    off = TWINS[phase] | {"kernels": False, "graphs": False}
    return build_engine(phase, shape, **settings), build_engine(FINAL, shape, **settings, **off)


@of(*TWINS)
@pytest.mark.parametrize("shape", first(SHAPES, 2))
def test_a_phase_and_its_part_of_the_final_engine_give_the_same_tokens(phase, shape):
    preemptions = cached = 0
    for seed in range(2):
        lesson, part = twins(phase, shape)
        coming = arrivals(shape, seed)
        assert served(lesson, coming) == served(part, coming), f"seed {seed}: the twins part"
        nothing_is_left(lesson)
        nothing_is_left(part)
        preemptions += lesson.metrics().preemptions
        cached += lesson.metrics().cached_tokens
    assert preemptions > 0, "no sequence was preempted: the case is not the one that is meant"
    assert (cached > 0) == (phase >= "p05"), "prompts are found again from p05 on, and not before"
