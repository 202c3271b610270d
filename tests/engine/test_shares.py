"""Shares of the device: every step's time is divided among the sequences that it computed rows for, on a clock by hand.

A step of the replica takes a virtual second, so shares are counts of steps, and add up to their number.
"""

import random
import time

import numpy as np
import pytest

from gradus.engine.engine import Engine
from gradus.engine.outputs import Outputs
from gradus.engine.plan import REJECTED, SCORED, Decodes, Plan, Scores, Span
from gradus.engine.request import Request, SamplingParams
from gradus.engine.sequence import Output, Sequence
from gradus.engine.shares import Shares
from gradus.scheduling.draft_shapes import DraftShapes
from gradus.scheduling.drafting import DraftControl
from tests.pairwise import each_once
from tests.scheduling.replica import LIMITS, ask, half_right, nonsense, nothing, oracle, own_prompt
from tests.scheduling.world import World, random_request


class Paid(World):
    """A world that keeps what each sample paid in the end. Prefilling rows take as long as decoding ones."""

    def __init__(self, *arguments, **settings) -> None:
        self.paid: dict[tuple[str, int], float] = {}
        super().__init__(*arguments, **settings)

    def take(self, outputs) -> None:
        super().take(outputs)
        for output in outputs:
            if output.finish_reason:
                self.paid[output.request_id, output.index] = output.timings.device_s

    @property
    def busy_s(self) -> float:
        return self.engine.metrics().busy_s

    @property
    def shared_s(self) -> float:
        return self.busy_s - self.engine.metrics().unshared_s

    def shares(self) -> dict[tuple[str, int], float]:
        return {(name, index): seconds for name, index, seconds in self.engine.device_seconds()}


def test_a_sequence_alone_pays_for_all_chunks_of_its_prompt_and_all_its_tokens():
    world = Paid(pages=32, budget=4)
    world.add(ask("a", 10, 5))  # chunks of 4, 4 and 2 tokens, the last of which gives the first token; then 4 more
    world.drain()
    assert world.paid == {("a", 0): 7.0} and world.busy_s == 7.0


def test_cached_tokens_cost_nothing_and_the_others_what_they_took():
    world = Paid(pages=32, shared=True, budget=4)
    for name in ("first", "again"):
        world.add(ask(name, [*range(100, 117)], 3))
        world.drain()
    assert world.paid == {("first", 0): 7.0, ("again", 0): 3.0}  # 16 of 17 were found: one step for the last


def test_rows_share_a_step_whoever_they_belong_to():
    world = Paid(pages=32, budget=6)
    world.add(ask("decodes", 3, 3))
    world.step()
    world.add(ask("reads", 5, 1))
    world.step()  # one row, and five
    assert world.paid["reads", 0] == pytest.approx(5 / 6)
    assert world.shares() == {("decodes", 0): pytest.approx(1 + 1 / 6)}
    world.drain()
    assert sum(world.paid.values()) == pytest.approx(world.busy_s) == pytest.approx(3)


def test_a_draft_that_was_accepted_is_a_row_and_one_that_was_rejected_is_everybodys_cost():
    def paid(guess):
        control = DraftControl(DraftShapes(3, 2, padded=False), 2, lag=0, adaptive=False)
        world = Paid(pages=64, slots=2, drafting=control, guess=guess)
        world.add(ask("a", 3, 9))
        world.add(ask("b", 3, 9))
        world.drain()
        assert sum(world.paid.values()) == pytest.approx(world.busy_s)
        return world.paid["a", 0], world.paid["b", 0]

    assert paid(oracle) == pytest.approx((1.5, 1.5))  # their prompts, then four tokens in each of two steps
    assert paid(nonsense) == pytest.approx((4.5, 4.5))  # a token in each of nine
    a = own_prompt("a", 3)
    right, wrong = paid(lambda seed, tokens, count: (oracle if tokens[:3] == a else nonsense)(seed, tokens, count))
    # after the prompts, four tokens and one share two steps; then b runs alone
    assert (right, wrong) == pytest.approx((0.5 + 2 * 4 / 5, 0.5 + 2 * 1 / 5 + 6))


def test_a_sequence_pays_until_it_is_cancelled_and_the_step_under_way_is_the_others():
    world = Paid(pages=32, slots=2, lag=1)
    world.add(ask("leaves", 2, 20))
    world.add(ask("stays", 2, 5))
    for _ in range(3):
        world.step()  # three launched, two committed
    assert world.shares() == {("leaves", 0): 1.5, ("stays", 0): 1.5}  # two steps' ends, at the third's launch
    world.cancel("leaves")
    assert world.paid == {("leaves", 0): 1.5} and world.shares() == {("stays", 0): 1.5}
    world.drain()
    assert world.paid["stays", 0] == pytest.approx(world.busy_s - 1.5)


def test_a_preempted_sequence_pays_for_what_it_computes_again():
    world = Paid(pages=8, slots=5)
    for number in range(5):
        world.add(ask(f"r{number}", 6, 20))
    world.drain()
    assert world.scheduler.preemptions > 0
    assert sum(world.paid.values()) == pytest.approx(world.busy_s)


def test_samples_of_one_request_each_pay_their_own():
    world = Paid(pages=32, slots=3, shared=True)
    world.add(ask("a", 9, 4, n=3))
    world.drain()
    assert sum(world.paid.values()) == pytest.approx(world.busy_s)
    first, *others = (world.paid["a", index] for index in range(3))
    assert first > max(others) > 0  # it read the prompt, and they found it


