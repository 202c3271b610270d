"""The promises of p10 and every later phase: a step is launched before the last one is known, and no output shows it.

The engine's own loop runs here, over a stand-in for the device that writes down what is launched and waited for.
"""

import pytest
import torch

from gradus.attention.batch import Batch
from gradus.course.probe import EngineProbe, plan_spans
from gradus.engine.engine import Engine
from gradus.engine.plan import UNKNOWN, Plan, Sampled, Span
from gradus.engine.request import Request, SamplingParams
from gradus.engine.sequence import SpanResult
from gradus.execution.layout import lay_out
from phases.p10_cuda_graphs.runner import NewestTokens
from tests.phases.conftest import about, build_engine, of, since
from tests.phases.drive import submit
from tests.phases.test_promises import LIMITS, SHAPE, engine_of

PROMPT = (5, 6, 7)


def ask(name: str, max_tokens: int, stop: int | None = None) -> Request:
    """stop: the token that ends it. The token at position p is 10 + p, so the first one after the prompt is 13."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=() if stop is None else (stop,))
    return Request.create(name, PROMPT, params, LIMITS)


class Device:
    """Takes the runner's place. Keeps the plans, and the order of launches and waits: ["launch 1", "wait 1", …]."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.log: list[str] = []

    def run(self, plan: Plan) -> "Launched":
        self.plans.append(plan)
        self.log.append(f"launch {len(self.plans)}")
        return Launched(self, plan, len(self.plans))

    @property
    def spans(self) -> list[tuple[int, tuple[int, ...]]]:
        """(start, tokens) of every span so far."""
        return [(span.start, tuple(span.tokens)) for plan in self.plans for span in plan_spans(plan)]


class Launched:
    rows = 0

    def __init__(self, device: Device, plan: Plan, number: int) -> None:
        self.device, self.plan, self.number = device, plan, number

    def get(self) -> Sampled:
        self.device.log.append(f"wait {self.number}")
        spans = self.plan.expanded()
        return Sampled.of(self.plan, [SpanResult((10 + s.start + len(s.tokens),) * s.logits) for s in spans])


def driven(phase: str, *requests: Request, lag: int = 1, max_sequences: int = 2) -> tuple[Engine, Device]:
    engine = engine_of(phase, *requests, max_sequences=max_sequences)
    assert engine.lag == 1, "the next step is to be planned while one is under way"
    engine.runner, engine.lag = Device(), lag
    return engine, engine.runner


def drain(engine: Engine) -> dict[str, list[int]]:
    """Turn the loop until there is no work. Returns each request's tokens."""
    tokens: dict[str, list[int]] = {}
    for _ in range(40):
        if not engine.has_work:
            return tokens
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.tokens)
        EngineProbe(engine).check()
    raise AssertionError(f"after 40 steps there still is work, and {len(engine.in_flight)} steps are under way")


# -- the loop ----------------------------------------------------------------------------------------------------------


@since("p10")
@pytest.mark.parametrize(
    ("lag", "wanted"),
    [
        (1, "launch 1, launch 2, wait 1, launch 3, wait 2, launch 4, wait 3, wait 4"),
        (0, "launch 1, wait 1, launch 2, wait 2, launch 3, wait 3, launch 4, wait 4"),
        (2, "launch 1, launch 2, launch 3, wait 1, launch 4, wait 2, wait 3, wait 4"),
    ],
)
def test_a_step_is_launched_before_the_one_before_is_waited_for(phase, lag, wanted):
    engine, device = driven(phase, ask("a", max_tokens=4), lag=lag)
    for _ in range(7):  # one step more than there are
        engine.step()
    did = ", ".join(device.log)
    assert did == wanted, f"with a lag of {lag} four steps go like this: {wanted}; yours: {did}"


# -- plans made ahead --------------------------------------------------------------------------------------------------


