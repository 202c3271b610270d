"""A request's numbers are its own: whatever shares its batch, however its prompt is cut, and whatever its pages held.

The needle is one request with log-probabilities. It runs alone, among neighbors, in chunks, preempted and resumed, and
with its prefix found or computed: the same tokens each time, and the same log-probabilities up to the rounding of a
float32 product whose number of rows differs.
"""

import random

import pytest
import torch

from gradus.config.options import FINAL
from gradus.course.probe import EngineProbe, walk
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams, SchedulingParams
from gradus.models.shapes import SHAPES
from tests.phases.conftest import EVERY_FAMILY, FAMILIES, build_engine, in_turn, limits_of, of, reached
from tests.phases.drive import run, step

ROUNDING = 2e-5  # processors sum in different orders: off by 1.001e-5 was seen
NEEDLE = tuple(range(40, 67))


def ask(name: str, prompt, shape: str, max_tokens: int = 10, priority: int = 0) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=3)
    return Request.create(name, prompt, params, limits_of(shape), SchedulingParams(priority=priority))


def neighbors(shape: str, count: int, beginning=()) -> list[Request]:
    draw = random.Random(count)
    prompts = [(*beginning, *(draw.randrange(300) for _ in range(draw.randint(1, 30)))) for _ in range(count)]
    return [ask(f"n{i}", prompt, shape, max_tokens=draw.randint(3, 12)) for i, prompt in enumerate(prompts)]


def engine_of(phase: str, shape: str, **options: int | str) -> Engine:
    return build_engine(phase, shape, **{"max_sequences": 6, "page_size": 4, **options})


def numbers(
    engine: Engine, needle: Request, others: list[Request] = (), intruders: dict[int, Request] | None = None
) -> tuple[list[int], torch.Tensor]:
    """The needle's tokens, and for each its log-probability and those of the three likeliest.

    intruders: requests by the number of tokens that the needle has when they come.
    """
    for request in (*others[::2], needle, *others[1::2]):
        engine.submit(request)
    coming = dict(intruders or {})
    found = []
    while engine.has_work:
        if len(found) in coming:
            engine.submit(coming.pop(len(found)))
        found += [logprob for output in step(engine) if output.request_id == needle.id for logprob in output.logprobs]
    values = [[logprob.logprob, *(value for _, value in logprob.top)] for logprob in found]
    return [logprob.token_id for logprob in found], torch.tensor(values)


@pytest.mark.parametrize(
    ("phase", "shape"),
    in_turn(
        reached("p04"),
        EVERY_FAMILY,
        [*((name, "tiny-gemma3") for name in ("p04", "p05", "p06", "p08")), ("p14", "tiny-qwen2-moe")],
    ),
)
def test_a_needle_has_the_same_numbers_in_any_batch_chunk_and_cache(phase, shape):
    needle = ask("needle", NEEDLE, shape)
    tokens, values = numbers(engine_of(phase, shape), needle)
    assert len(tokens) == 10

    def same(case: str, found: tuple[list[int], torch.Tensor]) -> None:
        assert found[0] == tokens, f"{case}: {found[0]} instead of {tokens}"
        assert (found[1] - values).abs().max() <= ROUNDING, f"{case}: off by {(found[1] - values).abs().max()}"

    same("without pages", numbers(build_engine("p01", shape), needle))
    for count in (1, 7):  # one row more, and more than have a place
        same(f"among {count} neighbors", numbers(engine_of(phase, shape), needle, neighbors(shape, count)))
    for budget, count in ((3, 0), (16, 0), (7, 4)) if phase in reached("p06") else ():
        found = numbers(engine_of(phase, shape, token_budget=budget), needle, neighbors(shape, count))
        same(f"at most {budget} tokens per step, {count} neighbors", found)
    tight = engine_of(phase, shape, cache_tokens=48)
    same("preempted for want of pages", numbers(tight, needle, [ask("elder", range(5), shape, max_tokens=16)]))
    room = any(SHAPES[shape].windows) or phase == "p08"
    assert tight.metrics().preemptions or room, "windows may leave room for both, and right drafts end one early"
    used = engine_of(phase, shape)
    run(used, neighbors(shape, 3, beginning=NEEDLE[:21]))
    same("after others that began alike", numbers(used, needle))
    assert used.metrics().cached_tokens >= (20 if phase in reached("p05") else 0)


@of(FINAL)
@pytest.mark.parametrize("shape", FAMILIES)
def test_a_needle_has_the_same_numbers_when_more_urgent_requests_take_its_place(phase, shape):
    needle = ask("needle", NEEDLE, shape)
    tokens, values = numbers(engine_of(phase, shape), needle)
    single = engine_of(phase, shape, max_sequences=1, policy="priority")
    urgent = [ask(f"urgent{i}", (9, 8, 7 + i), shape, priority=-1) for i in range(2)]
    found = numbers(single, needle, intruders={1: urgent[0], 6: urgent[1]})
    assert single.metrics().preemptions == 2
    assert found[0] == tokens and (found[1] - values).abs().max() <= ROUNDING


# -- numbers that are not finite ---------------------------------------------------------------------------------------


def poison(engine: Engine, name: str) -> list[int]:
    """Write what a fault in the model would leave: NaN in the newest page that only this sequence holds."""
    probe = EngineProbe(engine)
    pages = [table[-1] for table in probe.tables(name)]
    for tensor in probe.memory():
        tensor[:, pages] = float("nan")
    return pages


@of(FINAL)
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
    probe = EngineProbe(engine)
    keys, values = probe.memory()
    assert not keys.isfinite().all()
    outputs += step(engine)
    assert keys.isfinite().all() and values.isfinite().all(), "wiped before the next step stores anything"
    while engine.has_work:
        outputs += step(engine)
    reasons = {output.request_id: output.finish_reason for output in outputs if output.finish_reason}
    assert reasons == {"bad": "error"} | {request.id: "length" for request in others}
    for request in others:
        tokens = sum((output.tokens for output in outputs if output.request_id == request.id), ())
        assert tokens == run(build_engine("p01", shape), [request])[request.id, 0].tokens
    offered = {page for node in walk(probe.tree()) for run in node.pages for page in run}
    assert probe.pages().held == 0 and not offered & set(poisoned), "no sequence holds them, no index offers them"
    again = ask("again", NEEDLE, shape)
    assert numbers(engine, again)[0] == list(run(build_engine("p01", shape), [again])["again", 0].tokens)
