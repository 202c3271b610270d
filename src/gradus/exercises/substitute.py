"""A student's file in place of one of our modules: importing the module loads the file.

    substitute(files)              # permanently, before anything has imported the modules: for `gradus check`
    with apart(package, files):    # in a second copy of a phase: for `--impl`

Either way a `Finder` answers imports first. Nothing is patched, so a student's file may contain anything else it needs.
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
"""Name of the replaced module → the student's file. One file may replace several modules."""


def substitute(files: Files) -> None:
    """Make imports of the modules run their files, from now on, in this process."""
    early = [module for module in files if module in sys.modules]
    assert not early, f"imported already: {', '.join(early)}"
    sys.meta_path.insert(0, Finder(files))


@contextmanager
def apart(package: str, files: Files, modules: dict[str, ModuleType]) -> Iterator[None]:
    """Within the block, imports of `package` (a phase) load a copy of it in which the files replace their modules.

    modules: the copy's modules imported so far, kept from one use to the next.
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
    if package in modules:  # `from phases import p01_kv_cache` looks in the parent, not in sys.modules
        setattr(sys.modules[parent], name, modules[package])
    elif parent in sys.modules and hasattr(sys.modules[parent], name):
        delattr(sys.modules[parent], name)


class Finder(MetaPathFinder):
    """Finds some modules, before any other finder is asked."""

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
    """Runs a student's file. modules: all modules that it replaces; the file itself defines what it would import from
    them."""

    def __init__(self, fullname: str, path: str, modules: set[str]) -> None:
        super().__init__(fullname, path)
        self.modules = modules

    def get_code(self, fullname: str) -> CodeType:
        """Compile from the source: cached bytecode would litter the student's folder, and its age has only whole
        seconds."""
        tree = ast.parse(self.get_data(self.path), self.path)
        tree.body = [node for node in tree.body if not self._is_own(node)]
        return self.source_to_code(tree, self.path)

    def _is_own(self, node: ast.stmt) -> bool:
        return isinstance(node, ast.ImportFrom) and node.module in self.modules
