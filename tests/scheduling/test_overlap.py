"""Plans made ahead, while earlier ones are under way: what is seen late must leave no trace. Pages of 4 positions."""

import pytest

from gradus.engine.plan import UNKNOWN
from gradus.engine.sequence import Sequence
from gradus.scheduling.columns import RECENT
from gradus.scheduling.queue import WaitingQueue
from tests.scheduling.replica import LIMITS, ask, expected
from tests.scheduling.world import World


def ahead(lag: int = 1, **settings) -> World:
    return World(**{"pages": 32, "lag": lag, **settings})


def spans(world: World) -> list[tuple[str, int, tuple[int, ...]]]:
    """The newest plan: (request, start, tokens)."""
    plan = world.runner.plan
    return [] if plan is None else [(s.sequence.request.id, s.start, tuple(s.tokens)) for s in plan.expanded()]


def stopping_at(name: str, at: int, answer: int = 9):
    """A request that meets a stop token as its token number `at` (from 0), and what it must get."""
    request = ask(name, 3, answer)
    tokens = expected(request)
    assert tokens[at] not in tokens[:at]
    object.__setattr__(request, "stop_ids", frozenset({tokens[at]}))
    return request, tokens[: at + 1]


def test_the_next_step_is_planned_with_a_token_that_nobody_knows():
    world = ahead()
    request = ask("a", 3, 4)
    world.add(request)
    world.step()
    assert world.tokens["a", 0] == () and len(world.engine.in_flight) == 1
    world.step()
    assert spans(world) == [("a", 3, (UNKNOWN,))] and world.tokens["a", 0] == expected(request)[:1]
    world.drain()
    assert world.tokens["a", 0] == expected(request)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_nobody_is_planned_past_its_last_token(lag):
    """So overlap costs no step where the length is what ends everybody."""
    world = ahead(lag)
    for name, answer in (("a", 1), ("b", 3), ("c", 5)):
        world.add(ask(name, 2, answer))
    world.drain()
    metrics = world.engine.metrics()
    assert (metrics.batch_total, metrics.generated_tokens, metrics.steps) == (9, 9, 5)


def test_a_decode_has_the_same_arrays_in_every_step_until_a_sequence_comes_or_goes():
    """A GPU's runner sends them only when they have changed. A limit is what the whole answer stores."""
    world = ahead()
    world.add(ask("a", 3, 12))
    for _ in range(3):
        world.step()
    seen = []
    for _ in range(2):
        world.step()
        seen.append(world.runner.plan.decodes)
    assert seen[0].slots is seen[1].slots and seen[0].limits is seen[1].limits
    assert seen[0].limits.tolist() == [3 + 12 - 1] and seen[0].starts.tolist() != seen[1].starts.tolist()
    world.add(ask("b", 3, 4))
    for _ in range(3):
        world.step()
    assert world.runner.plan.decodes.limits.tolist() == [3 + 12 - 1, 3 + 4 - 1]
    world.drain()


@pytest.mark.parametrize("lag", [0, 1])
def test_tokens_that_nothing_reads_for_many_steps_are_all_there(lag):
    """Columns keep the tokens of the last steps; then the sequences' lists take them over. `check` would read them."""
    world = ahead(lag, pages=200)
    requests = [ask(name, 3, RECENT + extra) for name, extra in (("a", -2), ("b", 1), ("c", RECENT + 9))]
    lists = {}
    for request in requests:
        world.engine.submit(request)
        lists[request.id] = world.scheduler.head()
        world.engine.step()  # they join at different steps
    for _ in range(3 * RECENT):
        world.engine.step()
    assert not world.engine.has_work
    for request in requests:
        assert lists[request.id].tokens == [*request.prompt, *expected(request)]


@pytest.mark.parametrize("lag", [1, 2])
def test_a_stop_token_seen_late_leaves_no_trace(lag):
    world = ahead(lag)
    request, answer = stopping_at("a", 2)
    world.add(request)
    world.add(ask("b", 3, 8))
    world.drain()
    assert world.tokens["a", 0] == answer and world.reasons["a", 0] == "stop"
    assert world.tokens["b", 0] == expected(world.requests["b"])
    metrics = world.engine.metrics()
    assert metrics.generated_tokens == 3 + 8 and metrics.batch_total == 3 + 8 + lag  # steps in vain, and no more


def test_the_slot_and_pages_of_who_stopped_serve_the_next_while_its_last_step_runs():
    world = ahead(pages=3, slots=1)
    request, answer = stopping_at("a", 1)
    world.add(request)
    world.add(ask("b", 5, 3))
    world.drain()
    assert world.tokens["a", 0] == answer and world.tokens["b", 0] == expected(world.requests["b"])


