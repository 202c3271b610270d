"""The prefix index by hand, pages of two tokens."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.cache.radix import PrefixIndex, agreeing_pages

SIZE, PAGES = 2, 600


def runs(node) -> list[list[int]]:
    return [list(run) for run in node.pages]


def indexed(index) -> set[int]:
    return {page for page, owner in enumerate(index.owners) if owner}


@pytest.fixture
def index() -> PrefixIndex:
    index = PrefixIndex()
    index.attach(SIZE, (None,), PAGES)
    return index


def enter(index, tokens, pages, salt=None):
    """Enter a sequence that starts with its hits, and return its cursor and its table."""
    cursor, (table,) = index.match(tokens, salt)
    table += pages[len(table) :]
    for _, place, page in index.insert(cursor, tokens, [table], len(tokens) // SIZE):
        table[place] = page
    index.check()
    return cursor, table


def hit(index, tokens, salt=None):
    return index.match(tokens, salt)[1][0]


def test_the_longest_beginning_is_hit_in_whole_pages(index):
    enter(index, [1, 2, 3, 4, 5, 6, 7], [10, 11, 12])
    assert hit(index, [1, 2, 3, 4, 5, 6, 7]) == [10, 11, 12]
    assert hit(index, [1, 2, 3, 4, 9, 9, 9]) == [10, 11]
    assert hit(index, [1, 2, 3, 9, 9, 9, 9]) == [10]
    assert hit(index, [2, 2, 3, 4]) == [] == hit(index, [])


def test_one_token_is_always_left_to_compute(index):
    enter(index, [1, 2, 3, 4], [10, 11])
    assert hit(index, [1, 2, 3, 4]) == [10], "the last page would leave no token to give the logits"
    assert hit(index, [1, 2, 3, 4, 5]) == [10, 11]
    assert hit(index, [1, 2]) == [] == hit(index, [1])


def test_a_fork_splits_a_run_and_both_branches_are_found(index):
    enter(index, [1, 2, 3, 4, 5, 6], [10, 11, 12])
    enter(index, [1, 2, 3, 4, 7, 8], [0, 0, 13])
    (upper,) = index.root.children.values()
    assert runs(upper) == [[10, 11]] and len(upper.children) == 2
    assert hit(index, [1, 2, 3, 4, 5, 6, 0]) == [10, 11, 12]
    assert hit(index, [1, 2, 3, 4, 7, 8, 0]) == [10, 11, 13]


def test_a_path_that_nobody_forks_stays_one_node_while_it_grows(index):
    cursor, table = enter(index, [1, 2], [10])
    for length in range(2, 9):
        tokens = [1, 2] * length
        table.append(10 + length)
        index.insert(cursor, tokens, [table], length)
    index.check()
    (only,) = index.root.children.values()
    assert only.end == 8 and not only.children


def test_a_cursor_finds_its_place_after_its_node_was_split(index):
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    enter(index, tokens, [10, 11, 12, 13])
    cursor, (table,) = index.match([1, 2, 3, 4, 0], None)  # after two pages, in the middle of the node
    enter(index, [1, 2, 3, 4, 5, 6, 9, 9], [0, 0, 0, 14])  # splits below the cursor
    enter(index, [1, 2, 3, 4, 9, 9], [0, 0, 15])  # and right at it
    table.append(16)
    assert index.insert(cursor, [1, 2, 3, 4, 0, 0], [table], 3) == []
    index.check()
    assert hit(index, [1, 2, 3, 4, 0, 0, 0]) == [10, 11, 16] == index.path(cursor, 0)
    assert hit(index, [*tokens, 0]) == [10, 11, 12, 13]


def test_the_page_that_was_there_first_stays_and_the_other_is_reported(index):
    first, _ = index.match([1, 2, 3, 4, 5])
    second, _ = index.match([1, 2, 3, 4, 5])
    assert index.insert(first, [1, 2, 3, 4, 5], [[10, 11]], 2) == []
    assert index.insert(second, [1, 2, 3, 4, 5], [[20, 21]], 2) == [(0, 0, 10), (0, 1, 11)]
    assert indexed(index) == {10, 11}


def test_salts_see_nothing_of_each_other(index):
    enter(index, [1, 2, 3], [10], salt="a")
    enter(index, [1, 2, 3], [20], salt="b")
    assert hit(index, [1, 2, 3], "a") == [10]
    assert hit(index, [1, 2, 3], "b") == [20]
    assert hit(index, [1, 2, 3]) == []


def test_removing_a_page_takes_what_comes_after_it_along(index):
    enter(index, [1, 2, 3, 4, 5, 6], [10, 11, 12])
    enter(index, [1, 2, 3, 4, 7, 8], [0, 0, 13])
    assert sorted(index.remove(11)) == [11, 12, 13]
    index.check()
    assert hit(index, [1, 2, 3, 4, 5, 6, 0]) == [10]
    assert index.remove(10) == [10]
    assert not index.root.children and not indexed(index)
    with pytest.raises(KeyError):
        index.remove(10)


def test_what_follows_an_evicted_place_is_not_entered(index):
    cursor, table = enter(index, [1, 2, 3, 4], [10, 11])
    index.remove(11)
    enter(index, [1, 2, 9, 9, 9, 9], [0, 12, 13])  # another goes on from where the path was cut
    assert index.insert(cursor, [1, 2, 3, 4, 5, 6], [[*table, 14]], 3) == []
    index.check()
    assert not index.owners[14], "it would be found after 9 9, not after 3 4"


def windowed(window: int | None, *more: int | None) -> PrefixIndex:
    index = PrefixIndex()
    index.attach(SIZE, (window, *more), PAGES)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    cursor, _ = index.match(tokens)
    index.insert(cursor, tokens, [[10 * (group + 1) + page for page in range(4)] for group in range(1 + len(more))], 4)
    return index


def test_of_a_window_group_a_hit_needs_only_what_the_first_new_token_sees():
    index = windowed(None, 3)
    assert index.match([1, 2, 3, 4, 5, 6, 0])[1] == [[10, 11, 12], [0, 0, 22]]
    assert index.remove(20) == [20] and index.remove(21) == [21], "a window's page goes alone"
    assert index.match([1, 2, 3, 4, 5, 6, 0])[1] == [[10, 11, 12], [0, 0, 22]]
    index.check()


def test_a_hit_stops_where_a_window_page_is_gone():
    index = windowed(None, 3)
    index.remove(22)
    assert index.match([1, 2, 3, 4, 5, 6, 0])[1] == [[10, 11], [0, 21]]
    assert index.match([1, 2, 3, 4, 5, 6, 7, 8, 0])[1] == [[10, 11, 12, 13], [0, 0, 0, 23]]
    index.remove(21)
    assert index.match([1, 2, 3, 4, 5, 6, 0])[1] == [[10], [20]]


def test_a_window_page_that_is_computed_again_fills_its_gap():
    index = windowed(None, 3)
    index.remove(22)
    cursor, tables = index.match([1, 2, 3, 4, 5, 6, 0])
    duplicates = index.insert(cursor, [1, 2, 3, 4, 5, 6, 0], [[*tables[0], 30], [*tables[1], 31]], 3)
    assert duplicates == [(0, 2, 12)], "the other group's page is there already"
    assert index.match([1, 2, 3, 4, 5, 6, 0])[1] == [[10, 11, 12], [0, 0, 31]]
    index.check()


def test_where_every_group_has_a_window_a_path_without_pages_at_its_end_is_forgotten():
    index = windowed(3)
    for page in (11, 13, 12):
        index.remove(page)
        index.check()
    (node,) = index.root.children.values()
    assert runs(node) == [[10]] and index.view()[0].tokens == (1, 2)
    index.remove(10)
    assert not index.root.children


def test_an_index_serves_one_cache(index):
    enter(index, [1, 2, 3], [10])
    with pytest.raises(ValueError, match="another cache"):
        index.attach(4, (None,), PAGES)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda index, node: node.tokens.pop(),
        lambda index, node: node.pages[0].append(10),
        lambda index, node: node.pages[0].__setitem__(0, 0),
        lambda index, node: index.owners.__setitem__(10, 0),
        lambda index, node: index.owners.__setitem__(99, node.number),
        lambda index, node: index.depths.__setitem__(11, 0),
        lambda index, node: setattr(node, "key", (None, b"9" * 8)),
        lambda index, node: setattr(node, "start", 1),
        lambda index, node: setattr(node, "number", 0),
        lambda index, node: index._unused.append(node.number),
    ],
)
def test_check_finds_a_damaged_tree(index, spoil):
    enter(index, [1, 2, 3, 4, 5], [10, 11])
    spoil(index, next(iter(index.root.children.values())))
    with pytest.raises((AssertionError, KeyError)):
        index.check()


@given(common=st.lists(st.integers(0, 3)), left=st.lists(st.integers(0, 3)), right=st.lists(st.integers(0, 3)))
def test_agreeing_pages_are_counted_right(common, left, right):
    left, right = common + left, common + right
    expected = next(
        (i for i in range(len(left)) if left[: 3 * i + 3] != right[: 3 * i + 3] or len(left) < 3 * i + 3), 0
    )
    assert agreeing_pages(left, right, 3) == expected


def idle_paths(windows, seed) -> tuple[PrefixIndex, list[int]]:
    """Return random paths that fork, and their pages in the pool's order when all are idle: longest idle first."""
    draw, index, idle = random.Random(seed), PrefixIndex(), []
    index.attach(SIZE, windows, PAGES)
    for number in range(6):
        tokens = [draw.randrange(2) for _ in range(SIZE * draw.randint(1, 6))]
        cursor, tables = index.match(tokens)
        for group, table in enumerate(tables):
            table += [100 * number + 10 * group + place + 1 for place in range(len(table), len(tokens) // SIZE)]
        for group, place, page in index.insert(cursor, tokens, tables, len(tokens) // SIZE):
            tables[group][place] = page
        dropped = [page for entry in zip(*map(reversed, tables), strict=True) for page in entry if page]
        idle = [page for page in idle if page not in dropped] + dropped
    return index, idle


@pytest.mark.parametrize("windows", [(None,), (4,), (None, 4), (None, None), (4, None)])
@pytest.mark.parametrize("seed", range(20))
def test_trimming_is_removing_one_by_one(windows, seed):
    (trimmed, idle), (removed, _) = idle_paths(windows, seed), idle_paths(windows, seed)
    while idle:
        gone, one_by_one = trimmed.trim(idle[:5]), []
        while len(one_by_one) < min(5, len(idle)):
            one_by_one += removed.remove(next(page for page in idle if page not in one_by_one))
        assert len(set(gone)) == len(gone) and set(gone) == set(one_by_one)
        idle = [page for page in idle if page not in gone]
        trimmed.check()


def test_many_pages_of_a_path_are_trimmed_at_once(index):
    enter(index, [1, 2, 3, 4, 5, 6, 7, 8], [10, 11, 12, 13])
    assert sorted(index.trim([13, 12, 11])) == [11, 12, 13]
    assert hit(index, [1, 2, 3, 4]) == [10]


def test_the_oldest_page_goes_first_though_a_younger_one_takes_others_along(index):
    enter(index, [1, 2, 3, 4], [10, 11])
    enter(index, [9, 9, 8, 8], [20, 21])
    assert sorted(index.trim([11, 20])) == [11, 20, 21], "20 alone would have made room enough, with 21"
    assert hit(index, [1, 2, 3, 4]) == [10]
