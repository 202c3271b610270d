"""A skeleton is its reference without the bodies of some functions, to the letter."""

import ast

import pytest

from gradus import phases
from gradus.exercises.declaration import exercises_of
from gradus.exercises.skeleton import cut, functions, unwritten
from tests.course.conftest import PHASES, ROOT, exercises, reference

SOURCE = '''\
"""The idea."""

LIMIT = 3  # a comment that stays


class Cache:
    # a comment that stays
    def stored(
        self,
        id: str,  # who asks
    ) -> int:
        """How many positions."""
        # a comment of the body
        count = 0

        for _ in range(LIMIT):
            count += 1
        return count  # and its end
        # a last comment of the body

    # a comment that stays
    @property
    def size(self) -> int:
        return LIMIT


def one_line(x): return x


def last(x):
    return [
        x,
    ]
'''

SKELETON = '''\
"""The idea."""

LIMIT = 3  # a comment that stays


class Cache:
    # a comment that stays
    def stored(
        self,
        id: str,  # who asks
    ) -> int:
        """How many positions."""
        raise NotImplementedError("p01: Cache.stored")

    # a comment that stays
    @property
    def size(self) -> int:
        raise NotImplementedError("p01: Cache.size")


def one_line(x): raise NotImplementedError("p01: one_line")


def last(x):
    raise NotImplementedError("p01: last")
'''
ALL = ["Cache.stored", "Cache.size", "one_line", "last"]


def test_only_the_bodies_go():
    assert cut(SOURCE, ALL, "p01") == SKELETON
    assert cut(SOURCE, [], "p01") == SOURCE


def test_what_is_still_to_be_written_is_known():
    assert unwritten(SKELETON, ALL) == ALL
    assert unwritten(SOURCE, ALL) == []
    assert unwritten(cut(SOURCE, ["last"], "p01"), ALL) == ["last"]


def test_a_function_that_is_not_there_is_a_mistake_of_the_exercise():
    with pytest.raises(KeyError, match="nobody"):
        cut(SOURCE, ["nobody"], "p01")


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_an_exercise(phase):
    assert all(exercise.functions and exercise.text for exercise in exercises_of(phases.find(phase)))


@pytest.mark.parametrize(("phase", "exercise"), exercises())
def test_an_exercise_names_functions_of_its_phases_file(phase, exercise):
    assert (ROOT / exercise.file).is_file()
    assert exercise.functions.keys() <= functions(reference(phase, exercise.file_name)).keys()


@pytest.mark.parametrize(("phase", "exercise"), exercises())
def test_an_exercise_names_tests_that_are_there(phase, exercise):
    assert all((ROOT / test.split("::")[0]).is_file() for test in exercise.tests)


@pytest.mark.parametrize(("phase", "exercise"), exercises())
def test_every_function_has_three_hints(phase, exercise):
    for name, hints in exercise.functions.items():
        assert len(set(hints)) == len(hints) == 3, name
        assert all(len(hint) > 40 for hint in hints), name


@pytest.mark.parametrize(("phase", "exercise"), exercises())
def test_the_skeleton_is_the_reference_but_for_the_bodies(phase, exercise):
    whole = reference(phase, exercise.file_name)
    skeleton = cut(whole, exercise.functions, phase)
    assert unwritten(skeleton, exercise.functions) == list(exercise.functions)
    added = {line.strip() for line in set(skeleton.splitlines()) - set(whole.splitlines())}
    assert added == {f'raise NotImplementedError("{phase}: {name}")' for name in exercise.functions}
    signatures = [{name: ast.unparse(f.args) for name, f in functions(text).items()} for text in (whole, skeleton)]
    assert signatures[0] == signatures[1]