@pytest.mark.parametrize(("lag", "micro_batches", "guess"), each_once([0, 1, 2], [1, 2, 3], [None, oracle, half_right]))
def test_all_shares_add_up_to_the_time_of_all_steps(lag, micro_batches, guess):
    """Whatever overlaps, gives way, drafts or shares: no second is lost or charged twice."""
    drafting = guess and DraftControl(DraftShapes(3, 6, padded=False), 6, lag=lag, adaptive=False)
    settings = {"drafting": drafting, "guess": guess or nothing, "micro_batches": micro_batches}
    world = Paid(pages=20, slots=6, budget=7, shared=True, lag=max(lag, micro_batches - 1), **settings)
    for number in range(20):
        world.add(ask(f"r{number}", [*range(number % 9), number], 3 + number % 8, n=1 + number % 2))
        for _ in range(number % 4):
            world.step()
            assert sum(world.shares().values()) + sum(world.paid.values()) == pytest.approx(world.shared_s)
    world.drain()
    assert sum(world.paid.values()) == pytest.approx(world.shared_s) and not world.shares()
    assert drafting or world.shared_s == world.busy_s  # with drafts, a sequence may end earlier than its plans foresaw


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_cancelled_and_late_sequences_take_no_share_with_them(lag):
    """What a step computed for a sequence that had ended is shared by the others; alone, it is counted apart."""
    for seed in range(10):
        draw = random.Random(seed)
        world = Paid(pages=24, slots=4, budget=5, shared=seed % 2 > 0, lag=lag)
        for number in range(12):
            world.add(random_request(f"r{number}", draw))
            for _ in range(draw.randint(0, 5)):
                world.step()
            if draw.random() < 0.4:
                world.cancel(draw.choice(list(world.requests)), draw.choice([None, 0, 1]))
        world.drain()
        assert sum(world.paid.values()) == pytest.approx(world.shared_s)
        assert lag or world.shared_s == world.busy_s
        assert not world.engine.shares._slots and not world.engine.shares._earlier, "a sequence is remembered for ever"


# -- rows --------------------------------------------------------------------------------------------------------------


def sequence(name="a", prompt=(1, 2, 3)):
    return Sequence(Request.create(name, list(prompt), SamplingParams(max_tokens=9), LIMITS), 0)


def test_a_scored_row_counts_as_the_scheduler_counts_it():
    shares, plain, scored = Shares(), sequence("plain"), sequence("scored")
    spans = [Span(plain, 0, 0, (1, 2), 0), Span(scored, 1, 0, (1, 2), 0, scores=Scores((2, 3), 0))]
    shares.charge(1 + SCORED, Plan(spans), [])
    assert {name: seconds for name, _, seconds in shares.open()} == {"plain": 1.0, "scored": pytest.approx(SCORED)}


def test_drafts_of_a_span_count_as_far_as_they_were_accepted():
    shares, drafts, plain = Shares(), sequence("drafts"), sequence("plain")
    spans = [Span(drafts, 0, 3, (4, 5, 6, 7), 4), Span(plain, 1, 3, (4,), 1)]
    shares.charge(3.0, Plan(spans), [Output("drafts", 0, (5, 9)), Output("plain", 0, (5,))])
    assert {name: seconds for name, _, seconds in shares.open()} == {"drafts": 2.0, "plain": 1.0}


def test_a_step_for_ended_sequences_alone_is_in_nobodys_share():
    shares, gone = Shares(), sequence()
    gone.end("cancelled")
    shares.charge(1.0, Plan([Span(gone, 0, 0, (1, 2, 3), 1)]), [])
    assert not list(shares.open()) and shares.unshared_s == 1.0


def test_an_ended_sequence_is_not_charged_to_the_one_that_had_its_slot_before():
    shares, preempted, gone = Shares(), sequence("preempted"), sequence("gone")
    shares.charge(1.0, Plan([Span(preempted, 2, 0, (1, 2, 3), 1)]), [])
    gone.end("cancelled")  # before the steps that it was planned for in that slot were committed
    shares.charge(1.0, Plan([Span(gone, 2, 0, (1, 2, 3), 1)]), [])
    slot = np.array([2])
    decodes = Decodes(slot, slot, slot, owners=np.array([gone], object))
    shares.charge(1.0, Plan(decodes=decodes), Outputs(decodes.owners, np.ones((1, 1), np.int64), [0]))
    assert list(shares.open()) == [("preempted", 0, 1.0)] and shares.close(preempted.id) == 1.0


def test_hundreds_of_decodes_are_charged_in_microseconds():
    shares, count = Shares(), 256
    owners = [sequence(f"r{slot}") for slot in range(count)]
    shares.charge(1.0, Plan([Span(owner, slot, 0, (1,), 1) for slot, owner in enumerate(owners)]), [])
    slots = np.arange(count)
    decodes = Decodes(slots, slots, slots, owners=np.array(owners, object))
    outputs = Outputs(decodes.owners, np.ones((count, 1), np.int64))
    drafted = Outputs(decodes.owners, np.where(np.arange(4) < 2, 1, REJECTED) + np.zeros((count, 1), np.int64))

    def seconds(plan, outputs):
        start = time.perf_counter()
        shares.charge(1.0, plan, outputs)
        return time.perf_counter() - start

    assert min(seconds(Plan(decodes=decodes), outputs) for _ in range(50)) < 50e-6  # some 3 µs on an idle core
    assert min(seconds(Plan(decodes=decodes), drafted) for _ in range(50)) < 100e-6
    assert sum(seconds for *_, seconds in shares.open()) == pytest.approx(101)


def test_an_engine_starts_without_a_share():
    world = World(pages=4)
    assert isinstance(world.engine, Engine) and world.engine.device_seconds() == []
    assert world.engine.metrics().busy_s == 0.0
