"""The cache manager by hand: block tables, windows, sharing, eviction and poison, small enough to follow."""

import subprocess
import sys

import pytest

from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from tests.cache.memory import NAN, Memory, Sequence


def run(cache, id, tokens, salt=None, span=None) -> tuple[tuple[int, ...], ...]:
    """Admit a sequence, run its tokens, publish them. Returns its tables; it stays."""
    start = cache.admit(id, tokens, salt)
    for end in [*range(start + (span or len(tokens)), len(tokens), span or len(tokens)), len(tokens)]:
        assert cache.reserve(id, end)
        cache.publish(id, tokens[:end])
        cache.check()
    return tuple(map(tuple, cache.residents[id].tables))


# -- block tables ------------------------------------------------------------------------------------------------------


def test_a_sequence_takes_a_page_when_it_enters_one_and_not_before():
    cache = PagedCache(pages=3, page_size=4)
    taken = []
    for end in range(1, 13):
        assert cache.reserve("a", end) and cache.stored("a") == end
        taken.append(cache.pool.held)
    assert taken == [1] * 4 + [2] * 4 + [3] * 4
    assert not cache.reserve("a", 13) and cache.stored("a") == 12


def test_tables_are_sent_once_and_again_when_they_change():
    cache = PagedCache(pages=3, page_size=4)
    cache.reserve("a", 3)
    assert cache.table_change("a") == (0, ((1,),))
    cache.reserve("a", 4)
    assert cache.table_change("a") is None
    cache.reserve("a", 5)
    assert cache.table_change("a") == (1, ((2,),)), "the first page is known already"
    assert cache.table_change("a") is None


def test_pages_for_many_are_those_that_reserve_would_take_one_by_one():
    many, single = (PagedCache(pages=12, page_size=2, windows=(None, 3)) for _ in range(2))
    for cache in (many, single):
        for name in "abc":
            cache.reserve(name, 2)
            cache.table_change(name)
    changes = many.add_pages("abc")
    assert changes is not None and all(single.reserve(name, 4) for name in "abc")
    for name, change in zip("abc", changes, strict=True):
        assert many.stored(name) == single.stored(name) == 4
        assert change == single.table_change(name) is not None and many.table_change(name) is None
    many.check()


def test_pages_for_many_come_all_or_none():
    cache = PagedCache(pages=3, page_size=2)
    for name in "ab":
        cache.reserve(name, 2)
    assert not cache.add_pages("ab") and cache.usage().refusals == 1
    assert [cache.stored(name) for name in "ab"] == [2, 2] and cache.usage().free == 1
    assert cache.add_pages("a") and not cache.add_pages("b")
    cache.check()


def test_pages_for_many_are_made_by_eviction_where_none_is_free():
    cache = PagedCache(3, 2, index=PrefixIndex())
    run(cache, "gone", [1, 2])
    cache.release("gone")
    for name, tokens in (("a", [3, 4]), ("b", [5, 6])):
        run(cache, name, tokens)
    assert cache.usage().idle == 1 and cache.add_pages("a") and cache.usage().evictions == 1
    cache.check()


def test_reserve_is_all_or_nothing():
    cache = PagedCache(pages=4, page_size=2, windows=(None, None))
    assert cache.reserve("a", 2)
    assert not cache.reserve("a", 6), "four more pages are asked for, two are there"
    assert (cache.stored("a"), cache.available, cache.usage().refusals) == (2, 2, 1)
    assert not cache.reserve("b", 4) and cache.stored("b") == 0
    cache.check()
    assert cache.reserve("a", 4), "two fit"


def test_a_refused_newcomer_leaves_nothing_behind():
    cache = PagedCache(pages=1, page_size=2)
    assert not cache.reserve("a", 3)
    assert not cache.residents


def test_the_same_sequence_is_admitted_once():
    cache = PagedCache(pages=2, page_size=2)
    assert cache.admit("a", [1, 2]) == 0
    with pytest.raises(ValueError, match="'a'"):
        cache.admit("a", [1, 2])


@pytest.mark.parametrize("window, longest, most", [(None, 1, 8), (4, 1, 3), (4, 4, 4), (4, 16, 8), (1, 1, 1)])
def test_a_window_needs_the_more_pages_the_longer_its_spans(window, longest, most):
    assert PagedCache(most, 2, (window,)).fits(16, longest)
    assert most == 1 or not PagedCache(most - 1, 2, (window,)).fits(16, longest)


# -- windows -----------------------------------------------------------------------------------------------------------


