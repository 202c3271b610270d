"""Wrong solutions made by machine: one small change in the syntax tree of one function that a student writes.

The changes are those that people make: a comparison the wrong way, one too many or too few, a statement left out, two
arguments swapped, `min` for `max`, `and` for `or`.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from textwrap import indent

from gradus import phases
from gradus.exercises.declaration import Exercise, exercises_of, reference_of
from gradus.exercises.skeleton import functions

FLIPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
TURNED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.Pow: ast.Mult,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "amin": "amax", "amax": "amin", "maximum": "minimum", "append": "remove",
         "appendleft": "append", "square": "abs", "cos": "sin", "sin": "cos"}  # fmt: skip
SYMMETRIC = {"min", "max", "maximum", "minimum", "transpose"}  # swapping two arguments changes nothing
LEFT_OUT = ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.If, ast.For

Change = Callable[[], None]
"""Changes the copy of a function that it was found in."""


@dataclass(frozen=True)
class Mutant:
    """what: "cache.py, PagedCache.missing: `max` → `min` (1)", unique within its phase. source: of the whole file."""

    phase: str
    exercise: Exercise
    what: str
    source: str


@cache
def mutants(phase: str) -> list[Mutant]:
    """Every one of the phase, in the order of the text."""
    info = phases.find(phase)
    found: list[Mutant] = []
    for exercise in exercises_of(info):
        source = reference_of(info, exercise)
        for name in exercise.functions:
            function = functions(source)[name]
            for number, what in enumerate(said for said, _ in changes(copy.deepcopy(function))):
                text = mutated(source, function, number)
                if text is not None:
                    found.append(Mutant(phase, exercise, f"{exercise.file_name}, {name}: {what} ({number})", text))
    return found


def drawn(phase: str, count: int, seed: int = 0) -> list[Mutant]:
    """`count` of the phase's mutants, the same ones at every run."""
    every = mutants(phase)
    return Random(f"{phase} {seed}").sample(every, min(count, len(every)))


def mutated(source: str, function: ast.FunctionDef, number: int) -> str | None:
    """The source with one change of the function; None if that leaves the text as it is, or is no Python."""
    changed = copy.deepcopy(function)
    change = list(changes(changed))[number][1]
    before = ast.dump(changed)
    change()
    if ast.dump(changed) == before:
        return None
    lines = source.splitlines(keepends=True)
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    text = indent(ast.unparse(ast.fix_missing_locations(changed)), " " * function.col_offset)
    whole = "".join([*lines[: first - 1], text + "\n", *lines[function.end_lineno :]])
    try:
        ast.parse(whole)
    except SyntaxError:
        return None
    return whole


def changes(function: ast.FunctionDef) -> Iterator[tuple[str, Change]]:
    """Every change of this function's body, each with its name. Only one of them may be made."""
    for statement in function.body:
        checks = {id(k.value) for k in ast.walk(statement) if isinstance(k, ast.keyword) and k.arg == "strict"}
        for node in ast.walk(statement):
            if id(node) not in checks:
                yield from _of_node(node)
    for body in _bodies(function):
        for place, statement in enumerate(body):
            if isinstance(statement, LEFT_OUT) and not _is_docstring(statement):
                yield f"without `{_short(statement)}`", _setter(body, place, ast.Pass())


def _of_node(node: ast.AST) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in FLIPPED:
            yield f"`{_short(node)}` flipped", lambda: setattr(node, "ops", [FLIPPED[type(op)]()])
        case ast.BinOp(op=op) if type(op) in TURNED:
            yield f"`{_short(node)}` with another operator", lambda: setattr(node, "op", TURNED[type(op)]())
        case ast.AugAssign(op=op) if type(op) in TURNED:
            yield f"`{_short(node)}` with another operator", lambda: setattr(node, "op", TURNED[type(op)]())
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"`{_short(node)}` with and for or", lambda: setattr(node, "op", other)
        case ast.UnaryOp(op=ast.Not() | ast.Invert() as op, operand=operand):
            yield f"`{_short(node)}` without its not", lambda: setattr(node, "operand", ast.UnaryOp(op, operand))
        case ast.Constant(value=bool(value)):
            yield f"{not value} for {value}", lambda: setattr(node, "value", not value)
        case ast.Constant(value=int(value)):
            yield f"{value + 1} for {value}", lambda: setattr(node, "value", value + 1)
        case ast.Slice(lower=ast.expr() as lower):
            yield f"a slice from `{_short(lower)} + 1`", lambda: setattr(node, "lower", _plus_one(lower))
        case ast.Slice(upper=ast.expr() as upper):
            yield f"a slice to `{_short(upper)} + 1`", lambda: setattr(node, "upper", _plus_one(upper))
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in NAMES:
            field = "id" if isinstance(node, ast.Name) else "attr"
            yield f"`{NAMES[name]}` for `{name}`", lambda: setattr(node, field, NAMES[name])
        case ast.Call(func=called, args=[first, second, *rest]) if (
            not any(isinstance(a, ast.Starred) for a in (first, second))
            and ast.unparse(called).split(".")[-1] not in SYMMETRIC
        ):
            yield f"arguments of `{_short(node)}` swapped", lambda: setattr(node, "args", [second, first, *rest])


def _bodies(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


def _setter(body: list[ast.stmt], place: int, statement: ast.stmt) -> Change:
    return lambda: body.__setitem__(place, statement)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _plus_one(value: ast.expr) -> ast.expr:
    return ast.BinOp(value, ast.Add(), ast.Constant(1))


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 50 else text[:48] + " …"
