"""The scheduler's rules one by one, each on a case small enough to follow by hand.

Pages of 4 positions, steps of 1 virtual second, and a replica that reads what the plans say is stored.
"""

import pytest

from gradus.errors import RequestError
from tests.scheduling.replica import ask, expected
from tests.scheduling.world import World


def planned(world: World) -> list[tuple[str, int, int, int]]:
    """The newest plan: (request, start, tokens, rows with logits) of each span."""
    return [
        (span.sequence.request.id, span.start, len(span.tokens), span.logits) for span in world.runner.plan.expanded()
    ]


def names(world: World) -> list[str]:
    return [name for name, *_ in planned(world)]


def steps(world: World, count: int) -> None:
    for _ in range(count):
        world.step()


def tokens_of(world: World, name: str) -> int:
    return len(world.tokens[name, 0])


# -- a step ------------------------------------------------------------------------------------------------------------


def test_a_step_has_decodes_first_then_prompts_under_way_then_newcomers():
    world = World(pages=32, budget=6)
    world.add(ask("decode", 3, 5))
    world.step()
    world.add(ask("long", 12, 5))
    world.step()
    assert planned(world) == [("decode", 3, 1, 1), ("long", 0, 5, 0)]
    world.add(ask("new", 9, 5))
    world.step()
    assert planned(world) == [("decode", 4, 1, 1), ("long", 5, 5, 0)]
    world.step()
    assert planned(world) == [("decode", 5, 1, 1), ("long", 10, 2, 1), ("new", 0, 3, 0)]


def test_without_a_budget_a_prompt_is_one_span():
    world = World(pages=32)
    world.add(ask("a", 50, 2))
    world.step()
    assert planned(world) == [("a", 0, 50, 1)]


def test_a_budget_of_one_serves_everybody():
    world = World(pages=32, budget=1)
    for i in range(4):
        world.add(ask(f"r{i}", 5, 4))
    world.drain()
    assert set(world.reasons.values()) == {"length"} and world.engine.metrics().max_batch == 1


def test_a_slot_is_needed_to_start():
    world = World(pages=32, slots=2)
    for i in range(3):
        world.add(ask(f"r{i}", 2, 3))
    world.step()
    assert names(world) == ["r0", "r1"] and world.scheduler.waiting_count == 1


def test_a_block_table_travels_only_when_it_changed():
    world = World(pages=32)
    world.add(ask("a", 3, 6))
    told = []
    for _ in range(6):
        world.step()
        told.append(world.runner.plan.expanded()[0].pages is not None)
    assert told == [True, False, True, False, False, False]  # 3 positions, the 4th, then a second page


# -- room --------------------------------------------------------------------------------------------------------------


def test_a_newcomer_leaves_a_page_for_everybody_who_runs():
    world = World(pages=4)
    world.add(ask("a", 8, 4))
    world.step()
    world.add(ask("b", 8, 1))  # two pages are free, and a may need one of them
    world.step()
    assert names(world) == ["a"]
    world.drain()
    assert world.scheduler.preemptions == 0


def test_nobody_overtakes_the_head_of_the_queue():
    world = World(pages=8)
    world.add(ask("runs", 14, 6))
    world.step()
    world.add(ask("large", 17, 2))
    world.add(ask("small", 1, 1))
    steps(world, 4)
    assert names(world) == ["runs"]  # though there would be room for the small one
    world.drain()


def test_who_found_no_room_is_looked_at_again_when_there_is_more(monkeypatch):
    world, asked = World(pages=16, page_size=4), []
    admit = world.cache.admit
    monkeypatch.setattr(world.cache, "admit", lambda id, *rest: asked.append(id[0]) or admit(id, *rest))
    world.add(ask("short", 15, 14))
    world.add(ask("runs", 9, 30))
    world.step()
    world.add(ask("large", 37, 2))
    steps(world, 12)
    assert asked == ["short", "runs", "large"]
    world.drain()
    assert asked.count("large") < 8


def test_requests_that_fit_alone_but_not_together_all_end_with_the_same_tokens():
    requests = [ask(f"r{i}", 6, 20) for i in range(5)]
    tight, wide = World(pages=8, slots=5), World(pages=200, slots=5)
    for world in (tight, wide):
        for request in requests:
            world.add(request)
        world.drain()
    assert tight.tokens == wide.tokens and set(tight.reasons.values()) == {"length"}
    assert tight.engine.metrics().preemptions > 0 and wide.engine.metrics().preemptions == 0


