"""Plans as bytes: what comes back runs as what went in, and nothing else is taken for a plan."""

import random
from dataclasses import fields

import numpy as np
import pytest

from gradus.cache import TableChange
from gradus.engine.plan import Admission, Decodes, Plan, Sampled, Scores, Span
from gradus.engine.request import Request, SamplingParams, SchedulingParams
from gradus.engine.structured import Structured
from gradus.engine.wire import PackError, pack, pack_sampled, unpack, unpack_sampled
from gradus.server.engine.messages import Submit
from gradus.server.engine.wire import commands_and_load, frame
from tests.engine.every_field import SAMPLING, SCHEDULING, STRUCTURED, requests
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
    assert unpack(pack(back)).admissions == plan.admissions


def test_what_a_plan_says_of_drafts_comes_back():
    plan = busy_plan()
    plan.decodes.drafts, plan.decodes.limits = np.array([3, 1]), np.array([20, 9])
    back = unpack(pack(plan)).decodes
    assert back.drafts.tolist() == [3, 1] and back.limits.tolist() == [20, 9] and (back.rows, back.width) == (6, 4)
    assert not len(unpack(pack(busy_plan())).decodes.drafts)


def test_an_empty_plan_comes_back_empty():
    assert unpack(pack(Plan())).expanded() == []


@pytest.mark.parametrize(
    ("kind", "cases"), [(SamplingParams, SAMPLING), (SchedulingParams, SCHEDULING), (Structured, STRUCTURED)]
)
def test_every_field_has_a_case(kind, cases):
    assert [each.name for each in fields(kind)] == list(cases)


def test_every_field_of_a_request_reaches_the_other_processes():
    for field, request in requests():
        admission = Admission(2, request, 1, (*request.prompt, 7))
        assert unpack(pack(Plan(admissions=[admission]))).admissions == [admission], field
        (submit,) = commands_and_load().feed(frame(Submit.of(5, request, sent=1.0)))
        assert submit.request() == request and submit.request().packed == request.packed, field


def test_what_a_step_sampled_comes_back():
    sampled = Sampled(
        tokens=np.array([7, -1, 9]),
        counts=[0, 1],
        logprobs=[b"\0ab", b"", b"c"],
        width=2,
        seconds=0.5,
        usual=False,
        faults={1: "no token ß"},
        scores=[(b"12", b""), (), (b"3",)],
    )
    back = unpack_sampled(pack_sampled(sampled))
    default = Sampled(np.empty(0, np.int64), [0])
    for each in fields(Sampled):
        assert str(getattr(back, each.name)) == str(getattr(sampled, each.name)), each.name
        assert str(getattr(sampled, each.name)) != str(getattr(default, each.name)), f"{each.name}: no case"
    assert not len(unpack_sampled(pack_sampled(default)).tokens)


def written(decodes: Decodes, field: str) -> str:
    value = getattr(decodes, field)
    return str(list(value) if np.iterable(value) else value)


def test_what_only_commit_reads_stays_behind_and_everything_else_comes_back():
    plan = busy_plan()
    plan.decodes.drafts, plan.decodes.owners, plan.decodes.departures = np.array([3, 1]), np.full(2, "owner"), 7
    back, default = unpack(pack(plan)).decodes, Decodes()
    for each in fields(Decodes):
        given, received, unset = (written(of, each.name) for of in (plan.decodes, back, default))
        assert given != unset, f"{each.name}: no case"
        assert received == (unset if each.name in ("owners", "departures") else given), each.name


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
    assert len(pack(plan)) < 256 * 3 * 8 + 96