@since("p10")
@pytest.mark.parametrize("lag", [1, 2, 0])
@about("scheduler")
def test_a_token_that_is_not_known_yet_has_a_place_in_the_plan(phase, lag):
    engine, device = driven(phase, ask("a", max_tokens=4), lag=lag)
    drain(engine)
    known = lag == 0 and phase != "final"  # whose device has the newest tokens in any case
    wanted = [(0, PROMPT), *((start, (10 + start,) if known else (UNKNOWN,)) for start in (3, 4, 5))]
    made = device.spans
    assert made == wanted, f"with a lag of {lag} the spans (start, tokens) are {wanted}; yours are {made}"


@since("p10")
@pytest.mark.parametrize("lag", [1, 2])
@about("scheduler")
def test_no_sequence_is_planned_past_its_last_token(phase, lag):
    engine, device = driven(phase, ask("a", max_tokens=1), ask("b", max_tokens=3), lag=lag)
    tokens = drain(engine)
    assert tokens == {"a": [13], "b": [13, 14, 15]}, f"a gets one token and b three; yours: {tokens}"
    count = len(device.spans)
    assert count == 4, f"four tokens take four spans, though the last ones were planned unseen; yours planned {count}"


# -- what is seen late -------------------------------------------------------------------------------------------------


@since("p10")
@pytest.mark.parametrize("lag", [1, 2])
@about("scheduler")
def test_no_token_comes_after_a_stop_that_is_seen_late(phase, lag):
    engine, _ = driven(phase, ask("a", max_tokens=9, stop=14), ask("b", max_tokens=6), lag=lag)
    tokens = drain(engine)
    assert tokens["a"] == [13, 14], f"a's answer ends with its stop token: [13, 14]; yours is {tokens['a']}"
    assert tokens["b"] == [13, 14, 15, 16, 17, 18], f"b goes on for six tokens; yours got {tokens['b']}"


@since("p10")
@about("scheduler")
def test_a_sequence_that_stops_makes_room_while_its_last_step_is_under_way(phase):
    engine, device = driven(phase, ask("a", max_tokens=9, stop=14), ask("b", max_tokens=2), max_sequences=1)
    tokens = drain(engine)
    assert tokens == {"a": [13, 14], "b": [13, 14]}, f"each gets [13, 14]; yours: {tokens}"
    count = len(device.plans)
    assert count == 3 + 2, f"a runs twice and once in vain, b twice: 5 steps; yours took {count}"


@of("p10")
@about("scheduler")
def test_nothing_is_kept_of_sequences_that_have_ended(phase):
    """a stops while a step of its is under way, b ends by its length, and c is cancelled."""
    requests = ask("a", max_tokens=9, stop=14), ask("b", max_tokens=3), ask("c", max_tokens=9)
    engine, _ = driven(phase, *requests, max_sequences=3)
    for _ in range(3):
        engine.step()
    engine.cancel("c")
    drain(engine)
    kept = sorted(sequence.request.id for sequence in EngineProbe(engine).scheduler.unknown)
    assert not kept, f"a, b and c have ended, and `unknown` still has entries of {', '.join(kept)}: a server would leak"


@since("p10")
def test_a_step_under_way_is_work(phase):
    engine, device = driven(phase, ask("a", max_tokens=9, stop=14))
    while "wait 2" not in device.log:  # it produces the stop token, and step 3 was launched before
        engine.step()
    assert engine.has_work, "a has stopped, but step 3 is under way: that is work, or it would never be waited for"
    assert list(engine.step()) == [], "step 3 was computed in vain: nothing comes out of it"
    assert not engine.has_work, "all is done, and yours still has work"


def paged(phase: str, pages: int, budget: int, lag: int) -> tuple[Engine, EngineProbe]:
    """An engine with pages of 4 positions over a stand-in for the device, and the probe that records its steps."""
    engine = build_engine(phase, SHAPE, 2, page_size=4, cache_tokens=4 * pages, token_budget=budget)
    engine.runner, engine.lag = Device(), lag
    probe = EngineProbe(engine)
    probe.record()
    return engine, probe


