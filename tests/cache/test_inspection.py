"""What watchers see of pages and of the prefix tree: states as the pool has them, changes that add up, sizes."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.cache.inspection import NodeSize, PageState, apply_changes, page_changes, sizes_of
from gradus.cache.paged import PagedCache
from gradus.cache.pool import PagePool
from gradus.cache.radix import PrefixIndex

States = st.lists(st.sampled_from(list(PageState)), max_size=60)


def states_of(pool: PagePool) -> list[PageState]:
    """The states page by page, as the pool's own words define them."""

    def state(page: int) -> PageState:
        count = pool.references[page]
        unheld = PageState.CACHED if page in pool.idle else PageState.FREE
        return unheld if not count else PageState.HELD if count == 1 else PageState.SHARED

    return [state(page) for page in range(1, pool.count + 1)]


def test_every_page_has_its_state():
    indexed: set[int] = set()
    pool = PagePool(5, indexed)
    free, idle, held, shared = pool.take(4)
    indexed.add(idle)
    pool.share(shared)
    pool.drop(free, idle)
    assert pool.states().tolist() == states_of(pool)
    assert [PageState(pool.states()[page - 1]).name for page in (free, idle, held, shared, 5)] == [
        "FREE", "CACHED", "HELD", "SHARED", "FREE",
    ]  # fmt: skip


@given(st.lists(States, min_size=2, max_size=6))
def test_changes_add_up_to_the_newest_states(history):
    pages = max(map(len, history))
    looks = [np.array([*look, *[0] * (pages - len(look))], np.uint8) for look in history]
    seen = looks[0].copy()
    for before, after in pairwise(looks):
        runs = page_changes(before, after)
        assert sum(runs[:, 1]) == np.count_nonzero(before != after), "no page twice, and none that has not changed"
        apply_changes(seen, runs)
        assert (seen == after).all()


@pytest.mark.parametrize("run", [(-1, 1, 0), (0, 0, 0), (2, 2, 0), (0, 1, 4), (0, 1, -1)])
def test_changes_that_no_pool_has_are_refused(run):
    with pytest.raises(ValueError, match=r"pages|valid PageState"):
        apply_changes(np.zeros(3, np.uint8), np.array([run], np.int32))


def cache_of(*prompts: list[int], pages: int = 64, windows=(None,)) -> PagedCache:
    cache = PagedCache(pages, 2, windows, PrefixIndex())
    for number, tokens in enumerate(prompts):
        cache.admit(number, tokens)
        assert cache.reserve(number, len(tokens))
        cache.publish(number, tokens)
    return cache


def test_the_largest_nodes_are_listed_with_their_sizes_and_parents():
    cache = cache_of([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8], [9, 9])
    cache.release(0)
    root, *leaves = cache.largest_nodes(10)
    assert root == NodeSize(-1, 0, 2, 2, 2, 1, 2)
    assert sorted(leaves) == [
        NodeSize(-1, 0, 1, 1, 1, 1, 0), NodeSize(0, 2, 1, 1, 0, 0, 0), NodeSize(0, 2, 1, 1, 1, 1, 0),
    ]  # fmt: skip
    assert cache.largest_nodes(1) == [root]


def test_a_node_whose_parent_is_not_listed_names_the_nearest_ancestor_that_is():
    long = list(range(100, 140))
    cache = cache_of([*long, 1, 1], [*long, 2, 2, 3, 3, *[4] * 8], [*long, 2, 2, 5, 5])
    two = cache.largest_nodes(2)
    assert [node.places for node in two] == [20, 5] and two[1].parent == 0


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=12), min_size=1, max_size=8))
def test_both_ways_to_read_a_tree_agree(prompts):
    cache = cache_of(*prompts, pages=128)
    for released in range(0, len(prompts), 2):
        cache.release(released)
    fast, slow = cache.largest_nodes(1000), sizes_of(cache.tree(), cache.pool.references, 1000)
    assert sorted(node._replace(parent=0) for node in fast) == sorted(node._replace(parent=0) for node in slow)
    assert sum(node.pages for node in fast) == sum(page in cache.index for page in range(1, 129))
    assert all(node.parent < place for place, node in enumerate(fast)), "parents come first"
    assert len(sizes_of(cache.tree(), cache.pool.references, 3)) <= 3


def test_windows_count_pages_of_all_groups():
    cache = cache_of([1, 2, 3, 4, 5, 6], windows=(None, 2))
    (node,) = cache.largest_nodes(5)
    (whole,) = cache.tree()
    assert node.places == 3 and node.pages == sum(page > 0 for run in whole.pages for page in run)
    assert cache.page_count(0) == sum(page > 0 for table in cache.tables(0) for page in table)
    assert cache.page_count("nobody") == 0


def test_three_hundred_thousand_pages_are_read_within_a_millisecond_or_so():
    class Everything:
        def __contains__(self, page):
            return True

    pool = PagePool(300_000, Everything())
    taken = pool.take(250_000)
    pool.drop(*taken[:150_000])
    before = pool.states()

    def look() -> float:
        began = time.perf_counter()
        page_changes(before, pool.states())
        return time.perf_counter() - began

    assert min(look() for _ in range(20)) < 0.005, "0.3 ms when this was written"
