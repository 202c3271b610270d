"""The promises of p08's parts: guesses copied from the text, drafts verified against samples, pages taken back.

Each case is small enough to work out by hand.
"""

import pytest

from gradus.engine.logprobs import Logprobs
from gradus.engine.plan import Span
from gradus.engine.sequence import SpanResult
from phases.p08_speculation.cache import RollbackCache
from phases.p08_speculation.drafting import continuation, seen_before
from phases.p08_speculation.verification import accepted, kept
from tests.phases.conftest import of

# -- guesses -----------------------------------------------------------------------------------------------------------


def goes_on(text: list[int], wanted: int | None, why: str) -> None:
    found = seen_before(text)
    assert found == wanted, f"in {text} {why}: {wanted}; yours says {found}"


@of("p08")
def test_the_text_goes_on_behind_the_place_where_its_ending_was_seen_before(phase):
    goes_on([1, 2, 3, 9, 1, 2, 3], 3, "1, 2, 3 stood at the beginning, so the text goes on at place 3")


@of("p08")
def test_an_ending_that_was_seen_several_times_is_followed_from_its_last_place(phase):
    goes_on([1, 2, 7, 1, 2, 8, 1, 2], 5, "1, 2 stood at places 0 and 3, and the last time counts")


@of("p08")
def test_an_ending_is_found_however_long_ago_it_was_seen(phase):
    found = seen_before([1, 2, *range(10, 2010), 1, 2])
    assert found == 2, f"in 1, 2, then 2000 other tokens, then 1, 2 again, the text goes on at place 2; yours: {found}"


@of("p08")
def test_a_longer_ending_is_better_evidence_than_a_later_one(phase):
    goes_on([1, 2, 3, 4, 5, 9, 2, 3, 6, 1, 2, 3], 3, "the last three tokens stood at place 0, the last two at place 6")


@of("p08")
def test_an_ending_that_is_new_is_not_found(phase):
    goes_on([1, 2, 3, 4], None, "no ending was seen before")
    goes_on([7, 1, 7], None, "only a single token was, which says too little")
    for text in ([], [5], [5, 5]):
        goes_on(text, None, "there is nothing before the ending")


@of("p08")
def test_an_ending_may_overlap_the_place_where_it_was_seen(phase):
    goes_on([5, 5, 5], 2, "5, 5 stood at place 0 as well")
    goes_on([7, 8, 7, 8, 7], 3, "7, 8, 7 stood at place 0 as well")


@of("p08")
@pytest.mark.parametrize(
    ("text", "count", "wanted"),
    [
        ([1, 2, 3, 4, 9, 8, 1, 2, 3], 3, [4, 9, 8]),
        ([1, 2, 3, 4, 9, 8, 1, 2, 3], 1, [4]),
        ([1, 2, 3, 4, 1, 2, 3], 6, [4, 1, 2, 3, 4, 1]),
        ([7, 8, 7, 8, 7], 4, [8, 7, 8, 7]),
        ([5, 5, 5], 4, [5, 5, 5, 5]),
        ([1, 2, 3, 4], 4, []),
    ],
)
def test_the_copy_has_as_many_tokens_as_wanted_and_may_go_on_with_itself(phase, text, count, wanted):
    before = list(text)
    found = continuation(text, count)
    assert found == wanted, f"{count} tokens behind {text} are {wanted}; yours are {found}"
    assert text == before, f"the text itself must not grow: it was {before}, and is {text}"


# -- verification ------------------------------------------------------------------------------------------------------


@of("p08")
@pytest.mark.parametrize(
    ("drafts", "sampled", "wanted", "why"),
    [
        ([5, 6, 7], (5, 6, 9, 4), 2, "5 and 6 agree, 7 does not"),
        ([5, 6, 7], (5, 6, 7, 4), 3, "all agree"),
        ([5, 6, 7], (9, 6, 7, 4), 0, "6 and 7 agree, but their rows have seen the wrong 5"),
        ([5, 6, 7], (4, 5, 6, 7), 0, "draft i is for what row i samples"),
        ([5, 6, 7], (5, 9, 7, 4), 1, "7 agrees, but its row has seen the wrong 6"),
    ],
)
def test_drafts_agree_up_to_the_first_that_is_not_what_was_sampled(phase, drafts, sampled, wanted, why):
    found = accepted(drafts, sampled)
    assert found == wanted, f"drafts {drafts}, sampled {list(sampled)}: {why}, so {wanted}; yours says {found}"


