"""A student's file in the place of one of our modules: importing the module gives the file."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


class Substitute(MetaPathFinder):
    """Answers for a single module, before any other finder is asked."""

    def __init__(self, module: str, file: Path) -> None:
        self.module = module
        self.file = file

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_file_location(fullname, self.file) if fullname == self.module else None


def substitute(module: str, file: Path) -> None:
    """From now on, in this process, importing `module` runs `file`. Must come before the module's first import."""
    assert module not in sys.modules, f"{module} is imported already"
    sys.meta_path.insert(0, Substitute(module, file))
