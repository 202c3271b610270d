"""A drafter costs one block of a hit, however many groups of layers must agree on it."""

from typing import Any


def test_without_drafter_the_groups_agree_on_the_longest_hit(engine: Any) -> None:
    full, window = engine.Group(set(range(8))), engine.Group({2, 3, 6, 7}, window=2)
    assert engine.PrefixCache([full, window], drafter=False).hit(8) == 8
    assert engine.PrefixCache([full, window], drafter=False).hit(6) == 4  # blocks 4 and 5 are gone
    assert engine.PrefixCache([full, window], drafter=False).hit(3) == 0


def test_a_drafter_costs_one_block_with_one_group(engine: Any) -> None:
    assert engine.PrefixCache([engine.Group(set(range(8)))], drafter=True).hit(8) == 7


def test_a_drafter_costs_one_block_with_several_groups(engine: Any) -> None:
    everything = set(range(8))
    groups = [engine.Group(everything), engine.Group(everything, window=2), engine.Group(everything, window=3)]
    for number in (2, 3):
        hit = engine.PrefixCache(groups[:number], drafter=True).hit(8)
        assert hit == 7, f"{number} groups that have all 8 blocks reuse {hit} of them, where 7 would do"


def test_a_shorter_hit_still_has_the_window_it_needs(engine: Any) -> None:
    full = engine.Group(set(range(8)))
    for kept, wanted in (({5, 6, 7}, 7), ({3, 4, 6, 7}, 5), ({6, 7}, 0)):
        hit = engine.PrefixCache([full, engine.Group(kept, window=2)], drafter=True).hit(8)
        assert hit == wanted, f"a window of 2 with blocks {sorted(kept)} allows a hit of {wanted}, not of {hit}"


def test_nothing_cached_is_no_hit(engine: Any) -> None:
    assert engine.PrefixCache([engine.Group(set()), engine.Group(set(), window=2)], drafter=True).hit(8) == 0
