"""A student's functions next to ours, and the reasons for ours."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent

from gradus.exercises.declaration import Exercise, reference_of
from gradus.exercises.skeleton import functions
from gradus.phases import PhaseInfo


@dataclass(frozen=True, slots=True)
class Pair:
    """One function. theirs: "" if the student has not written it. why: explains our choices."""

    name: str
    theirs: str
    ours: str
    why: str


def pairs(phase: PhaseInfo, exercise: Exercise, theirs: str = "") -> Iterator[Pair]:
    """Yield the exercise's functions, in order. theirs: the source of the student's file; "" for ours alone."""
    ours = reference_of(phase, exercise)
    for name in exercise.functions:
        yield Pair(name, text_of(theirs, name), text_of(ours, name), exercise.why[name])


def text_of(source: str, name: str) -> str:
    """Extract the function with its decorators, without the indentation of its class and without its docstring."""
    function = functions(source).get(name) if source else None
    if function is None:
        return ""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    lines = source.splitlines()[first - 1 : function.end_lineno]
    if ast.get_docstring(function, clean=False) is not None and len(function.body) > 1:
        said = function.body[0]
        del lines[said.lineno - first : (said.end_lineno or said.lineno) - first + 1]
    return dedent("\n".join(lines))