def test_what_can_never_fit_is_refused_and_leaves_nothing_behind():
    world = World(pages=4, budget=8)
    with pytest.raises(RequestError, match="17 tokens are more than the cache can ever hold") as refused:
        world.engine.submit(ask("large", 10, 7, n=3))
    assert refused.value.limit == "at most 16 tokens, with the prompt's"  # and just those are taken below
    assert not world.engine.has_work and not world.scheduler.requests
    world.add(ask("fits", 10, 6))
    world.drain()


def test_an_id_that_is_in_use_is_refused():
    world = World(pages=8)
    world.add(ask("a", 2, 3))
    with pytest.raises(RequestError, match="request id 'a' is in use"):
        world.engine.submit(ask("a", 5, 3))
    world.drain()


def test_the_last_to_come_gives_way_and_is_the_first_to_resume():
    world = World(pages=5, slots=3)
    world.add(ask("a", 7, 10))
    world.add(ask("b", 4, 8))
    steps(world, 1)
    world.add(ask("c", 4, 2))
    while not world.scheduler.preemptions:
        world.step()
    assert names(world) == ["a"] and [other.request.id for other in world.scheduler.waiting] != ["c"]
    assert world.scheduler.waiting.head().request.id == "b"
    order = []
    while world.engine.has_work:
        world.step()
        order += [name for name in names(world) if name not in order]
    assert order == ["a", "b", "c"]


def test_a_preempted_sequence_resumes_from_all_it_knows():
    world = World(pages=5, slots=2)
    world.add(ask("a", 8, 8))
    world.add(ask("b", 4, 8))
    while not world.scheduler.preemptions:
        world.step()
    known = 4 + tokens_of(world, "b")
    while "b" not in names(world):
        world.step()
    assert ("b", 0, known, 1) in planned(world)
    world.drain()


def test_a_victim_leaves_the_plan_that_it_was_in():
    """Under "priority" the better one may come later, so the victim is planned before the one that needs its pages."""
    world = World(pages=6, slots=3, policy="priority")
    world.add(ask("worse", 4, 12, priority=5))
    world.step()
    world.add(ask("better", 8, 12, priority=1))
    while not world.scheduler.preemptions:
        world.step()
    assert [other.request.id for other in world.scheduler.running] == ["better"] and names(world) == ["better"]
    world.drain()


def test_a_preempted_sequence_and_one_that_shares_its_prefix_go_on_together():
    prefix = list(range(8))
    world = World(pages=9, slots=3, shared=True)
    requests = [ask("a", [*prefix, 100], 14), ask("b", [*prefix, 200], 14), ask("c", [*prefix, 300], 14)]
    world.add(requests[0])
    world.step()
    for request in requests[1:]:
        world.add(request)
    world.drain()
    assert world.scheduler.preemptions > 0 and world.engine.metrics().cached_tokens == 16
    assert all(world.tokens[request.id, 0] == expected(request) for request in requests)


def test_a_poisoned_sequence_has_its_pages_wiped_before_the_next_step():
    world = World(pages=16, shared=True)
    world.runner.broken.add("bad")
    world.add(ask("bad", 9, 4))
    world.add(ask("good", 9, 4))
    world.step()
    assert world.reasons == {("bad", 0): "error"} and world.runner.plan.wiped == ()
    world.step()
    assert len(world.runner.plan.wiped) == 3
    world.add(ask("again", [*ask("bad", 9, 4).prompt], 4))
    world.drain()
    assert world.engine.metrics().failed == 1 and world.engine.metrics().cached_tokens == 0


# -- who goes first ----------------------------------------------------------------------------------------------------


def test_a_better_class_goes_first_and_equals_in_the_order_they_came():
    world = World(pages=32, slots=1, policy="priority")
    for name, priority in (("a", 3), ("b", 1), ("c", 3), ("d", 1)):
        world.add(ask(name, 2, 2, priority=priority))
    order = []
    while world.engine.has_work:
        world.step()
        order += [name for name in names(world) if name not in order]
    assert order == ["b", "d", "a", "c"]


def test_a_better_class_takes_the_slot_of_a_worse_one():
    world = World(pages=32, slots=2, policy="priority")
    for name, priority in (("mid", 2), ("worst", 9)):
        world.add(ask(name, 3, 9, priority=priority))
    steps(world, 2)
    world.add(ask("best", 3, 2, priority=0))
    world.step()
    assert sorted(names(world)) == ["best", "mid"] and world.scheduler.preemptions == 1
    world.drain()
    assert set(world.reasons.values()) == {"length"}


def test_a_better_class_takes_the_pages_of_a_worse_one():
    world = World(pages=6, slots=4, policy="priority")
    world.add(ask("worse", 18, 4, priority=1))
    world.step()
    world.add(ask("better", 10, 2, priority=0))
    world.step()
    assert names(world) == ["better"]
    world.drain()


