"""What `make test` keeps of many combinations has every pair of values in it, and `make stress` all the rest."""

from itertools import combinations, product

from tests.pairwise import pairwise

AXES = ["abcde", [(1, 10), (2, 20), (3, 30)], [False, True]]


def kept(params: list) -> list[tuple]:
    return [param.values for param in params if not param.marks]


def test_each_value_meets_each_value_of_every_other_axis():
    found = {pair for values in kept(pairwise(*AXES)) for pair in combinations(values, 2)}
    flat = [(letter, *numbers, flag) for letter, numbers, flag in product(*AXES)]
    assert found == {pair for values in flat for pair in combinations(values, 2)}
    assert [param.values for param in pairwise(*AXES)] == flat


def test_no_more_are_kept_than_the_two_longest_axes_need():
    assert len(kept(pairwise(*AXES))) == 5 * 3


def test_what_does_not_go_together_is_left_out():
    params = pairwise("ab", [1, 2], [False, True], valid=lambda letter, number, flag: letter == "a" or number == 1)
    assert len(params) == 6 and all(values[0] == "a" or values[1] == 1 for values in kept(params))
    assert ("b", 1) in {values[:2] for values in kept(params)}
