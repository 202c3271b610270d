"""Parameters that `make test` runs a part of, and `make stress` the rest.

`pairwise`: each value meets each value of every other axis, but not in each combination of all axes. `each_once`: each
value of every axis has its turn, where axes have little to do with each other. `first`: of values that go the same way
through the code, the first ones.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, combinations, product
from typing import Any

import pytest


def pairwise(*axes: Sequence[Any], valid: Callable[..., bool] = lambda *values: True) -> list:
    """All valid combinations, as parameters; `make test` runs enough of them for every pair, `make stress` the others.

    A tuple is several parameters, whose values belong together. valid: says of the parameters' values whether they go
    together.
    """
    every = {numbers: _values(axes, numbers) for numbers in product(*(range(len(axis)) for axis in axes))}
    every = {numbers: values for numbers, values in every.items() if valid(*values)}
    missing, kept = set(chain.from_iterable(map(_pairs, every))), set()
    while missing:
        best = max(every, key=lambda numbers: len(_pairs(numbers) & missing))
        kept.add(best)
        missing -= _pairs(best)
    return [
        pytest.param(*values, marks=() if numbers in kept else pytest.mark.stress) for numbers, values in every.items()
    ]


def each_once(*axes: Sequence[Any]) -> list:
    """All combinations, as parameters; `make test` runs enough of them for every value, `make stress` the others.

    A tuple is several parameters, whose values belong together.
    """
    kept = {tuple(turn % len(axis) for axis in axes) for turn in range(max(map(len, axes)))}
    return [
        pytest.param(*_values(axes, numbers), marks=() if numbers in kept else pytest.mark.stress)
        for numbers in product(*(range(len(axis)) for axis in axes))
    ]


def first(values: Iterable[Any], count: int = 1) -> list:
    """All values, as parameters; `make test` runs the first `count` of them, `make stress` the others.

    A tuple is several parameters.
    """
    return [
        pytest.param(*(each if type(each) is tuple else (each,)), marks=() if place < count else pytest.mark.stress)
        for place, each in enumerate(values)
    ]


def _values(axes: Sequence[Sequence[Any]], numbers: tuple[int, ...]) -> list[Any]:
    chosen = (axis[number] for axis, number in zip(axes, numbers, strict=True))
    return list(chain.from_iterable(each if isinstance(each, tuple) else (each,) for each in chosen))


def _pairs(numbers: tuple[int, ...]) -> set[tuple]:
    return set(combinations(enumerate(numbers), 2))
