"""Notice a file that changes the engine or the meter instead of building on them.

A reader's file may subclass and replace any part of an engine. It may not write into our modules: then a changed meter
could report anything. So every function, class and constant of `gradus` and `phases` must be the same object before and
after. (What Python lets a program do to itself is more than any guard sees; this one keeps honest mistakes out, and
makes a trick take more work than the task.)
"""

import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from gradus.course.open.declaration import Refused

PLAIN = (int, float, str, bytes, bool, tuple, frozenset)


class Guard:
    """Remembers our modules as they are when it is made."""

    def __init__(self) -> None:
        self.kept = {name: (value, mark(value)) for name, value in everything()}

    def check(self) -> None:
        """Raises Refused, naming the first thing that has changed."""
        now = dict(everything())
        for name, (value, before) in self.kept.items():
            found = now.get(name)
            if found is not value or mark(found) != before:
                raise Refused(f"{name} was changed: build on our parts in a file of your own, and leave ours alone")


def mark(value: Any) -> Any:
    """Return the parts of an object that must stay the same: a function's code and defaults, a constant's value."""
    if isinstance(value, FunctionType):
        return value.__code__, value.__defaults__, value.__kwdefaults__
    return value if isinstance(value, PLAIN) else None


def everything() -> Iterator[tuple[str, Any]]:
    """Yield the functions, classes, methods and constants of all modules of ours, by their full names."""
    for module_name, module in sorted(sys.modules.items()):
        if module_name.split(".")[0] not in ("gradus", "phases"):
            continue
        for name, value in list(vars(module).items()):
            if name.startswith("__"):
                continue
            if isinstance(value, (FunctionType, type, *PLAIN)):
                yield f"{module_name}.{name}", value
            if isinstance(value, type) and value.__module__ == module_name:
                for part, method in list(vars(value).items()):
                    if isinstance(method, (FunctionType, property, staticmethod, classmethod)):
                        yield f"{module_name}.{name}.{part}", method