def test_a_newcomer_takes_no_place_of_its_equals():
    world = World(pages=32, slots=1, policy="priority")
    world.add(ask("first", 3, 6, priority=1))
    world.step()
    world.add(ask("second", 3, 1, priority=1))
    steps(world, 3)
    assert names(world) == ["first"] and world.scheduler.preemptions == 0
    world.drain()


def test_the_earliest_deadline_goes_first():
    world = World(pages=32, slots=1, policy="deadline")
    for name, deadline in (("late", 90), ("none", None), ("early", 30), ("middle", 60)):
        world.add(ask(name, 2, 2, deadline=deadline))
    order = []
    while world.engine.has_work:
        world.step()
        order += [name for name in names(world) if name not in order]
    assert order == ["early", "middle", "late", "none"]


# -- who is too late ---------------------------------------------------------------------------------------------------


def busy(**options) -> World:
    """Somebody runs, and a step is known to take a second."""
    world = World(pages=64, **options)
    world.add(ask("busy", 3, 40))
    steps(world, 4)
    return world


@pytest.mark.parametrize("policy", ["fcfs", "priority", "deadline"])
def test_a_deadline_that_cannot_be_met_costs_no_step(policy):
    world = busy(policy=policy)
    world.add(ask("hopeless", 3, 10, n=2, deadline=5))
    world.step()
    assert names(world) == ["busy"] and not world.scheduler.waiting_count
    assert world.reasons == {("hopeless", 0): "deadline", ("hopeless", 1): "deadline"}
    assert world.engine.metrics().deadline_misses == 2 and world.engine.metrics().cancelled == 0
    world.drain()


def test_a_deadline_that_can_be_met_is():
    world = busy()
    world.add(ask("hurried", 3, 10, deadline=10))
    world.drain()
    assert world.reasons["hurried", 0] == "length"


def test_a_deadline_is_given_up_as_soon_as_it_cannot_be_met_any_more():
    world = busy()
    world.add(ask("hurried", 3, 10, deadline=12))
    steps(world, 3)
    world.clock.now += 4
    world.step()
    assert world.reasons["hurried", 0] == "deadline" and names(world) == ["busy"]
    assert tokens_of(world, "hurried") == 3
    world.drain()


def test_while_nothing_was_measured_only_what_is_past_is_too_late():
    world = World(pages=32)
    world.add(ask("hurried", 3, 10, deadline=2))
    assert world.scheduler.waiting_count == 1
    world.clock.now += 2
    assert [output.finish_reason for output in world.engine.step()] == ["deadline"]
    assert world.engine.metrics().steps == 0 and not world.engine.has_work


def test_the_queue_ahead_counts():
    world = busy(slots=1)
    world.add(ask("ahead", 3, 20))
    world.add(ask("hurried", 3, 5, deadline=24))
    world.step()
    assert world.reasons == {("hurried", 0): "deadline"}  # 20 steps ahead of it, and 5 of its own
    world.drain()


def test_those_of_a_worse_class_are_not_ahead():
    world = busy(slots=2, policy="priority")
    world.add(ask("worse", 3, 20, priority=5))
    world.add(ask("hurried", 3, 5, priority=1, deadline=24))
    world.drain()
    assert world.reasons["hurried", 0] == "length"


def test_who_waits_past_a_deadline_need_not_reach_the_head_of_the_queue():
    world = busy(slots=1)
    world.add(ask("ahead", 3, 3))
    world.add(ask("hurried", 3, 3, deadline=8))
    steps(world, 9)
    assert world.reasons == {("hurried", 0): "deadline"}
    world.drain()


def test_a_timeout_ends_a_request_wherever_it_is():
    world = World(pages=64, slots=2, shared=True)
    world.add(ask("runs", 3, 50, timeout=5))
    world.add(ask("siblings", 40, 50, n=3, timeout=7))
    world.add(ask("waits", 3, 50, timeout=6))
    world.drain()
    assert set(world.reasons.values()) == {"timeout"} and len(world.reasons) == 5
    assert tokens_of(world, "runs") == 5 and tokens_of(world, "waits") == 0
    assert world.engine.metrics().cancelled == 5


# -- siblings ----------------------------------------------------------------------------------------------------------


def test_siblings_wait_for_the_first_ones_prompt_and_find_it():
    world = World(pages=64, slots=4, budget=8, shared=True)
    world.add(ask("a", 18, 4, n=3))
    world.add(ask("next", 3, 4))
    assert world.scheduler.waiting_count == 4
    steps(world, 3)
    assert planned(world)[0] == ("a", 16, 2, 1) and world.engine.metrics().waiting == 2
    world.step()
    assert planned(world)[2:] == [("a", 16, 2, 1), ("a", 16, 2, 1)]
    world.drain()
    assert world.engine.metrics().cached_tokens == 32


