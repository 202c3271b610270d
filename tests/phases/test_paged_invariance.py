"""A request's numbers are its own: whoever shares its batch, however its prompt is cut, and whatever its pages held.

The needle is one request with log-probabilities. It runs alone, among neighbors, in chunks, preempted and resumed, and
with its prefix found or computed: the same tokens each time, and the same log-probabilities up to the rounding of a
float32 product whose number of rows differs.
"""

import random

import pytest
import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams, SchedulingParams
from tests.phases.conftest import FAMILIES, PHASES, build_engine, limits_of, tiny_model
from tests.phases.drive import run, step

PAGED = [name for name in PHASES if name >= "p04"]
ROUNDING = 1e-5
NEEDLE = tuple(range(40, 67))


def ask(name: str, prompt, shape: str, max_tokens: int = 10, priority: int = 0) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=3)
    return Request.create(name, prompt, params, limits_of(shape), SchedulingParams(priority=priority))


def neighbors(shape: str, count: int, beginning=()) -> list[Request]:
    draw = random.Random(count)
    prompts = [(*beginning, *(draw.randrange(300) for _ in range(draw.randint(1, 30)))) for _ in range(count)]
    return [ask(f"n{i}", prompt, shape, max_tokens=draw.randint(3, 12)) for i, prompt in enumerate(prompts)]


def engine_of(phase: str, shape: str, **options: int | str) -> Engine:
    settings = {"max_sequences": 6, "page_size": 4, **options}
    return phases.load(phase).build(tiny_model(shape), EngineOptions(limits_of(shape), **settings))


def numbers(
    engine: Engine, needle: Request, others: list[Request] = (), intruders: dict[int, Request] | None = None
) -> tuple[list[int], torch.Tensor]:
    """The needle's tokens, and for each its log-probability and those of the three likeliest.

    intruders: requests that come when the needle has so many tokens.
    """
    for request in (*others[::2], needle, *others[1::2]):
        engine.submit(request)
    coming = dict(intruders or {})
    told = []
    while engine.has_work:
        if len(told) in coming:
            engine.submit(coming.pop(len(told)))
        told += [logprob for output in step(engine) if output.request_id == needle.id for logprob in output.logprobs]
    values = [[logprob.logprob, *(value for _, value in logprob.top)] for logprob in told]
    return [logprob.token_id for logprob in told], torch.tensor(values)


@pytest.mark.parametrize("phase", PAGED)
@pytest.mark.parametrize("shape", FAMILIES)
def test_a_needle_has_the_same_numbers_in_any_batch_chunk_and_cache(phase, shape):
    needle = ask("needle", NEEDLE, shape)
    tokens, values = numbers(engine_of(phase, shape), needle)
    assert len(tokens) == 10

    def same(case: str, found: tuple[list[int], torch.Tensor]) -> None:
        assert found[0] == tokens, f"{case}: {found[0]} instead of {tokens}"
        assert (found[1] - values).abs().max() <= ROUNDING, f"{case}: off by {(found[1] - values).abs().max()}"

    same("without pages", numbers(build_engine("p01", shape), needle))
    for count in (1, 5, 9):
        same(f"among {count} neighbors", numbers(engine_of(phase, shape), needle, neighbors(shape, count)))
    for budget in (3, 7, 16, 512) if phase >= "p06" else ():
        options = {"token_budget": budget}
        same(f"at most {budget} tokens a step", numbers(engine_of(phase, shape, **options), needle))
        crowded = numbers(engine_of(phase, shape, **options), needle, neighbors(shape, 4))
        same(f"at most {budget} tokens a step, and neighbors", crowded)
    single = engine_of(phase, shape, max_sequences=1, policy="priority")
    urgent = [ask(f"urgent{i}", (9, 8, 7 + i), shape, priority=-1) for i in range(2)]
    same("sent back twice", numbers(single, needle, intruders={1: urgent[0], 6: urgent[1]}))
    assert single.scheduler.preemptions == 2
    used = engine_of(phase, shape)
    run(used, neighbors(shape, 3, beginning=NEEDLE[:21]))
    same("after others that began alike", numbers(used, needle))
    assert used.scheduler.cached_tokens >= (20 if phase >= "p05" else 0)


# -- numbers that are not finite ---------------------------------------------------------------------------------------


def poison(engine: Engine, name: str) -> list[int]:
    """What a fault in the model would leave: NaN in the newest page that only this sequence holds."""
    (resident,) = (each for id, each in engine.scheduler.cache.residents.items() if id[0] == name)
    pages = [table[-1] for table in resident.tables]
    storage = engine.runner.attention.storage
    storage.keys[:, pages] = float("nan")
    storage.values[:, pages] = float("nan")
    return pages


@pytest.mark.parametrize("phase", PAGED)
@pytest.mark.parametrize("shape", FAMILIES)
def test_a_nan_ends_its_own_sequence_and_its_pages_are_wiped_before_another_has_them(phase, shape):
    engine = engine_of(phase, shape)
    bad, others = ask("bad", NEEDLE, shape), neighbors(shape, 3)
    for request in (bad, *others):
        engine.submit(request)
    outputs = step(engine)
    poisoned = poison(engine, "bad")
    for _ in range(1 + engine.lag):  # until the step that reads them is known
        outputs += step(engine)
    assert [output.request_id for output in outputs if output.finish_reason == "error"] == ["bad"]
    storage = engine.runner.attention.storage
    assert not storage.keys.isfinite().all()
    outputs += step(engine)
    assert storage.keys.isfinite().all() and storage.values.isfinite().all(), (
        "wiped before the next step stores anything"
    )
    while engine.has_work:
        outputs += step(engine)
    reasons = {output.request_id: output.finish_reason for output in outputs if output.finish_reason}
    assert reasons == {"bad": "error"} | {request.id: "length" for request in others}
    for request in others:
        tokens = sum((output.tokens for output in outputs if output.request_id == request.id), ())
        assert tokens == run(build_engine("p01", shape), [request])[request.id, 0].tokens
    cache = engine.scheduler.cache
    assert set(poisoned) <= set(cache.pool.free), "nobody holds them, and no index offers them"
    again = ask("again", NEEDLE, shape)
    assert numbers(engine, again)[0] == list(run(build_engine("p01", shape), [again])["again", 0].tokens)
