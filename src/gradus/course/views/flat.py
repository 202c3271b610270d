"""A phase as one file that runs: its definitions and those that it uses from earlier phases, dependencies first.

Imports of `phases` are replaced by the definitions themselves, and only by those that the phase uses; imports of
gradus, torch and the standard library remain. Definitions keep their text, including comments.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gradus.errors import ConfigError
from gradus.exercises.declaration import repository
from gradus.phases import PhaseInfo

WIDTH = 120

MAIN = """
if __name__ == "__main__":  # the phase at work; without SmolLM2, random weights write nonsense
    import torch

    from gradus.course.xray.runs import usual_model
    from gradus.engine.request import ModelLimits, Request, SamplingParams
    from gradus.loading import load_model, open_checkpoint

    checkpoint = open_checkpoint(usual_model())
    model, tokenizer = load_model(checkpoint, dtype=torch.float32, device="cpu"), checkpoint.tokenizer
    limits = ModelLimits(model.config.vocab_size, 64)
    engine = build(model, EngineOptions(limits))
    for name, text, count in (("first", "Once upon a time", 8), ("second", "The best thing about the sea is", 4)):
        engine.submit(Request.create(name, tokenizer.encode(text), SamplingParams(max_tokens=count), limits))
    while engine.has_work:
        for output in engine.step():
            print(output.request_id, repr(tokenizer.decode(output.tokens)), output.finish_reason or "")
"""


@dataclass(frozen=True, slots=True)
class Import:
    """`from module import name as local`, or `import module as local` if name is empty."""

    module: str
    name: str
    local: str


@dataclass(slots=True)
class Module:
    """A file of the course, taken apart into its imports and its definitions."""

    path: str
    opening: str
    imports: dict[str, Import] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    uses: dict[str, set[str]] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)


def flatten(phase: PhaseInfo) -> str:
    """Flatten a phase. Raises ConfigError for a phase without an engine, and, naming the place, if it uses something
    that cannot be inlined."""
    phase.require_engine()
    flat = _Flat(repository(phase))
    flat.want_all(f"phases.{phase.folder}.engine")
    opening = f'"""{phase.name}, {phase.title.lower()}, as one file: gradus flat {phase.name}"""'
    text = "\n\n\n".join(["\n\n".join([opening, "\n".join(_import_lines(flat.outside))]), *flat.sections()])
    return f"{text}\n\n{MAIN}"


class _Flat:
    """Follows names from the phase's engine to where they are defined."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}  # read so far
        self.order: list[Module] = []  # each module after the modules that it imports
        self.outside: set[Import] = set()

    def want_all(self, name: str) -> None:
        for definition in self._module(name).definitions:
            self.want(name, definition)

    def want(self, module_name: str, name: str) -> None:
        """Include a definition, and everything that its text names."""
        module = self._module(module_name)
        if name in module.wanted:
            return
        if name not in module.definitions:
            raise ConfigError(f"{module.path} does not define {name}, so it cannot be inlined")
        module.wanted.add(name)
        for used in sorted(module.uses[name]):
            if used in module.definitions:
                self.want(module_name, used)
            elif used in module.imports:
                self._follow(module, module.imports[used])

    def _follow(self, module: Module, imported: Import) -> None:
        if not imported.module.startswith("phases."):
            self.outside.add(imported)
        elif imported.name and imported.name == imported.local:
            self.want(imported.module, imported.name)
        else:
            raise ConfigError(f"{module.path}: {imported.module} can only be inlined as `from … import name`")

    def _module(self, name: str) -> Module:
        if name not in self.modules:
            path = name.replace(".", "/") + ".py"
            if not (self.root / path).is_file():
                raise ConfigError(f"{name} is not a file, and can only be inlined as `from … import name` of one")
            self.modules[name] = module = _take_apart(path, (self.root / path).read_text(encoding="utf-8"))
            for imported in module.imports.values():
                if imported.module.startswith("phases."):
                    self._module(imported.module)
            self.order.append(module)
        return self.modules[name]

    def sections(self) -> Iterator[str]:
        """Yield the wanted definitions, file by file. Raises ConfigError if two files use one name for two things."""
        homes: dict[str, str] = {}
        for module in self.order:
            wanted = [name for name in module.definitions if name in module.wanted]
            for name in wanted:
                if homes.setdefault(name, module.path) != module.path:
                    raise ConfigError(f"{homes[name]} and {module.path} both define {name}: one file cannot hold both")
            if wanted:
                rule = "-" * (WIDTH - len(module.path) - 6)
                texts = [module.definitions[name] for name in wanted]
                yield "\n\n\n".join([f"# -- {module.path} {rule}\n# {module.opening}", *texts])


