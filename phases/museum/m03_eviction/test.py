"""Evicts the page idle for longest, never one in use, and does so at the same cost in a pool of any size."""

from time import perf_counter
from typing import Any


def full(engine: Any, size: int) -> Any:
    """A pool whose pages hold "0", "1", … and were released in that order."""
    pool = engine.Pool(size)
    for number in range(size):
        pool.release(pool.take(str(number)))
    return pool


def test_the_page_idle_for_longest_goes_first(engine: Any) -> None:
    pool = full(engine, 4)
    pool.release(pool.take("0"))  # used again, so "1" is the oldest now
    pool.take("new")
    assert set(pool.known) == {"0", "2", "3", "new"}, f"1 should have gone; known are {sorted(pool.known)}"


def test_a_page_in_use_is_never_evicted(engine: Any) -> None:
    pool = full(engine, 3)
    pool.take("0")
    pool.take("0")
    pool.release(pool.known["0"])  # one of two users
    pool.take("a")
    pool.take("b")
    assert set(pool.known) == {"0", "a", "b"}
    try:
        page = pool.take("c")
    except RuntimeError:
        return
    raise AssertionError(f"all pages are in use, and yet one was found for c: {page}")


def test_an_eviction_costs_the_same_in_a_large_pool(engine: Any) -> None:
    small, large = (min(_seconds(full(engine, size))) for size in (50, 10_000))
    assert large < 10 * small, f"it takes {large / small:.0f} times as long among 10,000 pages as among 50"


def _seconds(pool: Any) -> list[float]:
    """How long each of a few evictions took; the shortest is the one that nothing interrupted."""
    times = []
    for number in range(20):
        start = perf_counter()
        page = pool.take(f"new {number}")
        times.append(perf_counter() - start)
        pool.release(page)
    return times