def test_a_window_group_gives_back_pages_that_no_query_of_the_span_can_see():
    cache = PagedCache(pages=12, page_size=2, windows=(None, 3))
    cache.reserve("a", 6)
    assert cache.table_change("a") == (0, ((1, 2, 3), (4, 5, 6)))
    cache.reserve("a", 8)  # the query at 6 sees 4, 5, 6
    kept, (full, window) = cache.table_change("a")
    assert kept == 0, "whoever keeps a copy must hear of the pages that are gone"
    assert full[:3] == (1, 2, 3) and window[:3] == (0, 0, 6) and len(full) == len(window) == 4
    assert cache.usage().held == 6
    cache.check()


def test_what_the_first_query_of_a_span_sees_stays_though_its_last_sees_it_no_more():
    cache = PagedCache(pages=12, page_size=2, windows=(3,))
    cache.reserve("a", 6)
    cache.reserve("a", 12)
    assert cache.table_change("a").pages[0][:3] == (0, 0, 3), "the query at 6 still sees 4, the one at 11 does not"


def test_what_a_window_gives_back_serves_the_same_reservation():
    cache = PagedCache(pages=3, page_size=2, windows=(2,))
    assert cache.reserve("a", 6) and cache.available == 0
    assert cache.reserve("a", 8), "the query at 6 sees 5: two pages come back, one is taken"


# -- sharing -----------------------------------------------------------------------------------------------------------


def test_pages_being_computed_are_not_hit_until_they_are_published():
    cache = PagedCache(8, 2, index=PrefixIndex())
    tokens = [1, 2, 3, 4, 5]
    cache.admit("a", tokens)
    cache.reserve("a", 5)
    assert cache.admit("early", tokens) == 0
    cache.publish("a", tokens)
    assert cache.admit("late", tokens) == 4
    assert cache.residents["late"].tables == [[1, 2]]
    cache.check()


def test_only_what_is_stored_is_published():
    cache = PagedCache(8, 2, index=PrefixIndex())
    tokens = [1, 2, 3, 4, 5, 6]
    cache.admit("a", tokens)
    cache.reserve("a", 3)
    cache.publish("a", tokens)
    assert cache.admit("b", tokens) == 2, "the second page is half full"


def test_a_hit_leaves_at_least_one_token_to_compute():
    cache = PagedCache(8, 2, index=PrefixIndex())
    run(cache, "a", [1, 2, 3, 4])
    assert cache.admit("same", [1, 2, 3, 4]) == 2
    assert cache.admit("longer", [1, 2, 3, 4, 5]) == 4


def test_salts_keep_tenants_apart():
    cache = PagedCache(16, 2, index=PrefixIndex())
    run(cache, "a", [1, 2, 3, 4, 5], salt="mine")
    assert cache.admit("b", [1, 2, 3, 4, 5], salt="yours") == 0
    assert cache.admit("c", [1, 2, 3, 4, 5]) == 0
    assert cache.admit("d", [1, 2, 3, 4, 5], salt="mine") == 4


def test_of_two_that_computed_the_same_page_the_second_swaps_to_the_first_ones():
    cache = PagedCache(8, 2, index=PrefixIndex())
    for id in "ab":
        cache.admit(id, [1, 2, 3])
        cache.reserve(id, 3)
    before = cache.table_change("b")
    cache.publish("a", [1, 2, 3])
    assert cache.available == 4
    cache.publish("b", [1, 2, 3])
    assert cache.available == 5, "its own copy is free again"
    assert cache.table_change("b") == (0, ((1, 4),)) and before == (0, ((3, 4),)), "a plan's snapshot stays as it was"
    cache.check()


def test_pages_dropped_by_an_insert_stay_with_the_unfinished_request_that_maps_them():
    """Another engine freed the pages an insert found twice while a request still had them in its table."""
    cache = PagedCache(6, 2, index=PrefixIndex())
    memory = Memory(2, (None,))
    first, second = (Sequence(cache, memory, id, [1, 2, 3, 4, 5]) for id in ("first", "second"))
    first.step(5)
    second.step(5)  # publishes the same pages, swaps, frees its own
    third = Sequence(cache, memory, "third", [7, 8])
    third.step(2)  # takes what was freed and writes over it
    for sequence in (first, second):
        sequence.step(1)  # reads everything again
    cache.check()