def _take_apart(path: str, source: str) -> Module:
    tree = ast.parse(source)
    lines = source.splitlines()
    opening = (ast.get_docstring(tree) or "").split("\n")[0]
    module = Module(path, opening)
    for node in tree.body[1:] if opening else tree.body:
        match node:
            case ast.Import():
                found = [Import(alias.name, "", alias.asname or alias.name.split(".")[0]) for alias in node.names]
                module.imports |= {imported.local: imported for imported in found}
            case ast.ImportFrom(module=home) if home and node.level == 0:
                found = [Import(home, alias.name, alias.asname or alias.name) for alias in node.names]
                module.imports |= {imported.local: imported for imported in found}
            case ast.ClassDef() | ast.FunctionDef():
                _define(module, node.name, node, lines)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                _define(module, name, node, lines)
            case _:
                raise ConfigError(f"{path}, line {node.lineno}: only imports, assignments, functions, classes")
    return module


def _define(module: Module, name: str, node: ast.stmt, lines: list[str]) -> None:
    decorators = node.decorator_list if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    while first > 1 and lines[first - 2].startswith("#"):  # the comment above it comes along
        first -= 1
    inner = [child for child in ast.walk(node) if isinstance(child, ast.ImportFrom) and _of_a_phase(child)]
    module.imports |= {
        alias.name: Import(child.module or "", alias.name, alias.name) for child in inner for alias in child.names
    }
    gone = {number for child in inner for number in range(child.lineno, (child.end_lineno or 0) + 1)}  # is inlined
    numbered = enumerate(lines[first - 1 : node.end_lineno], start=first)
    module.definitions[name] = "\n".join([line for number, line in numbered if number not in gone])
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    quoted = {str(child.value) for child in ast.walk(node) if isinstance(child, ast.Constant)}  # "StepResult"
    module.uses[name] = (names | quoted) - {name}


def _of_a_phase(imported: ast.ImportFrom) -> bool:
    return (imported.module or "").startswith("phases.")


def _import_lines(imports: Iterable[Import]) -> Iterator[str]:
    """Sort and merge imports: the standard library, then torch, then gradus."""
    groups: dict[int, list[str]] = defaultdict(list)
    names: dict[str, list[str]] = defaultdict(list)
    for imported in sorted(imports, key=lambda imported: (imported.module, imported.name)):
        alias = "" if imported.local in (imported.name, imported.module.split(".")[0]) else f" as {imported.local}"
        if imported.name:
            names[imported.module].append(imported.name + alias)
        else:
            groups[_group(imported.module)].append(f"import {imported.module}{alias}")
    for module, members in names.items():
        line = f"from {module} import {', '.join(members)}"
        wrapped = f"from {module} import (\n    " + ",\n    ".join(members) + ",\n)"
        groups[_group(module)].append(line if len(line) <= WIDTH else wrapped)
    for group in sorted(groups):
        yield from groups[group]
        yield ""


def _group(module: str) -> int:
    top = module.split(".")[0]
    return 0 if top in sys.stdlib_module_names else 2 if top == "gradus" else 1
