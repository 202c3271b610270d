"""How many sequences of a length a cache holds: counted by hand, and by reserving until there is no room."""

import pytest

from gradus.cache.capacity import sequences_by_length, sequences_held, sessions_in_words
from gradus.cache.paged import PagedCache

PAGE = 16


@pytest.mark.parametrize("windows", [(None,), (None, 64, 64), (40,), (None, 512)])
@pytest.mark.parametrize("length", [1, 16, 17, 300, 2048])
def test_a_cache_holds_as_many_sequences_as_it_says_and_not_one_more(windows, length):
    """Read a token at a time, sequences need the most pages somewhere on their way: the promise holds there too."""
    cache = PagedCache(700, PAGE, windows)
    promised = sequences_held(700, windows, PAGE, length)
    assert promised > 0
    for end in range(1, length + 1):
        for number in range(promised):
            if end == 1:
                cache.admit(number, [number])
            assert cache.reserve(number, end), (number, end)
    cache.check()


def test_without_windows_there_is_room_for_no_further_sequence():
    cache = PagedCache(100, PAGE)
    held = sequences_held(100, (None,), PAGE, 300)
    assert held == 100 // 19  # pages of 16 for 300 tokens
    for number in range(held + 1):
        cache.admit(number, [number])
        assert cache.reserve(number, 300) == (number < held)


def test_a_window_lets_more_long_sequences_in():
    """2,048 tokens are 128 pages. A window of 64 is seen in 5 pages at most, if it begins within one."""
    assert sequences_held(1000, (None, None, None), PAGE, 2048) == 1000 // (3 * 128)
    assert sequences_held(1000, (None, 64, 64), PAGE, 2048) == 1000 // (128 + 5 + 5)


def test_lengths_end_with_the_longest_that_may_run_and_counts_with_what_runs_at_once():
    # 65,536 positions in pages of 16
    assert sequences_by_length(4096, (None,), PAGE, 40_000, 8) == {2048: 8, 8192: 8, 32_768: 2, 40_000: 1}
    assert sequences_by_length(4096, (None,), PAGE, 512, 256) == {512: 128}
    assert sequences_by_length(4096, (None,), PAGE, 2048, 256) == {2048: 32}
    assert sequences_by_length(4096, (None,), PAGE, 0, 256) == {}


def test_in_words():
    held = {2048: 256, 8192: 127, 131_072: 7}
    assert sessions_in_words(held, 256) == "256 sessions of 2,048 tokens (max_sequences), 127 of 8,192 or 7 of 131,072"
    assert sessions_in_words(held) == "256 sessions of 2,048 tokens, 127 of 8,192 or 7 of 131,072"
    assert sessions_in_words({512: 1}, 8) == "1 session of 512 tokens"
    assert sessions_in_words({}, 8) == "no sequence"