def preempted_under_way(answer: int, lag: int = 1) -> World:
    """While a step that samples for "b" is under way, "b" is sent back for the sake of "a"."""
    world = ahead(lag, pages=4, slots=2)
    world.add(ask("a", 5, 8))
    world.add(ask("b", 3, answer))
    while world.scheduler.preemptions == 0:
        world.step()
    return world


def test_a_preempted_sequence_gets_the_token_that_was_under_way():
    world = preempted_under_way(9)
    (waiting,) = world.scheduler.waiting
    assert waiting.request.id == "b" and len(waiting.tokens) == 3 + len(world.tokens["b", 0])
    world.drain()
    assert world.tokens["b", 0] == expected(world.requests["b"])


def test_a_sequence_ends_while_it_waits_when_the_token_under_way_was_its_last():
    probe = preempted_under_way(9)
    world = preempted_under_way(len(probe.tokens["b", 0]))
    assert world.reasons["b", 0] == "length" and world.tokens["b", 0] == expected(world.requests["b"])
    assert world.scheduler.waiting_count == 0
    world.drain()


def test_who_is_preempted_resumes_only_when_all_its_tokens_are_there():
    world = ahead(lag=2, pages=4, slots=2)
    world.add(ask("a", 4, 12))
    world.add(ask("b", 3, 9))
    while world.scheduler.preemptions == 0:
        world.step()
    (waiting,) = world.scheduler.waiting
    assert waiting.resumes > world.scheduler.committed
    assert world.engine.cancel("a")  # all pages and slots are free now
    world.reasons["a", 0] = "cancelled"
    plan = world.scheduler.schedule()
    assert plan is None, "its newest token is not known"
    world.drain()
    assert world.tokens["b", 0] == expected(world.requests["b"])


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("moment", range(8))
def test_cancelled_between_its_plan_and_its_commit(lag, moment):
    world = ahead(lag, pages=5, slots=2)
    for name in ("a", "b"):
        world.add(ask(name, 5, 6))
    for _ in range(moment):
        world.step()
    if ("a", 0) not in world.reasons:
        world.cancel("a")
    world.add(ask("c", 6, 4))
    world.drain()
    assert world.reasons["b", 0] == world.reasons["c", 0] == "length"


def test_pages_enter_the_index_only_when_the_step_that_filled_them_was_seen():
    for committed, hit in ((1, 0), (2, 4)):
        world = ahead(shared=True)
        request = ask("a", 3, 9)
        world.add(request)
        for _ in range(committed + 1):  # positions 0 to 2, then position 3, which fills a page
            world.step()
        assert world.scheduler.committed == committed
        world.add(ask("b", [*request.prompt, *expected(request)[:3]], 2))
        world.step()
        assert world.engine.metrics().cached_tokens == hit
        world.drain()


def test_a_newcomer_finds_what_another_sequence_of_the_same_path_has_not_told_yet():
    """The index knows more of the path than "b" has told, since "a" says the same and ended earlier."""
    world = World(pages=64, shared=True)
    short, long = ask("a", [1, 2, 3], 6), ask("b", [1, 2, 3], 20)
    for request in (short, long):
        world.add(request)
    while len(world.tokens["b", 0]) < 14:  # 16 positions stored, of which the index knows those of "a": 8
        world.step()
    world.add(ask("c", [1, 2, 3, *expected(long)[:13]], 2))
    world.step()
    assert world.reasons["a", 0] == "length" and world.engine.metrics().cached_tokens == 12
    world.drain()


@pytest.mark.parametrize("lag", [1, 2])
def test_numbers_that_are_not_finite_end_their_sequence_alone(lag):
    world = ahead(lag, shared=True)
    for name in ("bad", "good"):
        world.add(ask(name, 3, 9))
    world.step()
    world.runner.broken.add("bad")
    world.drain()
    assert world.reasons["bad", 0] == "error" and world.tokens["good", 0] == expected(world.requests["good"])


def test_siblings_start_when_the_first_ones_prompt_was_seen():
    world = ahead(shared=True)
    world.add(ask("a", 9, 3, n=3))
    world.step()
    world.step()
    assert [name for name, *_ in spans(world)] == ["a"], "its prompt is still under way"
    world.drain()
    assert world.scheduler.cached_tokens == 2 * 8


def test_steps_under_way_are_work():
    world = ahead()
    request, _ = stopping_at("a", 1)
    world.add(request)
    while ("a", 0) not in world.reasons:
        world.step()
    assert world.engine.in_flight and world.engine.has_work
    assert world.engine.step() == [] and not world.engine.has_work


def test_the_queues_load_follows_a_token_that_comes_late():
    queue, sequence = WaitingQueue(), Sequence(ask("a", 3, 5), 0)
    queue.push(sequence)
    sequence.tokens.append(7)
    queue.learn(sequence, 1)
    queue.check()
    assert queue.wanted.total() == 4 and LIMITS.vocab_size > 7