def test_siblings_keep_the_place_of_their_request():
    world = World(pages=64, slots=2, shared=True)
    world.add(ask("a", 9, 8, n=2))
    world.add(ask("runs", 3, 2))
    world.add(ask("next", 3, 2))
    steps(world, 3)
    assert names(world) == ["a", "a"]
    world.drain()


@pytest.mark.parametrize("how", ["cancelled", "error"])
def test_the_next_sibling_computes_the_prompt_where_the_first_did_not(how):
    world = World(pages=64, budget=4, shared=True)
    world.add(ask("a", 9, 4, n=3))
    world.step()
    if how == "cancelled":
        world.cancel("a", 0)
    else:
        world.runner.broken.add("a")
        steps(world, 2)
        world.runner.broken.clear()
    assert world.reasons == {("a", 0): how}
    assert len(world.scheduler.waiting) == 1 and len(world.scheduler.siblings) == 1
    world.drain()
    assert world.reasons == {("a", 0): how, ("a", 1): "length", ("a", 2): "length"}


def test_without_an_index_all_samples_are_queued_at_once():
    world = World(pages=64, slots=3)
    world.add(ask("a", 9, 4, n=3))
    world.step()
    assert names(world) == ["a", "a", "a"]
    world.drain()


# -- cancelling, in every state ----------------------------------------------------------------------------------------


def queued(world: World) -> None:
    pass


def in_the_middle_of_its_prompt(world: World) -> None:
    world.step()
    assert planned(world)[-1] == ("a", 0, 6, 0)


def after_its_first_token(world: World) -> None:
    steps(world, 2)
    assert tokens_of(world, "a") == 1


def decoding(world: World) -> None:
    steps(world, 4)
    assert tokens_of(world, "a") == 3


def preempted(world: World) -> None:
    world.step()
    world.scheduler.preempt(world.scheduler.running[0])
    assert world.scheduler.active_count == 0


def before_its_last_token(world: World) -> None:
    steps(world, 9)
    assert tokens_of(world, "a") == 8


def between_schedule_and_commit(world: World) -> None:
    world.doomed = "a"
    world.step()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "edge",
    [
        queued, in_the_middle_of_its_prompt, after_its_first_token, decoding, preempted, before_its_last_token,
        between_schedule_and_commit,
    ],
)  # fmt: skip
def test_a_request_can_be_cancelled_in_every_state_and_counts_once(edge, shared):
    world = World(pages=64, budget=6, shared=shared)
    world.add(ask("a", 10, 9, n=2 if shared else 1))
    world.add(ask("other", 3, 5))
    edge(world)
    world.cancel("a")
    assert {sample for sample in world.reasons if sample[0] == "a"} == {s for s in world.tokens if s[0] == "a"}
    world.drain()
    assert world.engine.metrics().cancelled == (2 if shared else 1)
    assert world.reasons["other", 0] == "length"


def test_a_sample_that_is_held_back_can_be_cancelled_alone():
    world = World(pages=64, shared=True)
    world.add(ask("a", 9, 4, n=3))
    world.cancel("a", 1)
    assert world.scheduler.waiting_count == 2
    world.drain()
    assert world.reasons == {("a", 0): "length", ("a", 1): "cancelled", ("a", 2): "length"}


def test_a_request_that_is_too_late_and_cancelled_before_the_next_step_ends_once():
    world = busy()
    world.add(ask("hopeless", 3, 10, deadline=5))
    world.cancel("hopeless")
    world.step()
    assert world.reasons == {("hopeless", 0): "cancelled"}
    assert (world.engine.metrics().cancelled, world.engine.metrics().deadline_misses) == (1, 0)
    world.drain()


def test_what_has_ended_cannot_be_cancelled():
    world = World(pages=8)
    world.add(ask("a", 2, 2))
    world.drain()
    assert world.engine.cancel("a") == [] and world.engine.cancel("nobody") == []


def test_attempts_that_find_no_room_do_not_count_as_lookups():
    """While "a" holds most pages, "b" is tried and hits its first page; it counts once, when it starts."""
    world = World(pages=7, slots=2, shared=True)
    world.add(ask("a", [1, 2, 3, 4, *range(20, 32)], 4))
    world.add(ask("b", [1, 2, 3, 4, *range(40, 56)], 2))
    world.step()
    world.step()
    assert world.scheduler.waiting_count == 1 and world.scheduler._refusal is not None, "it was tried"
    while world.scheduler.active_count or world.scheduler.waiting_count:
        world.step()
    usage = world.cache.usage()
    assert (usage.queried_positions, usage.hit_positions) == (16 + 20, 4)
