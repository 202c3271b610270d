"""Plans with drafts: lengths that only the device knows, from bounds. Pages of 4 positions unless said otherwise."""

import random

import numpy as np
import pytest

from gradus.engine.plan import NO_DRAFTS
from gradus.scheduling.columns import Columns
from gradus.scheduling.draft_shapes import DraftShapes
from gradus.scheduling.drafting import DraftControl
from gradus.scheduling.scheduler import Scheduler
from tests.pairwise import each_once, first
from tests.scheduling.replica import ask, expected, half_right, nonsense, nothing, oracle
from tests.scheduling.world import World, random_world

DRAFTERS = [oracle, nonsense, half_right, nothing]
SEEDS = first([range(15), range(15, 40)])


def speculating(drafts: int = 3, guess=oracle, lag: int = 1, padded: bool = False, **settings) -> World:
    slots = settings.get("slots", 4)
    control = DraftControl(DraftShapes(drafts, slots, padded=padded), slots, lag=lag, adaptive=False)
    return World(**{"pages": 64, "lag": lag, "drafting": control, "guess": guess, **settings})


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize(("lag", "guess"), each_once([0, 1, 2], [*DRAFTERS]))
def test_whatever_is_drafted_the_tokens_are_those_without_drafts(lag, guess, seeds):
    """`World.take` compares every token; `drain` demands that every sequence ends, and every page comes back."""
    for seed in seeds:
        random_world(seed, lag=lag, drafts=1 + seed % 5, guess=guess)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_windows_lose_no_page_that_a_rejected_draft_must_be_run_again_from(lag, seeds):
    for seed in seeds:
        random_world(seed, lag=lag, drafts=1 + seed % 4, guess=nothing, windows=(5, None))


class Fickle(DraftControl):
    """Drafts for some sequences in some steps, and none for some: long enough to enter pages without drafts, and to
    settle."""

    def __init__(self, *arguments, **settings) -> None:
        super().__init__(*arguments, **settings)
        self.draw, self.run = random.Random(self.most), 0

    def choose(self, slots, left):
        if not self.run:
            self.run, self.wants = self.draw.choice([1, 2, 3, 9]), self.draw.random() < 0.5
        self.run -= 1
        if not self.wants:
            return NO_DRAFTS
        return np.array([self.draw.randint(0, most) for most in super().choose(slots, left).tolist()], np.int64)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize(("lag", "guess"), each_once([0, 1, 2], [*DRAFTERS]))
def test_steps_with_drafts_and_without_may_follow_each_other_in_any_order(lag, guess, seeds):
    for seed in seeds:
        random_world(seed, lag=lag, drafts=1 + seed % 8, guess=guess, control=Fickle)


@pytest.mark.parametrize("lag", [0, 1])
def test_without_drafts_a_plan_is_the_one_of_an_engine_that_does_not_speculate(lag):
    class Never(DraftControl):
        def choose(self, slots, left):
            return NO_DRAFTS

    worlds = [
        World(pages=64, lag=lag, shared=True, drafting=control)
        for control in (None, Never(DraftShapes(4, 4), 4, lag=lag, adaptive=False))
    ]
    for number in range(60):
        for world in worlds:
            if number % 9 == 0:
                world.add(ask(f"r{number}", 3 + number % 5, 20))
            world.step()
        plain, bounded = (world.runner.plan.expanded() for world in worlds)
        assert [(span.slot, span.start, span.pages) for span in plain] == [
            (span.slot, span.start, span.pages) for span in bounded
        ]


@pytest.mark.parametrize(("guess", "steps"), [(oracle, 1 + 3), (nonsense, 1 + 12), (nothing, 1 + 12)])
def test_right_drafts_save_steps_and_wrong_ones_cost_none(guess, steps):
    """13 tokens: the prompt's step brings one, the others 12, by 4 or one by one."""
    world = speculating(guess=guess, lag=0)
    world.add(ask("a", 3, 13))
    world.drain()
    assert world.tokens["a", 0] == expected(world.requests["a"])
    assert world.engine.metrics().steps == steps


def test_a_step_made_ahead_of_an_ending_runs_in_vain_at_most_once_per_step_under_way():
    world = speculating(guess=oracle, lag=1)
    world.add(ask("a", 3, 13))
    world.drain()
    assert world.engine.metrics().steps == 1 + 3 + 1


def test_drafts_take_only_what_prompts_leave_of_the_budget():
    world = speculating(budget=12, slots=2)
    world.add(ask("a", 3, 30))
    for _ in range(3):
        world.step()
    assert world.runner.plan.decodes.drafts.tolist() == [3]
    world.add(ask("b", 30, 3))
    world.step()
    plan = world.runner.plan
    assert not len(plan.decodes.drafts) and len(plan.spans[0].tokens) == 11


@pytest.mark.parametrize("padded", [True, False])
def test_captured_steps_verify_no_drafts_beside_a_prompt(padded):
    """A GPU verifies drafts in steps of decodes alone: choosing some would only cost the host time."""
    world = speculating(padded=padded, slots=2)
    world.add(ask("a", 3, 30))
    for _ in range(3):
        world.step()
    world.add(ask("b", 30, 3))
    world.step()
    plan = world.runner.plan
    assert len(plan.spans) == 1 and plan.decodes.drafts.tolist() == ([] if padded else [3])
    world.drain()


