"""The promises of p06 and every later phase: no step is longer than its budget, and a prompt waits, not a decode.

A stand-in takes the model's place.
"""

from gradus.course.probe import Step
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams
from tests.phases.conftest import build_engine, of, since
from tests.phases.drive import steps, submit
from tests.phases.test_promises import LIMITS, SHAPE

BUDGET = 8


def engine_of(phase: str, *requests: Request, max_sequences: int = 4, budget: int = BUDGET) -> Engine:
    engine = build_engine(phase, SHAPE, max_sequences, page_size=4, cache_tokens=512, token_budget=budget)
    return submit(engine, requests)


def ask(name: str, length: int, max_tokens: int = 4) -> Request:
    """Prompts that share nothing: the first token is the name's."""
    prompt = [ord(name), *range(1, length)]
    return Request.create(name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), LIMITS)


def spans_of(step: Step) -> list[tuple[str, int, int]]:
    """(name, start, tokens) of each span, by name."""
    return sorted((span.request_id, span.start, span.count) for span in step.spans)


@since("p06")
def test_a_prompt_is_computed_chunk_by_chunk_and_its_end_is_sampled_from(phase):
    chunks = [(0, 8, 0), (8, 8, 0), (16, 3, 1), (19, 1, 1), (20, 1, 1)]
    for step, wanted in zip(steps(engine_of(phase, ask("a", 19, max_tokens=3))), chunks, strict=True):
        assert len(step.spans) == 1, f"a sequence has one span per step; yours planned {spans_of(step)}"
        (span,) = step.spans
        made = span.start, span.count, span.logits
        assert made == wanted, f"19 tokens, at most 8 per step: (start, tokens, logits) is {wanted}; yours is {made}"


@of("p06")
def test_an_answer_that_is_computed_again_in_chunks_is_sampled_from_at_its_end_alone(phase):
    """6 pages of 4 do not hold both to their ends: b gives way, and comes back with a part of its answer."""
    engine = build_engine(phase, SHAPE, 2, page_size=4, cache_tokens=24, token_budget=4)
    submit(engine, [ask("a", 9, max_tokens=11), ask("b", 2, max_tokens=11)])
    known, chunks = {"a": 9, "b": 2}, 0
    for step in steps(engine):
        for span in step.spans:
            name, end = span.request_id, span.start + span.count
            assert not span.logits or end == known[name], (
                f"{name} has {known[name]} tokens, and its span from {span.start} to {end} ends before the newest one: "
                f"logits is 0; yours is {span.logits}"
            )
            known[name] += span.logits
            chunks += name == "b" and not span.logits and end > 2
    assert chunks, "no chunk of b ends within its answer: the case is not the one that is meant"


@since("p06")
def test_a_chunk_has_no_output(phase):
    engine = engine_of(phase, ask("a", 19, max_tokens=1))
    engine.lag = 0
    outputs = [len(engine.step()) for _ in range(3)]
    assert outputs == [0, 0, 1], f"19 tokens, at most 8 per step: the third step has an output; yours have {outputs}"


@since("p06")
def test_a_sequence_starts_in_a_step_that_has_a_token_for_it(phase):
    made = [spans_of(step) for step in steps(engine_of(phase, ask("a", 8, max_tokens=1), ask("b", 3, max_tokens=1)))]
    wanted = [[("a", 0, 8)], [("b", 0, 3)]]
    assert made == wanted, f"a takes all 8 tokens of the budget, and b starts in the next step: {wanted}; yours: {made}"


@since("p06")
def test_no_step_has_more_tokens_than_the_budget(phase):
    engine = engine_of(phase, ask("a", 30), ask("b", 3), ask("c", 21), ask("d", 8))
    for step in steps(engine):
        count = step.tokens
        assert count <= BUDGET, f"the budget is {BUDGET} tokens per step; yours planned {count}: {spans_of(step)}"


@since("p06")
def test_the_pages_of_a_chunk_are_found_before_the_prompt_is_done(phase):
    """b begins like a, and starts in the step of a's last chunk: 8 of a's 14 tokens were computed in the step
    before."""
    a, b = ask("a", 14, max_tokens=1), ask("a", 12, max_tokens=1)
    b = Request.create("b", (*b.prompt, 90), b.params, LIMITS)
    made = [spans_of(step) for step in steps(engine_of(phase, a, b))]
    assert made[1] == [("a", 8, 6), ("b", 8, 2)], f"b starts at position 8, behind a's first chunk; yours: {made[1]}"


@since("p06")
def test_a_decoding_sequence_gets_a_token_in_every_step_whatever_prompt_comes(phase):
    engine = engine_of(phase, ask("a", 2, max_tokens=12), ask("b", 3, max_tokens=12))
    for number, step in enumerate(steps(engine)):
        if number == 2:
            engine.submit(ask("c", 25))
        decoding = [name for name, _, count in spans_of(step) if name in "ab" and (count == 1 or number == 0)]
        if 0 < number < 12:
            assert decoding == ["a", "b"], f"a and b decode in every step; yours in step {number}: {spans_of(step)}"
        if 3 <= number <= 6:
            assert ("c", 6 * (number - 3), 6) in spans_of(step), f"c gets the other six tokens; yours: {spans_of(step)}"


@since("p06")
def test_what_a_prompt_leaves_of_the_budget_goes_to_the_next_one(phase):
    made = [spans_of(step) for step in steps(engine_of(phase, ask("a", 11, max_tokens=2), ask("b", 9, max_tokens=1)))]
    wanted = [[("a", 0, 8)], [("a", 8, 3), ("b", 0, 5)], [("a", 11, 1), ("b", 5, 4)]]
    assert made == wanted, f"a's last 3 tokens leave 5 for b in the same step: {wanted}; yours: {made}"


@since("p06")
def test_a_prompt_under_way_ends_before_a_later_one_goes_on(phase):
    engine = engine_of(phase, ask("a", 6, max_tokens=9), ask("b", 20, max_tokens=1), ask("c", 20, max_tokens=1))
    ended = {}
    for number, step in enumerate(steps(engine)):
        ended |= {name: number for name, start, count in spans_of(step) if name in "bc" and start + count == 20}
    assert ended["b"] < ended["c"], f"b came first, so its prompt ends first; yours end in steps {ended}"


@since("p06")
def test_with_fewer_tokens_than_decodes_they_take_turns(phase):
    engine = engine_of(phase, *(ask(name, 1, max_tokens=6) for name in "abc"), max_sequences=3, budget=2)
    last = dict.fromkeys("abc", 0)
    for number, step in enumerate(steps(engine)):
        last |= {name: number for name, _, _ in spans_of(step)}
        waits = {name: number - last[name] for name, _ in step.running}
        assert max(waits.values()) <= 2, (
            f"no sequence waits longer than two steps; in step {number} they waited {waits}"
        )
