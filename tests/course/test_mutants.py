"""The check catches mistakes that a machine makes in the reference: ten changes of every phase, drawn once for all.

`make stress` judges all of them; every run judges one per phase. A change that makes no difference is listed here, with
its reason, and does not count.
"""

import ast
from collections import Counter

import pytest

from gradus.exercises.skeleton import functions
from tests.course.conftest import PHASES
from tests.course.mutate import Mutant, changes, drawn, mutants
from tests.pairwise import first

A_PHASE = 10
SPARE = 10  # extra draws, to replace changes that make no difference

EQUIVALENT: dict[str, str] = {}
"""The reason why the changed function does the same, by phase and change."""


def counted(phase: str) -> list[Mutant]:
    every = drawn(phase, A_PHASE + SPARE)
    return [one for one in every if f"{phase} {one.what}" not in EQUIVALENT][:A_PHASE]


@pytest.mark.parametrize("place", first(range(A_PHASE)))
@pytest.mark.parametrize("phase", PHASES)
def test_a_mutant_is_caught(checked, phase, place):
    mutant = counted(phase)[place]
    verdict = checked(mutant.phase, mutant.source, mutant.exercise)
    assert not verdict.passed, mutant.what


def test_what_changes_nothing_is_there_and_has_a_reason():
    there = {f"{phase} {mutant.what}" for phase in PHASES for mutant in drawn(phase, A_PHASE + SPARE)}
    assert EQUIVALENT.keys() <= there and all(EQUIVALENT.values())


@pytest.mark.parametrize("phase", PHASES)
def test_mutants_differ_from_the_reference_and_from_each_other(phase):
    sources = Counter(mutant.source for mutant in mutants(phase))
    assert len(sources) >= A_PHASE and max(sources.values()) <= 3  # `a < b` has its swap and its flip, say
    assert [mutant.what for mutant in drawn(phase, 5)] == [mutant.what for mutant in drawn(phase, 5)]


def test_the_changes_are_those_that_people_make():
    source = "def f(a, b):\n    if a < b and not b:\n        a += 1\n    g(a, b)\n    return min(a[1:], b)\n"
    function = functions(source)["f"]
    assert isinstance(function, ast.FunctionDef)
    said = [what for what, _ in changes(function)]
    expected = ["`a < b` flipped", "`not b` without its not", "2 for 1", "`max` for `min`", "without `a += 1`"]
    expected += ["arguments of `g(a, b)` swapped", "a slice from `1 + 1`", "`a < b and (not b)` with and for or"]
    assert set(expected) <= set(said)