def test_a_preempted_sequence_hits_what_it_had_published_and_goes_on_from_there():
    cache = PagedCache(8, 2, index=PrefixIndex())
    memory = Memory(2, (None,))
    other = Sequence(cache, memory, "other", [1, 2, 3, 4, 9])
    other.step(5)
    sequence = Sequence(cache, memory, "preempted", [1, 2, 3, 4, 5, 6, 7])
    assert sequence.hit == 4 and sequence.step(3)
    sequence.release()
    cache.check()
    again = Sequence(cache, memory, "preempted", sequence.tokens)
    assert again.hit == 6 and again.step(10) and again.step(1)
    cache.check()


# -- eviction ----------------------------------------------------------------------------------------------------------


def test_idle_pages_are_kept_until_room_is_needed_and_go_from_the_end_of_the_oldest_path():
    cache = PagedCache(6, 2, index=PrefixIndex())
    for id, token in (("old", 1), ("new", 2)):
        run(cache, id, [token] * 6)
        cache.release(id)
    assert (cache.available, len(cache.pool.idle)) == (6, 6)
    cache.reserve("big", 4)
    cache.check()
    assert cache.usage().evictions == 2
    assert cache.admit("a", [1] * 7) == 2, "two of three pages of the older path went"
    assert cache.admit("b", [2] * 7) == 6


def test_held_pages_are_never_evicted():
    cache = PagedCache(4, 2, index=PrefixIndex())
    run(cache, "a", [1] * 4)
    cache.release("a")
    assert cache.admit("b", [1] * 4 + [2]) == 4
    assert not cache.reserve("c", 6) and cache.reserve("c", 4)
    assert cache.residents["b"].tables == [[1, 2]]
    cache.check()


def test_with_the_page_of_one_group_those_beside_it_are_freed():
    cache = PagedCache(6, 2, windows=(None, None), index=PrefixIndex())
    run(cache, "a", [1] * 4)
    cache.release("a")
    assert cache.reserve("b", 4)
    assert cache.usage().evictions == 2 and len(cache.pool.idle) == 2
    cache.check()


def test_a_window_page_is_evicted_alone_and_comes_back_when_it_is_computed_again():
    cache = PagedCache(9, 2, windows=(None, 3), index=PrefixIndex())
    run(cache, "a", [1] * 8, span=2)  # the window gives its pages back as it goes: they are the oldest idle ones
    cache.release("a")
    assert cache.reserve("b", 2)
    cache.release("b")
    assert cache.admit("c", [1] * 9) == 8, "what the window sees at the end is there"
    cache.release("c")
    cache.check()
    assert cache.admit("d", [1] * 2 + [2]) == 0, "its window would need the page that went"
    cache.reserve("d", 3)
    cache.publish("d", [1] * 2 + [2])
    cache.check()
    assert cache.admit("e", [1] * 2 + [3]) == 2


def test_a_large_pool_evicts_a_few_pages_of_a_path_ahead():
    cache = PagedCache(1024, 1, index=PrefixIndex())
    old, new = list(range(1024)), [-1]
    for id, tokens in (("old", old), ("new", new)):
        cache.admit(id, tokens)
        assert cache.reserve(id, len(tokens))
        cache.publish(id, tokens)
        cache.check()
        if id == "old":
            cache.release(id)
    usage = cache.usage()
    assert (usage.evictions, usage.free, usage.idle) == (8, 7, 1016)
    assert cache.admit("again", old) == 1016, "the path's end went, the rest is there"


def test_pages_that_the_next_steps_need_are_made_free_a_few_at_a_time():
    cache = PagedCache(1024, 4, index=PrefixIndex())
    run(cache, "old", list(range(4096)))
    cache.release("old")
    free = []
    for _ in range(6):
        cache.make_ready(1000)
        cache.check()
        free.append(cache.usage().free)
    assert free == [8, 16, 16, 16, 16, 16], "a few at a time, up to a 64th"
    cache.make_ready(3)
    assert cache.usage().free == 16
    small = PagedCache(60, 4, index=PrefixIndex())
    run(small, "old", list(range(240)))
    small.release("old")
    small.make_ready(1000)
    assert small.usage().free == 0, "of a small cache every page is worth keeping"


def test_a_place_lost_between_windows_is_not_published_past():
    """With windows only, no sequence holds a path: it can be evicted while its sequence runs, and then be reused by
    another."""
    cache = PagedCache(3, 2, windows=(1,), index=PrefixIndex())
    memory = Memory(2, (1,))
    sequence = Sequence(cache, memory, "a", [1, 2, 3, 4, 5, 6, 7, 8])
    sequence.step(4)
    sequence.step(1)  # now it holds none of the pages it published
    assert cache.reserve("b", 4), "both are evicted"
    cache.release("b")
    cache.check()
    sequence.step(3)
    cache.check()
    assert not any(cache.index.owners)