@of("p10")
@about("scheduler")
def test_a_preempted_sequence_resumes_when_all_of_its_tokens_are_known(phase):
    """Its tokens are its next prompt, so it cannot start while one of them is under way.

    Three pages: the fifth position of a takes the third, and b is preempted with two steps under way. Then a is
    cancelled, so that there is room for b before its tokens are known.
    """
    engine, probe = paged(phase, pages=3, budget=8, lag=2)
    submit(engine, [ask("a", max_tokens=6), ask("b", max_tokens=6)])
    while not (probe.steps and probe.steps[-1].preempted):
        engine.step()
    engine.cancel("a")
    tokens = drain(engine)
    resumed = [step.of("b") for step in probe.steps if ("b", 0) in step.admitted][1]
    known = resumed.start, resumed.tokens
    assert known == (0, (5, 6, 7, 13, 14)), f"b resumes with its prompt and the tokens 13 and 14; yours: {known}"
    assert tokens["b"][-1] == 18, f"b's last token is what it would have been, 18; yours: {tokens['b']}"


@of("p10")
@about("scheduler")
def test_a_page_is_shared_once_the_step_that_filled_it_is_recorded(phase):
    """Two chunks of a page each are planned; after the first one's record, the first page alone is found."""
    engine, probe = paged(phase, pages=64, budget=4, lag=1)
    engine.submit(Request.create("long", range(20, 28), SamplingParams(max_tokens=2, ignore_eos=True), LIMITS))
    engine.step()
    engine.step()  # the second page's step is launched, and the first one's recorded
    shared = [node.tokens for node in probe.tree()]
    assert shared == [(20, 21, 22, 23)], f"the first page alone can be found, with the tokens 20 to 23; yours: {shared}"


# -- on the device -----------------------------------------------------------------------------------------------------


def filled(*spans: Span, recorded: dict[int, int]) -> list[int]:
    """The batch's token ids, after a step has sampled `recorded` (slot → token). The part alone, without an engine."""
    newest = NewestTokens(4, torch.device("cpu"))
    newest.record([3], torch.tensor([73]))  # by a step before that one
    newest.record(list(recorded), torch.tensor(list(recorded.values())))
    plan = Plan(list(spans))
    batch: Batch = lay_out(plan, torch.device("cpu"))
    newest.fill_in(batch, plan)
    return batch.token_ids.tolist()


@of("p10")
def test_a_token_is_recorded_and_found_by_slot(phase):
    decodes = [Span(None, slot, 9, (UNKNOWN,), 1) for slot in (0, 1, 2)]
    found = filled(*decodes, recorded={2: 72, 0: 70, 1: 71})
    assert found == [70, 71, 72], f"slots 0, 1 and 2 sampled 70, 71 and 72, and start from these; yours: {found}"


@of("p10")
def test_a_step_leaves_the_tokens_of_other_slots_alone(phase):
    decodes = [Span(None, slot, 9, (UNKNOWN,), 1) for slot in (3, 1)]
    found = filled(*decodes, recorded={1: 71})
    assert found == [73, 71], f"slot 3 sampled 73 a step ago and slot 1 sampled 71 since: [73, 71]; yours: {found}"


@of("p10")
def test_where_no_token_could_be_sampled_the_next_step_gets_one_that_exists(phase):
    """Its sequence ends, but not before the step that is under way has looked the token up."""
    decodes = [Span(None, slot, 9, (UNKNOWN,), 1) for slot in (0, 1)]
    found = filled(*decodes, recorded={0: -1, 1: 71})
    assert found == [0, 71], f"slot 0 sampled -1, for none, and slot 1 sampled 71: [0, 71]; yours: {found}"


@of("p10")
def test_only_what_is_unknown_is_filled_in(phase):
    spans = Span(None, 1, 0, (5, 6, 7), 1), Span(None, 2, 9, (UNKNOWN,), 1), Span(None, 0, 4, (8,), 1)
    found = filled(*spans, recorded={0: 70, 1: 71, 2: 72})
    wanted = [5, 6, 7, 72, 8]
    assert found == wanted, f"of a prompt, a decode with a hole and one without come {wanted}; yours: {found}"


@of("p10")
def test_where_all_is_known_nothing_is_filled_in(phase):
    found = filled(Span(None, 1, 0, (5, 6), 0), recorded={1: 71})
    assert found == [5, 6], f"the prompt's own tokens stay, [5, 6]; yours: {found}"
