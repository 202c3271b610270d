"""The changes of a phase: the parts that its wiring replaces, the files it adds, and the difference in their text."""

import ast
import inspect
from collections.abc import Iterator
from contextlib import suppress
from difflib import unified_diff
from importlib import import_module
from pathlib import Path
from types import FunctionType

from gradus import phases
from gradus.exercises.declaration import repository
from gradus.phases import PhaseInfo

# a part is recognized by a method that only its role has
ROLES = {
    "schedule": "scheduler",
    "reserve": "cache manager",
    "match": "prefix index",
    "run": "runner",
    "attend": "attention backend",
    "store": "storage",
    "sample": "sampler",
}
WIRING = ("phases.", "gradus.assembly.final")  # the modules whose functions put parts together
NOT_PARTS = {"__init__.py", "engine.py", "exercise.py", "benchmark.py", "open.py"}


def difference(old: PhaseInfo, new: PhaseInfo) -> list[str]:
    """Describe the changes in lines: headings begin with "# ", the rest are a table, file names, and unified diffs."""
    before, after = parts(old), parts(new)
    lines = [f"# {new.name}, {new.title.lower()}: {new.idea}", "", *_table(old, new, before, after)]
    if files := _new_files(new):
        lines += ["", "# new files", *files]
    root = repository(new)
    lines += ["", "# the wiring", *_diff(*(_engine(phase, root) for phase in (old, new)))]
    for role, part in after.items():
        if role in before and before[role] is not part:
            lines += ["", f"# {role}: {before[role].__name__} → {part.__name__}"]
            lines += _diff(_source(before[role], root), _source(part, root))
    return lines


def parts(phase: PhaseInfo) -> dict[str, type]:
    """Find the classes that the phase's `build` calls or passes on, by role; a subclass replaces its base class."""
    classes = list(_classes(phases.load(phase.name).build))
    classes.reverse()  # the classes that `build` itself names come last, and so replace the defaults of others
    found: dict[str, type] = {}
    for method, role in ROLES.items():
        for part in classes:
            if hasattr(part, method) and not (role in found and issubclass(found[role], part)):
                found[role] = part
    return found


def _classes(function: FunctionType) -> Iterator[type]:
    """Find the classes that a function of the wiring uses or takes by default, directly or through another function."""
    tree = ast.parse(inspect.getsource(function))
    known = function.__globals__ | _imported(tree)
    named = [node for call in ast.walk(tree) if isinstance(call, ast.Call) for node in (call.func, *call.args)]
    named += [node for args in ast.walk(tree) if isinstance(args, ast.arguments) for node in args.defaults]
    for name in sorted({node.id for node in named if isinstance(node, ast.Name)}):
        found = known.get(name)
        if isinstance(found, type):
            yield found
        elif isinstance(found, FunctionType) and found.__module__.startswith(WIRING):
            yield from _classes(found)


def _imported(tree: ast.AST) -> dict[str, object]:
    """The installed objects that a function imports in its body."""
    found: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            with suppress(ImportError):
                found |= {alias.name: getattr(import_module(node.module), alias.name) for alias in node.names}
    return found


def _table(old: PhaseInfo, new: PhaseInfo, before: dict[str, type], after: dict[str, type]) -> Iterator[str]:
    rows = [("part", old.name, new.name)]
    for role in ROLES.values():
        if role in before or role in after:
            was, now = (found[role].__name__ if role in found else "none" for found in (before, after))
            rows.append((role, was, "the same" if before.get(role) is after.get(role) else now))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for part, was, now in rows:
        yield f"{part:{widths[0]}}   {was:{widths[1]}}   {now}"


def _new_files(phase: PhaseInfo) -> list[str]:
    paths = sorted(path for path in phase.path.glob("*.py") if path.name not in NOT_PARTS)
    return [f"{path.relative_to(repository(phase))}: {_opening(path)}" for path in paths]


def _opening(path: Path) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]


def _engine(phase: PhaseInfo, root: Path) -> tuple[str, str]:
    path = phase.path / "engine.py"
    return str(path.relative_to(root)), path.read_text(encoding="utf-8")


def _source(part: type, root: Path) -> tuple[str, str]:
    """A class's file and its text."""
    return str(Path(inspect.getfile(part)).relative_to(root)), inspect.getsource(part)


def _diff(old: tuple[str, str], new: tuple[str, str]) -> list[str]:
    (old_name, old_text), (new_name, new_text) = old, new
    return list(unified_diff(old_text.splitlines(), new_text.splitlines(), old_name, new_name, lineterm=""))
