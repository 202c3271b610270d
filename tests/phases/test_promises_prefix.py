"""The promises of p05 and every later phase: a computed prefix is found again, and nothing else is.

A stand-in takes the model's place; pages have 16 positions.
"""

from collections.abc import Sequence

from gradus.config.options import FINAL
from gradus.course.probe import EngineProbe, Step, walk
from gradus.engine.engine import Engine
from gradus.engine.request import Request, SamplingParams, SchedulingParams
from tests.phases.conftest import about, build_engine, of, since
from tests.phases.drive import next_step, step, steps, submit
from tests.phases.test_promises import LIMITS, SHAPE

PAGE = 16
BEGINNING = list(range(2 * PAGE))  # two whole pages


def engine_of(phase: str, pages: int = 64, max_sequences: int = 4) -> Engine:
    return build_engine(phase, SHAPE, max_sequences, page_size=PAGE, cache_tokens=pages * PAGE)


def ask(name: str, prompt: Sequence[int], max_tokens: int = 1, n: int = 1, salt: str | None = None) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, n=n)
    return Request.create(name, prompt, params, LIMITS, SchedulingParams(cache_salt=salt))


def serve(engine: Engine, *requests: Request) -> list[Step]:
    """Run the requests to their ends, the books checked after every step."""
    return list(steps(submit(engine, requests)))


def computed(made: list[Step], name: str) -> list[tuple[int, int]]:
    """Return (start, tokens) of each of the request's spans in turn."""
    return [(span.start, span.count) for each in made for span in each.spans if span.request_id == name]


def second(phase: str, first: Request, then: Request) -> tuple[int, int]:
    """The first span of a request that comes when another one has ended: (start, tokens)."""
    engine = engine_of(phase)
    serve(engine, first)
    (span,) = next(steps(submit(engine, [then]))).spans
    return span.start, span.count


@since("p05")
@about("cache")
def test_pages_that_were_computed_before_are_not_computed_again(phase):
    span = second(phase, ask("a", [*BEGINNING, 50, 51]), ask("b", [*BEGINNING, 60, 61, 62]))
    assert span == (32, 3), f"b begins with a's two pages, so its span is (start 32, 3 tokens); yours is {span}"


@since("p05")
@about("radix")
def test_of_a_page_all_tokens_must_agree(phase):
    span = second(phase, ask("a", BEGINNING + BEGINNING), ask("b", [*BEGINNING[:-1], 99, *BEGINNING]))
    assert span == (16, 48), f"the second page differs in its last token: b's span is (16, 48); yours is {span}"


@since("p05")
@about("radix")
def test_a_page_is_found_only_behind_the_pages_that_it_was_computed_behind(phase):
    head, tail = BEGINNING[:PAGE], BEGINNING[PAGE:]
    span = second(phase, ask("a", [*head, *tail, 50]), ask("b", [*tail, *tail, 50]))
    assert span == (0, 33), f"the same page behind another beginning has other keys: (0, 33); yours is {span}"


@since("p05")
@about("radix")
def test_two_that_computed_the_same_pages_keep_one_copy(phase):
    engine = engine_of(phase)
    submit(engine, [ask("a", [*BEGINNING, 50], max_tokens=4), ask("b", [*BEGINNING, 51], max_tokens=4)])
    next_step(engine)
    held = [EngineProbe(engine).tables(name)[0][:2] for name in "ab"]
    assert held[0] == held[1], f"after the commit both hold the same two pages; yours hold {held[0]} and {held[1]}"


@since("p05")
@about("radix")
def test_behind_a_fork_a_page_is_found_on_its_own_path_alone(phase):
    a, b, c, d = (list(range(first, first + PAGE)) for first in (0, 50, 100, 150))
    engine = engine_of(phase)
    serve(engine, ask("1", [*a, *b, *c, 9]), ask("2", [*a, *b, *d, 9]))
    for prompt, wanted in (([*a, *b, *c, 9], (48, 1)), ([*a, *b, *d, 9], (48, 1))):
        (span,) = computed([next(steps(submit(engine, [ask("3", prompt)])))], "3")
        assert span == wanted, f"two pages before the fork and one behind it are found again: {wanted}; yours is {span}"
    for prompt, wanted in (([*a, *c, *d, 9], (16, 33)), ([*c, *a, 9], (0, 33))):
        (span,) = computed([next(steps(submit(engine, [ask("3", prompt)])))], "3")
        assert span == wanted, f"behind another page the same page has other keys: {wanted}; yours is {span}"
    EngineProbe(engine).check()


@since("p05")
@about("cache")
def test_there_is_always_a_token_left_to_compute(phase):
    span = second(phase, ask("a", BEGINNING), ask("b", BEGINNING))
    assert span == (16, 16), f"a hit ends before the last token, whose row gives the logits: (16, 16); yours is {span}"


@since("p05")
@about("cache")
def test_answers_are_found_again_as_well(phase):
    """A conversation's next turn sends prompt and answer."""
    turn = ask("turn", BEGINNING, max_tokens=PAGE + 1)
    span = second(phase, turn, ask("next", [*BEGINNING, *[1] * (PAGE + 1), 70]))
    assert span == (48, 2), f"32 tokens of prompt and 16 of the answer fill three pages: (48, 2); yours is {span}"


