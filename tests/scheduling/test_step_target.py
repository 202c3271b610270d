"""Steps that several sequences share last no longer than their target, and short prompts pass long ones.

The replica's clock makes every token as slow as its position says, and nothing else moves it.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.engine.plan import Plan
from gradus.scheduling.scheduler import Scheduler
from gradus.scheduling.step_target import StepTarget
from tests.scheduling.replica import EVEN, VirtualClock, ask, own_prompt
from tests.scheduling.world import World

SHORT, LONG = 6, 400


def world(target: float | None = 5.0, budget: int = 64, row_s: float = 0.1, **others) -> World:
    return World(pages=400, budget=budget, target=target, step_s=0.2, row_s=row_s, **others)


def spans(world: World) -> dict[str, int]:
    """The tokens of each prompt in the newest plan."""
    return {span.sequence.request.id: len(span.tokens) for span in world.runner.plan.spans}


def measured(**settings) -> World:
    """A world whose pace is known from a prompt that ended."""
    made = world(**settings)
    made.add(ask("first", 40, 1))
    while made.engine.has_work:
        made.step()
    return made


def seconds_of_steps(world: World, name: str) -> list[float]:
    """Step until the request has its first token. Returns how long each step took."""
    took = []
    while not world.tokens[name, 0]:
        began = world.clock.now
        world.step()
        took.append(world.clock.now - began)
    return took


# -- what a step costs -------------------------------------------------------------------------------------------------


@given(start=st.integers(0, 10**6), count=st.integers(1, 10**5), even=st.floats(1, 10**5))
def test_a_cost_buys_as_many_tokens_as_it_is_of(start, count, even):
    target = StepTarget(1.0, even, VirtualClock())
    assert abs(target.tokens(start, target.cost(start, start + count)) - count) <= 1
    assert target.tokens(start, 0.5) == 0


def test_a_token_further_on_costs_more():
    target = StepTarget(1.0, 100, VirtualClock())
    assert target.cost(0, 1) == 1 and target.cost(100, 101) == 2 and target.cost(0, 101) == 101 * 1.5
    assert target.tokens(0, 150) > target.tokens(100, 150) > target.tokens(1000, 150)


# -- a long prompt beside a stream -------------------------------------------------------------------------------------


def test_a_stream_waits_no_longer_than_the_target_however_far_on_the_prompt_is():
    crowded = measured()
    crowded.add(ask("stream", 3, 300))
    for _ in range(10):
        crowded.step()
    crowded.add(ask("long", LONG, 2))
    took = seconds_of_steps(crowded, "long")
    assert max(took) < 5.5 and max(took[3:-1]) < 5.1  # an estimate from other positions may be off at first
    assert min(took[3:-1]) > 4.0  # and no step is wasted
    assert len(took) > LONG / 64


def test_without_a_target_a_step_takes_the_whole_budget():
    crowded = measured(target=None)
    crowded.add(ask("stream", 3, 300))
    crowded.step()
    crowded.add(ask("long", LONG, 2))
    assert max(seconds_of_steps(crowded, "long")) > 30


def test_a_prompt_alone_takes_the_whole_budget():
    alone = measured()
    alone.add(ask("long", LONG, 2))
    alone.step()
    assert spans(alone) == {"long": 64}


def test_a_machine_that_slows_down_gets_shorter_chunks():
    crowded = measured()
    crowded.add(ask("stream", 3, 300))
    for _ in range(10):
        crowded.step()
    crowded.add(ask("long", LONG, 2))
    for _ in range(4):
        crowded.step()
    crowded.runner.row_s *= 3
    took = seconds_of_steps(crowded, "long")
    assert max(took) < 16 and max(took[4:-1]) < 5.5


def test_steps_that_are_slow_without_prompts_leave_prompts_as_much_time_again():
    crowded = measured(target=0.1)
    crowded.add(ask("stream", 3, 300))
    for _ in range(20):
        crowded.step()
    began = crowded.clock.now
    crowded.step()
    plain = crowded.clock.now - began
    crowded.add(ask("long", 60, 2))
    assert max(seconds_of_steps(crowded, "long")) < 2.5 * plain


@pytest.mark.parametrize("lag", [1, 2])
def test_steps_planned_ahead_keep_the_target_too(lag):
    crowded = measured(lag=lag)
    crowded.add(ask("stream", 3, 300))
    for _ in range(10):
        crowded.step()
    crowded.add(ask("long", LONG, 2))
    assert max(seconds_of_steps(crowded, "long")[4:-1]) < 5.5


def test_the_runners_own_time_of_a_step_counts_where_it_has_one():
    clock = VirtualClock()
    target = StepTarget(1.0, EVEN, clock)
    for _ in range(2):
        target.began(Plan())
    clock.now += 1.0
    target.took(Plan(), 0.25)
    assert target._plain == 0.25
    target.took(Plan(), 0.0)  # the clock has not moved since
    assert target._plain == 0.125


def test_a_step_is_no_longer_than_since_it_was_planned():
    clock = VirtualClock()
    target = StepTarget(1.0, EVEN, clock)
    for measured in (3600.3, 0.0):  # a device's clock counts what it waited for work, and so does the last commit
        clock.now += 3600.0
        target.began(Plan())
        clock.now += 0.3
        target.took(Plan(), measured)
        assert target._plain == pytest.approx(0.3)


# -- short prompts pass ------------------------------------------------------------------------------------------------


def test_a_short_prompt_passes_a_long_one():
    crowded = measured()
    crowded.add(ask("long", LONG, 2))
    crowded.step()
    crowded.add(ask("short", SHORT, 2))
    crowded.step()
    assert spans(crowded)["short"] == SHORT and spans(crowded)["long"] > SHORT
    assert crowded.tokens["short", 0] and not crowded.tokens["long", 0]
    crowded.drain()


def test_it_passes_long_ones_that_wait():
    crowded = measured()
    for name in ("long", "later"):
        crowded.add(ask(name, LONG, 2))
    crowded.step()
    crowded.add(ask("short", SHORT, 2))
    crowded.step()
    assert crowded.tokens["short", 0] and "later" not in spans(crowded)
    crowded.drain()


def test_one_slot_is_left_to_the_head_of_the_queue():
    crowded = measured(slots=3)
    crowded.add(ask("long", LONG, 2))
    crowded.step()
    crowded.add(ask("head", LONG, 2))
    for number in range(3):
        crowded.add(ask(f"short {number}", SHORT, 50))
    crowded.step()
    assert set(spans(crowded)) == {"long", "short 0"}
    seconds_of_steps(crowded, "long")
    crowded.step()
    assert "head" in spans(crowded)
    crowded.drain()


@pytest.mark.parametrize(("policy", "how"), [("priority", {"priority": 1}), ("deadline", {"deadline": 5e5})])
def test_a_short_prompt_that_ranks_lower_does_not_pass(policy, how):
    crowded = measured(policy=policy)
    crowded.add(ask("long", LONG, 2, **({"deadline": 1e5} if policy == "deadline" else {})))
    crowded.step()
    crowded.add(ask("short", SHORT, 2, **how))
    crowded.step()
    assert set(spans(crowded)) == {"long"}
    crowded.drain()


def test_a_prompt_that_ranks_higher_passes_though_it_is_longer():
    crowded = measured(policy="priority")
    crowded.add(ask("long", LONG, 2, priority=1))
    crowded.step()
    crowded.add(ask("urgent", 2 * LONG, 2, priority=0))
    crowded.step()
    assert crowded.scheduler.preemptions == 0 and "urgent" in spans(crowded)
    crowded.step()
    assert spans(crowded)["urgent"] > 0 and "long" not in spans(crowded)
    crowded.drain()


def test_a_prefix_that_another_prompt_computes_is_not_computed_twice():
    crowded = measured(shared=True)
    prefix = own_prompt("long", LONG)
    crowded.add(ask("long", prefix, 2))
    crowded.step()
    crowded.add(ask("same beginning", prefix[:200] + own_prompt("other", 10), 2))
    crowded.add(ask("short", SHORT, 2))
    seconds_of_steps(crowded, "same beginning")
    assert not crowded.tokens["long", 0]  # it has passed, once the prefix was there
    assert crowded.scheduler.cached_tokens >= 196
    crowded.drain()


def test_a_follow_up_is_as_short_as_what_is_new_in_it():
    crowded = measured(shared=True)
    first = own_prompt("session", 300)
    crowded.add(ask("turn 1", first, 1))
    while crowded.engine.has_work:
        crowded.step()
    crowded.add(ask("long", 250, 2))
    crowded.add(ask("longer", LONG, 2))
    crowded.step()
    crowded.add(ask("turn 2", first + own_prompt("question", 5), 2))
    assert len(seconds_of_steps(crowded, "turn 2")) <= 4 and not crowded.tokens["long", 0]
    crowded.drain()


class KeepsNothing(Scheduler):
    """Lets short prompts have all of the step."""

    def _half_for(self, best):
        return 0, 0.0


def steps_beside_short_prompts(scheduler: type[Scheduler]) -> int:
    """Count the steps that a long prompt takes while more short ones arrive than could ever be served."""
    crowded = measured(target=1e6, budget=16, slots=64, scheduler=scheduler)
    crowded.add(ask("long", LONG, 1))
    for count in range(LONG):
        if crowded.tokens["long", 0]:
            return count
        for number in range(3):
            crowded.add(ask(f"short {count} {number}", SHORT, 1))
        crowded.step()
    return LONG


def test_a_long_prompt_takes_at_most_twice_its_steps_whatever_passes_it():
    assert steps_beside_short_prompts(Scheduler) <= 2 * LONG / 16
    assert steps_beside_short_prompts(KeepsNothing) > 2 * LONG / 16
