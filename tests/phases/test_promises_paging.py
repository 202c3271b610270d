"""The promises of p04 and every later phase: pages as they are needed, and preemption when there are none left.

Most of these drive the cache alone, or the scheduler with a stand-in for the model. Pages have 4 positions. Tests
of what only the final engine has (windows, priorities, tables sent as changes) run for it alone.
"""

from functools import cache

import pytest

from gradus.config.options import FINAL, Policy
from gradus.course.probe import EngineProbe
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams, SchedulingParams
from tests.cache.memory import updated
from tests.phases.conftest import about, build_engine, limits_of, of, since
from tests.phases.drive import Answers, SamplesOnes, parting, run, steps, submit
from tests.phases.test_promises import SHAPE, ask

PAGE = 4
WINDOWED = "tiny-gemma3"  # two layers with full attention, two with a window of 16: a group each
LONG = ask("a", prompt=range(3, 26), max_tokens=40)


def engine_of(phase: str, *requests: Request, pages: int, shape: str = SHAPE, policy: Policy = "fcfs") -> Engine:
    settings = {"page_size": PAGE, "cache_tokens": pages * PAGE} | ({"policy": policy} if phase == FINAL else {})
    return submit(build_engine(phase, shape, **settings), requests)


def cache_of(phase: str, pages: int, shape: str = SHAPE):
    return EngineProbe(engine_of(phase, pages=pages, shape=shape)).cache


# -- pages as they are needed ------------------------------------------------------------------------------------------