# -- poison ------------------------------------------------------------------------------------------------------------


def test_poisoned_pages_leave_the_index_and_are_wiped_and_shared_ones_stay():
    cache = PagedCache(8, 2, index=PrefixIndex())
    run(cache, "healthy", [1, 2, 3])
    run(cache, "ill", [1, 2, 5, 6, 7])
    assert cache.residents["ill"].tables == [[1, 3, 4]]
    cache.release("ill", poisoned=True)
    cache.check()
    assert cache.take_wiped() == (3, 4) and cache.take_wiped() == ()
    assert cache.admit("same", [1, 2, 5, 6, 7]) == 2, "the healthy sequence's page is still there"


def test_what_comes_after_a_poisoned_page_leaves_with_it():
    cache = PagedCache(8, 2, index=PrefixIndex())
    run(cache, "long", [1] * 7)
    cache.release("long")
    cache.admit("ill", [1] * 4 + [2])  # hits the first two pages of the three
    cache.release("ill", poisoned=True)
    cache.check()
    assert not any(cache.index.owners) and cache.available == 8
    assert cache.take_wiped() == (1, 2, 3)


def test_pages_that_a_poisoned_chunk_swaps_for_equal_ones_are_wiped():
    """Two sequences with the same prompt: nothing knows yet that the numbers of their chunks are not finite."""
    cache, memory = PagedCache(8, 2, index=PrefixIndex()), Memory(2, (None,))
    first, second = (Sequence(cache, memory, name, [1, 2, 3, 4, 5]) for name in "ab")
    for ill in (first, second):
        ill.step(4, poisoned=True)
    cache.publish("a", first.tokens, 4)
    assert cache.publish("b", second.tokens, 4), "it swaps its pages, which are free now"
    healthy = Sequence(cache, memory, "c", [7])
    assert healthy.step(1), "no page that it reads holds a number that is not finite"
    first.release(poisoned=True)
    second.release(poisoned=True)
    cache.check()


def test_without_an_index_poisoned_pages_are_wiped_before_somebody_else_reads_them():
    cache, memory = PagedCache(2, 2), Memory(2, (None,))
    ill = Sequence(cache, memory, "ill", [1, 2, 3])
    ill.step(3, poisoned=True)
    assert NAN in memory.cells.values()
    ill.release(poisoned=True)
    Sequence(cache, memory, "next", [1]).step(1)  # its page has a cell that is not its own, which attention masks
    assert NAN not in memory.cells.values()


# -- the books ---------------------------------------------------------------------------------------------------------


def test_usage_says_how_full_and_how_scattered_the_cache_is():
    cache = PagedCache(8, 4)
    for id in "abcd":
        cache.reserve(id, 5)  # two pages each, three positions of the second unused
    cache.release("a")
    cache.release("c")
    usage = cache.usage()
    assert (usage.pages, usage.held, usage.idle, usage.free) == (8, 4, 0, 4)
    assert usage.utilization == 0.5
    assert usage.stored_positions == 10 and usage.internal_fragmentation == pytest.approx(6 / 16)
    assert usage.longest_free_run == 2 and usage.external_fragmentation == 0.5
    assert cache.reserve("e", 16), "four pages in two places serve as well as four in one"


def test_usage_of_an_empty_cache_divides_by_nothing():
    usage = PagedCache(2, 4).usage()
    assert usage.utilization == usage.internal_fragmentation == usage.external_fragmentation == usage.hit_rate == 0


def test_a_page_that_several_share_counts_once():
    cache = PagedCache(8, 2, index=PrefixIndex())
    run(cache, "a", [1] * 5)
    run(cache, "b", [1] * 5)
    usage = cache.usage()
    assert (usage.held, usage.stored_positions) == (4, 6)
    assert (usage.queried_positions, usage.hit_positions, usage.hit_rate) == (10, 4, 0.4)


def test_the_cache_imports_without_torch():
    code = "import sys, gradus.cache.paged; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_cache_that_forgets_keeps_what_is_held_and_finds_nothing_else():
    cache = PagedCache(8, 2, index=PrefixIndex())
    for id, tokens in (("over", [1, 2, 3, 4]), ("running", [5, 6, 7, 8])):
        cache.reserve(id, 4)
        cache.publish(id, tokens)
    cache.release("over")
    cache.forget()
    cache.check()
    assert cache.usage().idle == 0 and cache.usage().held == 2
    assert cache.admit("again", [1, 2, 3, 4, 9]) == 0
    assert cache.admit("beside", [5, 6, 7, 8, 9]) == 4