def verified(drafts: list[int], sampled: tuple[int, ...]) -> tuple[Span, SpanResult]:
    """A span at position 10 whose newest token is 4."""
    packed = tuple(bytes([row]) for row in range(len(sampled)))
    span = Span(None, 0, 10, [4, *drafts], logits=1 + len(drafts))
    return kept(span, SpanResult(sampled, Logprobs(packed)))


@of("p08")
@pytest.mark.parametrize(
    ("sampled", "tokens", "wanted"),
    [
        ((5, 6, 9, 1), [4, 5, 6], (5, 6, 9)),
        ((9, 6, 7, 1), [4], (9,)),
        ((5, 6, 7, 1), [4, 5, 6, 7], (5, 6, 7, 1)),
    ],
)
def test_accepted_drafts_stay_and_one_row_more_gives_its_token(phase, sampled, tokens, wanted):
    span, result = verified([5, 6, 7], sampled)
    assert tuple(result.tokens) == wanted, (
        f"behind 4 the drafts 5, 6, 7, sampled {sampled}: the next tokens are {wanted}; yours are {result.tokens}"
    )
    assert list(span.tokens) == tokens, (
        f"sampled {sampled}: the rows that count are those of {tokens}; yours of {span.tokens}"
    )


@of("p08")
def test_what_is_left_is_a_span_like_any_other(phase):
    span, result = verified([5, 6, 7], (5, 9, 7, 1))
    assert (span.start, span.slot) == (10, 0), "the span begins where it began"
    assert span.logits == 1, f"without its drafts the span is sampled from once, at its end; yours has {span.logits}"
    same = result.logprobs == Logprobs((b"\0", b"\1"))  # apart, since these have no repr: they are no floats
    assert same, f"a log-probability for each token that is kept, in their order: 2; yours keeps {len(result.logprobs)}"


# -- rollback ----------------------------------------------------------------------------------------------------------


def cache_of(**ends: int) -> RollbackCache:
    """Eight pages of four positions; sequences by name, and how many positions are stored of each."""
    cache = RollbackCache(8, 4)
    for name, end in ends.items():
        cache.admit(name, [0], None)
        assert cache.reserve(name, end)
    return cache


@of("p08")
@pytest.mark.parametrize(("end", "pages"), [(11, 3), (10, 3), (9, 3), (8, 2), (5, 2), (4, 1)])
def test_a_sequence_keeps_the_pages_that_it_still_fills(phase, end, pages):
    cache = cache_of(a=11)
    before = cache.tables("a")[0]
    cache.truncate("a", end)
    now = cache.tables("a")[0]
    assert cache.stored("a") == end, f"from 11 positions back to {end}: yours still counts {cache.stored('a')}"
    assert now == before[:pages], f"{end} positions fill {pages} of the pages {before}; yours keeps {now}"
    counts = cache.pages()
    assert counts.free == 8 - pages, f"{pages} of 8 pages are held, so {8 - pages} are free; yours: {counts}"
    cache.check()


@of("p08")
def test_the_last_page_that_is_taken_back_is_given_back_first(phase):
    """The free pages are a stack, so the order shows in the pages that the next reservation takes."""
    cache = cache_of(a=16)
    before = cache.tables("a")[0]
    cache.truncate("a", 4)
    cache.reserve("a", 16)
    now = cache.tables("a")[0]
    assert now == before, f"pages go back last one first, and so come again in their old order: {before}; yours: {now}"


@of("p08")
def test_what_was_taken_back_can_be_taken_again(phase):
    cache = cache_of(a=11, b=20)
    assert not cache.has_room("b", 21), "all eight pages are held"
    cache.truncate("a", 8)
    assert cache.reserve("b", 24), "a's third page is free now, and b can have it"
    assert not cache.reserve("a", 9) and cache.reserve("a", 8), "a keeps its two pages, and gets no third one"
    cache.check()


@of("p08")
def test_pages_that_others_share_stay_theirs(phase):
    cache = RollbackCache(8, 4)
    prompt = list(range(9))
    cache.admit("a", prompt, None)
    cache.reserve("a", 9)
    cache.publish("a", prompt, None)
    cache.admit("b", prompt, None)
    cache.reserve("b", 14)
    cache.truncate("b", 9)
    assert cache.tables("b")[0][:2] == cache.tables("a")[0][:2], "b still begins with the two pages of a"
    cache.release("a")
    cache.truncate("b", 9)
    cache.check()
    cache.release("b")
    counts = cache.pages()
    assert (counts.held, counts.idle) == (0, 2), f"both have ended, and the two shared pages are kept idle; {counts}"
