"""Pages by hand: what each state allows, and what is refused by name."""

import time

import pytest

from gradus.cache.pool import DoubleFree, FreePageUsed, PageInUse, PagePool, PoolExhausted


def test_pages_are_numbered_from_one_and_page_zero_is_nobodys():
    pool = PagePool(3)
    assert sorted(pool.take(3)) == [1, 2, 3]
    with pytest.raises(PoolExhausted, match="1 pages are wanted, and 0 of 3 are free"):
        pool.take(1)
    with pytest.raises(FreePageUsed):
        pool.share(0)
    with pytest.raises(DoubleFree):
        pool.drop(0)


def test_a_page_is_free_when_the_last_of_its_users_drops_it():
    pool = PagePool(1)
    (page,) = pool.take(1)
    pool.share(page)
    pool.drop(page)
    assert (pool.held, pool.available) == (1, 0)
    pool.drop(page)
    assert (pool.held, pool.available) == (0, 1)


def test_dropping_a_page_twice_and_sharing_a_free_one_are_refused_and_change_nothing():
    pool = PagePool(2)
    (page,) = pool.take(1)
    pool.drop(page)
    with pytest.raises(DoubleFree, match=f"page {page}"):
        pool.drop(page)
    with pytest.raises(FreePageUsed, match=f"page {page}"):
        pool.share(page)
    with pytest.raises(PageInUse):
        pool.reclaim(page)
    pool.check()
    assert pool.available == 2


def test_an_indexed_page_turns_idle_and_a_hit_wakes_it():
    pool = PagePool(2, indexed={1})
    pool.drop(*pool.take(1))
    assert list(pool.idle) == [1] and list(pool.free) == [2]
    pool.share(1)
    assert pool.held == 1 and not pool.idle
    with pytest.raises(PageInUse, match="1 references"):
        pool.reclaim(1)
    pool.check()


def test_the_page_idle_longest_goes_first_and_a_hit_makes_it_the_youngest():
    pool = PagePool(3, indexed={1, 2, 3})
    pool.drop(*pool.take(3))
    pool.share(1)
    pool.drop(1)
    assert list(pool.idle) == [2, 3, 1] and pool.oldest_idle(2) == [2, 3]


@pytest.mark.parametrize(
    "spoil, complaint",
    [
        (lambda pool: pool.free.append(pool.free[0]), "free twice"),
        (lambda pool: pool.free.pop(), "lost"),
        (lambda pool: pool.references.__setitem__(pool.free[0], 1), "free and in use"),
        (lambda pool: pool.idle.extend([pool.free[0]]), "idle is indexed"),
        (lambda pool: pool.references.__setitem__(0, 1), "page 0"),
    ],
)
def test_check_finds_books_that_do_not_balance(spoil, complaint):
    pool = PagePool(4)
    pool.take(1)
    pool.check()
    spoil(pool)
    with pytest.raises(AssertionError, match=complaint):
        pool.check()


def test_the_line_of_idle_pages_never_grows_and_keeps_its_order_however_often_pages_come_and_go():
    """Page 1 stays; the others leave and return thousands of times, so the line has to close up again and again."""
    pool, count = PagePool(8, indexed=range(1, 9)), 8
    pool.drop(*pool.take(count))
    order = list(pool.idle)
    entries = len(pool.idle._line)
    for turn in range(3000):
        page = order.pop(turn % (count - 1) + 1)
        pool.share(page)
        pool.drop(page)
        order.append(page)
        pool.idle.check()
        assert list(pool.idle) == order and pool.oldest_idle(1) == order[:1]
    assert len(pool.idle._line) == entries


def test_the_longest_free_run_counts_neighbors():
    pool = PagePool(8)
    assert pool.longest_free_run() == 8
    pool.take(8)
    assert pool.longest_free_run() == 0
    pool.drop(2, 4, 5, 6, 8)
    assert pool.longest_free_run() == 3


def test_looking_for_the_longest_run_costs_a_step_nothing():
    """A server asks once per second, on the engine's thread. The two extremes: all free, and every other page.

    Judged by the walk over all free pages that it must not be, since machines and their moments differ.
    """
    pool = PagePool(262_144)
    taken = pool.take(262_144)
    for free in (taken[::2], taken[1::2]):
        pool.drop(*free)
        assert fastest(pool.longest_free_run) < fastest(lambda: [page for page in pool.free if page], runs=5) / 6
    assert pool.longest_free_run() == 262_144


def fastest(function, runs=20):
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)