@of("p05")
@about("cache")
def test_a_page_is_found_when_all_of_its_positions_are_stored(phase):
    cache = EngineProbe(engine_of(phase)).cache
    prompt = [*BEGINNING, 50]
    cache.admit("a", prompt, None)
    cache.reserve("a", 2 * PAGE - 1)
    cache.publish("a", prompt, None)
    found = cache.admit("b", prompt, None)
    assert found == PAGE, f"a has stored 31 of its 33 tokens, one page of 16 is full: b finds 16; yours finds {found}"


@since("p05")
def test_tenants_with_different_salts_share_nothing(phase):
    for salts in (("x", "y"), ("x", None), (None, "y")):
        span = second(phase, ask("a", [*BEGINNING, 50], salt=salts[0]), ask("b", [*BEGINNING, 50], salt=salts[1]))
        assert span == (0, 33), f"with the salts {salts} nothing is shared: (0, 33); yours is {span}"
    assert second(phase, ask("a", [*BEGINNING, 50], salt="x"), ask("b", [*BEGINNING, 50], salt="x")) == (32, 1)


@since("p05")
@about("cache")
def test_pages_still_being_computed_are_not_found(phase):
    engine = engine_of(phase)
    made = serve(engine, ask("a", [*BEGINNING, 50]), ask("b", [*BEGINNING, 50]))
    spans = computed(made, "a"), computed(made, "b")
    assert spans == ([(0, 33)], [(0, 33)]), f"both start in one step, so both compute all 33 tokens; yours: {spans}"


@of(FINAL)
def test_siblings_wait_for_the_first_ones_prompt_and_find_it(phase):
    made = serve(engine_of(phase), ask("a", [*BEGINNING, 50, 51], n=3, max_tokens=2))
    first = [(span.index, span.start, span.count) for span in made[0].spans]
    assert first == [(0, 0, 34)], f"in the first step one sample computes the prompt; yours: {first}"
    then = sorted((span.index, span.start, span.count) for span in made[1].spans)
    assert then == [(0, 34, 1), (1, 32, 2), (2, 32, 2)], f"the others find its pages in the next; yours: {then}"


@since("p05")
def test_a_request_is_told_how_much_of_its_prompt_was_found(phase):
    engine = engine_of(phase)
    for name, cached in (("a", 0), ("b", 32)):
        engine.submit(ask(name, [*BEGINNING, 50]))
        outputs = []
        while engine.has_work:
            outputs += step(engine)
        (output,) = outputs
        assert output.cached_tokens == cached, f"{name} found {cached} tokens, but reports {output.cached_tokens}"


@since("p05")
@about("cache")
def test_of_idle_pages_the_ends_of_paths_leave_first(phase):
    """Five pages: the first request leaves two of them idle; the second needs four."""
    engine = engine_of(phase, pages=5)
    serve(engine, ask("a", [*BEGINNING, 50]))
    serve(engine, ask("other", [200] * (4 * PAGE - 1)))
    span = computed(serve(engine, ask("b", [*BEGINNING, 50])), "b")[0]
    assert span == (16, 17), f"the second page of a had to go, the first one not: (16, 17); yours is {span}"


@since("p05")
@about("cache")
def test_pages_of_a_running_sequence_are_never_evicted(phase):
    """Seven pages: while a runs on three of them, others come and go on the rest."""
    engine = engine_of(phase, pages=7)
    engine.submit(ask("a", [*BEGINNING, 50], max_tokens=12))
    probe, held = EngineProbe(engine), set()
    for number in range(10):
        engine.submit(ask(f"other {number}", [100 + number] * (2 * PAGE + 1)))
        next_step(engine)
        held = held or set(probe.tables("a")[0][:2])
        assert held <= set(probe.tables("a")[0]), "a lost a page that it runs on"
    kept = {node.tokens[0] for node in walk(probe.tree())}
    assert 100 not in kept and 109 in kept, "the others had to evict each other's pages: the first one's are gone"


# -- what is counted ---------------------------------------------------------------------------------------------------


@since("p05")
def test_what_was_looked_up_and_what_was_found_is_counted_in_positions(phase):
    engine = engine_of(phase)
    serve(engine, ask("a", [*BEGINNING, 50, 51]))
    serve(engine, ask("b", [*BEGINNING, 60, 61, 62]))
    usage = EngineProbe(engine).cache.usage()
    counted = usage.queried_positions, usage.hit_positions
    assert counted == (34 + 35, 32), f"69 prompt tokens, of which 32 were found: (69, 32); yours counted {counted}"


@since("p05")
def test_evictions_are_counted_in_pages(phase):
    engine = engine_of(phase, pages=4)
    serve(engine, ask("a", BEGINNING))
    serve(engine, ask("b", list(range(50, 50 + 3 * PAGE))))
    usage, pages = EngineProbe(engine).cache.usage(), EngineProbe(engine).pages()
    gone = 2 + 3 - pages.idle  # full pages that were published, and are no longer there
    assert gone > 0 and usage.evictions == gone, f"{gone} pages were evicted; yours counted {usage.evictions}"
