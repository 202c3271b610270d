"""A student's file in the place of one of our modules: importing the module gives the file.

    substitute(files)              # for good, before anything has imported the modules: `gradus check` judges so
    with apart(package, files):    # a second copy of a phase, beside ours: `--impl` runs so

Either way a `Finder` answers imports first. Nothing is patched, so a student's file may hold whatever else it needs.
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType

Files = Mapping[str, Path]
"""By the name of the module that a file stands in for. One file may stand in for several."""


def substitute(files: Files) -> None:
    """From now on, in this process, importing one of the modules runs its file."""
    early = [module for module in files if module in sys.modules]
    assert not early, f"imported already: {', '.join(early)}"
    sys.meta_path.insert(0, Finder(files))


@contextmanager
def apart(package: str, files: Files, modules: dict[str, ModuleType]) -> Iterator[None]:
    """Inside, imports of `package` (a phase) give a copy of it in which the files stand in for their modules.

    modules: those of the copy that are imported so far. They are kept there from one use to the next.
    """
    ours = _taken_out(package)
    finder = Finder(files)
    sys.meta_path.insert(0, finder)
    _put_back(package, modules)
    try:
        yield
    finally:
        modules |= _taken_out(package)
        sys.meta_path.remove(finder)
        _put_back(package, ours)


def _taken_out(package: str) -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == package or name.startswith(f"{package}.")]
    return {name: sys.modules.pop(name) for name in names}


def _put_back(package: str, modules: Mapping[str, ModuleType]) -> None:
    sys.modules.update(modules)
    parent, _, name = package.rpartition(".")
    if package in modules:  # `from phases import p01_kv_cache` asks the parent, not sys.modules
        setattr(sys.modules[parent], name, modules[package])
    elif parent in sys.modules and hasattr(sys.modules[parent], name):
        delattr(sys.modules[parent], name)


class Finder(MetaPathFinder):
    """Answers for some modules, before any other finder is asked."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.files.get(fullname)
        if file is None:
            return None
        same = {module for module, other in self.files.items() if other == file}
        return spec_from_loader(fullname, Loader(fullname, str(file), same))


class Loader(SourceFileLoader):
    """Runs a student's file. modules: all that it stands in for; what it would import of them, it defines itself."""

    def __init__(self, fullname: str, path: str, modules: set[str]) -> None:
        super().__init__(fullname, path)
        self.modules = modules

    def get_code(self, fullname: str) -> CodeType:
        """From the source alone: bytecode would be left in the student's folder, and its age is told by the second."""
        tree = ast.parse(self.get_data(self.path), self.path)
        tree.body = [node for node in tree.body if not self._is_own(node)]
        return self.source_to_code(tree, self.path)

    def _is_own(self, node: ast.stmt) -> bool:
        return isinstance(node, ast.ImportFrom) and node.module in self.modules