def test_for_drafts_no_sequence_gives_way():
    """Two sequences fill the pool exactly: with drafts reserved ahead, one would have to go."""
    world = speculating(pages=8, slots=2, guess=nonsense, lag=1)
    world.add(ask("a", 6, 10))
    world.add(ask("b", 6, 10))
    world.drain()
    assert world.engine.metrics().preemptions == 0


def test_only_what_was_accepted_enters_the_prefix_index():
    world = speculating(shared=True, guess=nonsense)
    first = ask("a", 3, 14)
    world.add(first)
    for _ in range(8):
        world.step()
        world.add(ask(f"same-{world.engine.metrics().steps}", [*first.prompt, *expected(first)], 2))
    world.drain()
    assert world.engine.metrics().cached_tokens > 0


def test_a_stop_token_among_accepted_drafts_ends_the_output_there():
    request = ask("a", 3, 20)
    tokens = expected(request)
    object.__setattr__(request, "stop_ids", frozenset({tokens[6]}))
    assert tokens[6] not in tokens[:6]
    world = speculating()
    world.add(request)
    world.drain()
    assert world.tokens["a", 0] == tokens[:7] and world.reasons["a", 0] == "stop"


def hurried(guess, deadline: float) -> World:
    """A sequence that wants 12 tokens by then, beside one that has shown that a step takes a second."""
    world = speculating(guess=guess, lag=0)
    world.add(ask("busy", 3, 40))
    for _ in range(4):
        world.step()
    world.add(ask("hurried", 3, 12, deadline=deadline))
    world.step()
    return world


def test_a_deadline_that_only_right_drafts_can_meet_is_waited_for():
    """12 tokens in 5 seconds: the prompt's step brings one, and by 4 each the others take 3 more."""
    world = hurried(oracle, 5)
    world.drain()
    assert world.reasons["hurried", 0] == "length"
    world = hurried(nothing, 5)
    assert "hurried" in {sequence.request.id for sequence in world.scheduler.running}, "drafts might have stood"
    world.drain()
    assert world.reasons == {("hurried", 0): "deadline", ("busy", 0): "length"}
    assert 0 < len(world.tokens["hurried", 0]) < 6


def test_a_deadline_that_no_drafts_can_meet_costs_no_step():
    world = hurried(oracle, 2)
    assert world.reasons == {("hurried", 0): "deadline"} and world.tokens["hurried", 0] == ()
    world.drain()


def test_a_row_without_a_finite_logit_ends_its_sequence_alone():
    world = speculating()
    for name in ("a", "b"):
        world.add(ask(name, 5, 12))
    for _ in range(3):
        world.step()
    world.runner.broken.add("a")
    world.drain()
    assert world.reasons == {("a", 0): "error", ("b", 0): "length"}


# -- broken ones -------------------------------------------------------------------------------------------------------


def forgets_steps_under_way(self):
    self._more[:] = 0


def takes_the_lower_bound_for_the_length(self, slots, offsets, drafts, reach=Columns._reach):
    self._more[slots] = 0
    return reach(self, slots, offsets, drafts)


def counts_rejected_drafts(self, slots, accepted, move_on=Columns._move_on):
    move_on(self, slots, accepted + 1)


def ends_as_if_no_draft_had_stood(self, slots, accepted, move_on=Columns._move_on):
    self._last[slots] += accepted
    move_on(self, slots, accepted)


def keeps_its_cohort(self, slots, accepted, move_on=Columns._move_on):
    cohort = self._cohort
    move_on(self, slots, accepted)
    self._cohort = cohort


def takes_turns_as_if_no_draft_had_stood(self):
    self._moved = False


def forgets_pages_for_drafts(self, lay_out_turns=Columns._lay_out_turns):
    lay_out_turns(self)
    self._settled = 0


def forgets_pages_entered_without_drafts(self):
    pass


def forgets_lines(self, slots, tokens, keep=Columns._keep):
    keep(self, slots, tokens[:, :1])


def gives_a_late_token_to_the_next_owner(self, decodes, tokens, exceptions=Columns.exceptions):
    decodes.departures = self.departures
    return exceptions(self, decodes, tokens)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_close_bounds", forgets_steps_under_way),
        ("_reach", takes_the_lower_bound_for_the_length),
        ("_move_on", counts_rejected_drafts),
        ("_move_on", ends_as_if_no_draft_had_stood),
        ("_move_on", keeps_its_cohort),
        ("_keep", forgets_lines),
        ("_lay_out_turns", takes_turns_as_if_no_draft_had_stood),
        ("_lay_out_turns", forgets_pages_for_drafts),
        ("_count_pages", forgets_pages_entered_without_drafts),
        ("exceptions", gives_a_late_token_to_the_next_owner),
    ],
)
def test_broken_columns_are_noticed(monkeypatch, name, broken):
    monkeypatch.setattr(Columns, name, broken)
    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        for seed in range(60):
            random_world(seed, lag=seed % 3, drafts=3, guess=half_right, control=(DraftControl, Fickle)[seed % 2])


class GivesBackByTheUpperBound(Scheduler):
    def make_room(self, sequence, end, start=None):
        return super().make_room(sequence, end)


def test_a_scheduler_that_gives_back_pages_by_the_upper_bound_is_noticed():
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(60):
            random_world(seed, GivesBackByTheUpperBound, lag=1, drafts=4, guess=nothing, windows=(3, None))