@since("p04")
@about("cache")
def test_a_sequence_holds_a_page_for_every_four_positions_that_it_has_begun(phase):
    cache = cache_of(phase, pages=8)
    for end in (1, 3, 4, 5, 8, 9, 17):
        assert cache.reserve("a", end), f"of 8 pages of {PAGE}, {end} positions take {-(-end // PAGE)}: there is room"
        held, needed = cache.pages().held, -(-end // PAGE)
        assert held == needed, f"positions 0 to {end - 1} need pages of {PAGE}: {needed}; yours has {held}"
        cache.check()


@since("p04")
@about("cache")
def test_new_pages_come_behind_those_that_a_sequence_has(phase):
    cache, before = cache_of(phase, pages=8), ()
    for end in (4, 9, 17):
        cache.reserve("a", end)
        (table,) = cache.tables("a")
        assert table[: len(before)] == before, (
            f"positions 0 to {4 * len(before) - 1} stay on pages {list(before)}, in front; with {end} positions your "
            f"table is {list(table)}"
        )
        before = table


@since("p04")
@about("cache")
def test_a_sequence_that_is_refused_stays_as_it_was_and_takes_nothing(phase):
    cache = cache_of(phase, pages=4)
    cache.reserve("a", 9)
    cache.reserve("b", 3)
    assert not cache.reserve("b", 6), "all 4 pages are held, and reserve says that there is one more"
    assert not cache.reserve("c", 1), "all 4 pages are held, and reserve says that there is one more"
    cache.release("a")
    assert not cache.reserve("b", 17), "4 pages have no room for 17 positions, and reserve says that they have"
    held, stored = cache.pages().held, cache.stored("b")
    assert (held, stored) == (1, 3), (
        f"a refusal takes no page and stores nothing: b has 1 page, 3 positions; yours has {held}, {stored}"
    )


@of("p04")
@about("cache")
def test_a_newcomer_that_is_refused_has_no_block_table(phase):
    cache = cache_of(phase, pages=2)
    assert not cache.reserve("a", 9), "2 pages have no room for 9 positions, and reserve says that they have"
    found = cache.block_tables
    assert not found, f"a was refused, and everything is as it was: no sequence has a table, {{}}; yours: {found}"


@since("p04")
@about("cache")
def test_a_sequence_that_was_never_seen_can_be_released(phase):
    cache = cache_of(phase, pages=4)
    cache.reserve("a", 5)
    try:
        cache.release("b")
    except KeyError as error:
        raise AssertionError(f"b has no page, so its release changes nothing; yours raises KeyError: {error}") from None
    held = cache.pages().held
    assert held == 2, f"a's 5 positions are on 2 pages, and b had none to give back; yours has {held}"


@of("p04")
@about("cache")
def test_the_last_page_of_a_sequence_is_given_back_first(phase):
    """p05 evicts pages in the order in which they came back. The free ones are a stack, so the next one on it shows."""
    cache = cache_of(phase, pages=3)
    cache.reserve("a", 3 * PAGE)
    (before,) = cache.tables("a")
    cache.release("a")
    cache.reserve("b", 3 * PAGE)
    (after,) = cache.tables("b")
    assert after == before, (
        f"a's pages go back last one first, so that the pool hands them to b from the first one on, as to a: "
        f"{list(before)}; yours: {list(after)}"
    )


@since("p04")
@about("cache")
def test_the_runner_is_told_every_page_of_a_block_table(phase):
    cache, known = cache_of(phase, pages=4), ()
    for end in (3, 4, 5, 12, 13):
        cache.reserve("a", end)
        known = updated(known, cache.table_change("a"))
        table = cache.tables("a")
        assert known == table, f"with {end} positions stored the block table is {table}; the runner received {known}"


@of(FINAL)
def test_a_block_table_is_told_when_it_has_grown_and_only_then(phase):
    cache = cache_of(phase, pages=4)
    cache.reserve("a", 3)
    (first,) = known = updated((), cache.table_change("a"))
    cache.reserve("a", 4)
    assert cache.table_change("a") is None, "position 3 is on the first page: the table has not changed, sent as None"
    cache.reserve("a", 5)
    change = cache.table_change("a")
    assert change is not None, "position 4 is on a second page, and the runner received no change"
    (table,) = updated(known, change)
    assert table[:1] == first and len(set(table)) == 2, f"after {first} comes one page more; yours says {table}"


@since("p04")
@about("cache")
def test_no_page_belongs_to_two(phase):
    cache = cache_of(phase, pages=8)
    for end in range(1, 13):
        for name in "ab":
            cache.reserve(name, end)
    tables = {name: cache.tables(name)[0] for name in "ab"}
    assert not set(tables["a"]) & set(tables["b"]), f"two sequences must not share a page here; yours do: {tables}"
    assert 0 not in tables["a"] + tables["b"], f"page 0 belongs to no sequence; yours hands it out: {tables}"


# -- behind a window ---------------------------------------------------------------------------------------------------


def decoded(phase: str, length: int) -> list[tuple[int, ...]]:
    """The tables of a sequence that has grown to `length` one position at a time: the full group's, a window's."""
    cache, known = cache_of(phase, pages=64, shape=WINDOWED), ()
    for end in range(6, length + 1):
        assert cache.reserve("a", end)
        cache.check()
        known = updated(known, cache.table_change("a"))
    full, windowed, *_ = cache.tables("a")
    assert known[1] == windowed, (
        f"the runner's copy of the tables must learn which pages are gone: {windowed}; it received {known[1]}"
    )
    return [full, windowed]


@of(FINAL)
def test_pages_that_a_window_has_passed_are_given_back_and_leave_a_zero(phase):
    full, windowed = decoded(phase, 41)
    assert 0 not in full, f"without a window every page is read to the end; yours has given some back: {full}"
    assert len(windowed) == len(full), "a table keeps its length: entry i is the page of positions 4 i to 4 i + 3"
    gone = [entry for entry, page in enumerate(windowed) if page == 0]
    assert gone == [0, 1, 2, 3, 4, 5], (
        f"position 40 sees back to 25, on entry 6: entries 0 to 5 are given back; yours are {gone}"
    )


@of(FINAL)
def test_a_page_that_the_span_can_still_see_is_kept(phase):
    cache = cache_of(phase, pages=64, shape=WINDOWED)
    cache.reserve("a", 21)
    cache.reserve("a", 30)  # the span of positions 21 to 29: its first query sees 6 to 21
    windowed = cache.tables("a")[1]
    kept = [entry for entry, page in enumerate(windowed) if page]
    assert kept == list(range(1, 8)), (
        f"the first query of span 21 to 29 sees back to 6: entries 1 to 7 are kept; yours keeps {kept}"
    )


@of(FINAL)
def test_what_is_given_back_can_be_taken_at_once(phase):
    """Two groups: 32 positions take all 16 pages. Position 32 sees back to 17, so four of the window's 8 are unseen."""
    cache = cache_of(phase, pages=8, shape=WINDOWED)  # per group
    assert cache.reserve("a", 32), "two groups of 8 pages each have room for 32 positions"
    assert cache.reserve("a", 33), "4 pages behind the window come back first, more than the 2 that are needed"
    assert cache.pages().free == 2, f"4 pages came back and 2 were taken; yours has {cache.pages().free} free"


@since("p04")
@about("attention")
def test_a_model_with_windows_gives_the_tokens_that_it_gives_without_pages(phase):
    tokens = run(engine_of(phase, pages=16, shape=WINDOWED), [LONG])["a", 0].tokens
    right = alone(WINDOWED)["a", 0].tokens
    assert tokens == right, parting(LONG.prompt, tokens, right)


# -- when there is none left -------------------------------------------------------------------------------------------


@cache
def alone(shape: str) -> Answers:
    """How each of the crowd ends in p00, which runs one at a time; with windows, the long request."""
    return run(build_engine("p00", shape), [LONG] if shape == WINDOWED else crowd())


def crowd() -> list[Request]:
    """a and b fit side by side, but not to their ends; c waits."""
    return [
        ask("a", prompt=[5] * 6, max_tokens=11),
        ask("b", prompt=[6] * 5, max_tokens=11),
        ask("c", prompt=[7] * 4, max_tokens=5),
    ]


def ran(engine: Engine) -> list[list[str]]:
    """The requests that run in each step."""
    return [step.names for step in steps(engine)]


@since("p04")
@about("scheduler")
def test_the_first_one_advances_in_every_step_until_it_ends(phase):
    names = ran(engine_of(phase, *crowd(), pages=6))
    count = sum("a" in each for each in names)
    assert all("a" in each for each in names[:11]) and count == 11, (
        f"a came first and never gives way: it runs in steps 1 to 11; yours ran {list(map(''.join, names))}"
    )


@since("p04")
@about("scheduler")
def test_the_sequence_that_came_last_gives_way_and_goes_on_before_those_behind_it(phase):
    engine = engine_of(phase, *crowd(), pages=6)
    first_c, preempted = None, None
    for number, names in enumerate(ran(engine)):
        if preempted is None and number and "b" not in names:
            preempted = number
        if first_c is None and "c" in names:
            first_c = number
            assert "b" in names, "b came before c, so after its preemption it is back before c starts"
    assert preempted is not None, "6 pages do not hold a and b to their ends, and yet neither gave way"
    count = engine.metrics().preemptions
    assert count == 1, f"one preemption is enough here, of b by a; yours made {count}"


@of("p04")
@about("scheduler")
def test_a_preempted_sequence_is_computed_again_from_its_beginning_with_its_answer_so_far(phase):
    made = [step.of("b") for step in steps(engine_of(phase, *crowd(), pages=6))]
    spans = [(span.start, span.count) for span in made if span is not None]
    wanted = [(0, 5), *((5 + i, 1) for i in range(6)), (0, 12), *((12 + i, 1) for i in range(3))]
    assert spans == wanted, f"b's spans are {wanted}: after 12 tokens it starts over; yours are {spans}"


@since("p04")
@about("scheduler")
def test_no_plan_runs_a_sequence_that_has_no_pages(phase):
    for step in steps(engine_of(phase, *crowd(), pages=6)):
        running = [name for name, _ in step.running]
        assert set(step.names) <= set(running), (
            f"the plan runs {step.names}, though only {running} have pages; preempted while it was made: "
            f"{[name for name, _ in step.preempted]}"
        )


@of(FINAL)
def test_no_plan_runs_a_sequence_that_was_preempted_while_it_was_made(phase):
    """One that matters more comes second: by the time it needs a page, the step has planned the first one already."""
    preempted = 0
    for prompt in range(4, 9):
        engine = engine_of(phase, first := urgent("a", 4, priority=1), pages=6, policy="priority")
        for number, step in enumerate(steps(engine)):
            if number == 0:
                engine.submit(urgent("b", prompt, priority=0))
            running = [name for name, _ in step.running]
            preempted += len(step.preempted)
            assert set(step.names) <= set(running), (
                f"the plan runs {step.names}, though only {running} has pages: {first.id} was sent back while it was "
                f"made"
            )
    assert preempted, "no sequence was preempted: the case is not the one that is meant"


def urgent(name: str, prompt: int, priority: int) -> Request:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    return Request.create(name, [5] * prompt, params, limits_of(SHAPE), SchedulingParams(priority=priority))


@since("p04")
@about("scheduler")
def test_a_newcomer_leaves_every_running_sequence_a_page_to_grow(phase):
    engine = engine_of(phase, ask("a", [5] * 4, max_tokens=5), ask("b", [6] * 16, max_tokens=4), pages=5)
    first, *_ = ran(engine)
    count = engine.metrics().preemptions
    assert first == ["a"] and count == 0, (
        f"of 5 pages a has one, and needs a second in the next step; b would take all others, and be sent back. So it "
        f"waits; yours starts {first}, with {count} preemptions"
    )


@of("p04")
@about("scheduler")
def test_as_many_give_way_as_a_long_span_needs(phase, monkeypatch):
    """Here a span of decodes needs one page at most; with drafts (p08) it may need several."""
    engine = engine_of(phase, *(ask(name, [5] * 3, max_tokens=12) for name in "abc"), pages=6)
    engine.step()
    scheduler = EngineProbe(engine).scheduler
    first = scheduler.running[0]
    monkeypatch.setattr(scheduler, "end_of_span", lambda _: 24)
    found = scheduler.make_room(first), [sequence.request.id for sequence in scheduler.running]
    assert found == (True, ["a"]), (
        f"a, b and c have a page each of 6, and a needs all 6: c gives way and then b: (True, ['a']); yours: {found}"
    )


@since("p04")
@about("scheduler")
def test_a_sequence_that_is_alone_may_have_every_page(phase):
    engine = engine_of(phase, ask("a", [5] * 13, max_tokens=3), pages=4)
    plan = EngineProbe(engine).scheduler.schedule()
    assert plan is not None, (
        "a's prompt needs all 4 pages, and its answer no more; none runs that could need one, so a starts; yours waits"
    )


@pytest.mark.parametrize("pages", [5, 6, 9])
@since("p04")
def test_each_request_gets_the_tokens_it_gets_alone_however_few_pages_there_are(phase, pages):
    done = run(engine_of(phase, pages=pages), crowd())
    for request in crowd():
        tokens, right = done[request.id, 0].tokens, alone(SHAPE)[request.id, 0].tokens
        assert tokens == right, f"with {pages} pages {request.id} goes wrong: {parting(request.prompt, tokens, right)}"


def steps_of_twenty(at_once: int) -> int:
    """Steps until twenty sequences of p04's lesson have ended: 100 tokens in, 400 out, 5,120 positions."""
    engine = build_engine("p04", SHAPE, max_sequences=at_once, cache_tokens=5120, page_size=16)
    submit(engine, [ask(f"r{i}", [1] * 100, max_tokens=400) for i in range(20)])
    engine.runner = SamplesOnes()
    while engine.has_work:
        engine.step()
    return engine.metrics().steps


def test_admitting_all_takes_fewer_steps_than_admitting_ten_as_the_lesson_says():
    assert (steps_of_twenty(20), steps_of_twenty(10)) == (643, 800)
