"""Plans as bytes: what comes back runs as what went in, and nothing else is taken for a plan."""

import random

import numpy as np
import pytest

from gradus.cache import TableChange
from gradus.engine.plan import Admission, Decodes, Plan, Sampled, Scores, Span
from gradus.engine.request import Request, SamplingParams, SchedulingParams
from gradus.engine.wire import PackError, pack, pack_sampled, unpack, unpack_sampled
from tests.scheduling.replica import LIMITS, Replica
from tests.scheduling.world import World, random_request


def busy_plan() -> Plan:
    """Something of everything."""
    params = SamplingParams(max_tokens=4, temperature=0.7, top_k=3, logit_bias={5: -2.5}, seed=2**63 - 1, stop=["end"])
    request = Request.create("a", [1, 2, 3], params, LIMITS, SchedulingParams(deadline=2.5, cache_salt="ß"))
    return Plan(
        spans=[
            Span(None, 4, 0, (1, 2, 3), 1, TableChange(0, ((7, 8), (9, 10)))),
            Span(None, 5, 16, (-1,), 0, TableChange(1, ((), ()))),
            Span(None, 6, 3, (9, 8), 2, scores=Scores((8, 4), 0)),
        ],
        admissions=[Admission(4, request, 1, (1, 2, 3, 9))],
        wiped=(3, 11),
        decodes=Decodes(np.array([0, 2]), np.array([17, 4]), np.array([-1, 40]), [(2, TableChange(1, ((5,), (6,))))]),
    )


def test_a_plan_comes_back_equal():
    plan, back = busy_plan(), unpack(pack(busy_plan()))
    assert back.expanded() == plan.expanded() and back.wiped == plan.wiped and back.admissions == plan.admissions
    assert back.spans == plan.spans and list(back.decodes.pages) == list(plan.decodes.pages)
    assert back.admissions[0].request.params == plan.admissions[0].request.params
    assert pack(back) == pack(plan)


def test_what_a_plan_says_of_drafts_comes_back():
    plan = busy_plan()
    plan.decodes.drafts, plan.decodes.limits = np.array([3, 1]), np.array([20, 9])
    back = unpack(pack(plan)).decodes
    assert back.drafts.tolist() == [3, 1] and back.limits.tolist() == [20, 9] and (back.rows, back.width) == (6, 4)
    assert not len(unpack(pack(busy_plan())).decodes.drafts)


def test_an_empty_plan_comes_back_empty():
    assert unpack(pack(Plan())).expanded() == []


def test_what_a_step_sampled_comes_back():
    sampled = Sampled(
        np.array([7, -1, 9]), [0, 1], [b"\0ab", b"", b"c"], faults={1: "no token ß"}, scores=[(b"12", b""), (), (b"3",)]
    )
    back = unpack_sampled(pack_sampled(sampled))
    assert back.tokens.tolist() == [7, -1, 9] and back.decoded.tolist() == [[7], [-1]]
    assert (back.counts, back.logprobs, back.faults, back.scores) == (
        sampled.counts,
        sampled.logprobs,
        sampled.faults,
        sampled.scores,
    )
    assert not len(unpack_sampled(pack_sampled(Sampled(np.empty(0, np.int64), [0]))).tokens)


@pytest.mark.parametrize("cut", [0, 5, 29, -1])
def test_what_is_no_packed_plan_is_refused(cut):
    with pytest.raises(PackError):
        unpack(pack(busy_plan())[:cut])
    with pytest.raises(PackError, match="this is no packed plan"):
        unpack(b"x" + pack(busy_plan()))


@pytest.mark.parametrize("lag", [0, 1])
def test_a_recorded_run_plays_back_to_the_same_tokens(lag):
    """A second machine that knows nothing but the packed plans samples what the first one did."""
    world, recorded, run = World(pages=12, slots=4, budget=5, shared=True, lag=lag), [], World.run

    def recording(plan: Plan):
        result = run(world, plan)
        recorded.append((pack(plan), result.get().tokens))
        return result

    world.run = recording
    draw = random.Random(7)
    for number in range(20):
        world.add(random_request(f"r{number}", draw))
    world.drain()
    second = Replica(world.cache.page_size)
    assert len(recorded) > 40 and world.scheduler.preemptions > 0
    for packed, tokens in recorded:
        assert second.run(unpack(packed)).get().tokens.tolist() == tokens.tolist()


def test_a_steady_step_packs_to_three_numbers_a_sequence():
    plan = Plan(decodes=Decodes(*np.arange(3 * 256).reshape(3, 256)))
    assert len(pack(plan)) < 256 * 3 * 8 + 64
