"""The rooms of src/gradus and the one direction of their imports, read from the syntax trees.

Every import counts: those inside functions, and those for type checkers alone.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "gradus"

# Rooms from low to high: a room may import those before it. "gradus" is the package's own __init__, the front door.
ROOMS = [
    "errors", "extras", "garbage", "phases", "exercises", "cache", "engine", "structured", "config", "scheduling",
    "device", "models", "quantization", "loading", "kernels", "attention", "calibration", "sampling", "speculative",
    "execution", "parallel", "assembly", "text", "training", "gradus", "server", "deploy", "doctor", "bench",
    "course", "load", "cli", "__main__",
]  # fmt: skip

# What measures, trains and teaches: for people at a terminal, never part of an engine that serves.
TOOLS = {"bench", "course", "load", "training", "exercises", "calibration"}
ENGINE = {
    "engine", "scheduling", "execution", "speculative", "sampling", "cache", "attention", "kernels", "models",
    "quantization", "parallel", "assembly", "device", "config", "text", "loading", "server", "structured", "deploy",
}  # fmt: skip

MOST_FILES = 15  # side by side in one folder
# Rooms whose own rooms import one way: each imports what its page names before it.
IN_ORDER = {
    "bench", "cli", "course", "execution", "kernels", "load", "load/asking", "load/batch", "load/jobs",
    "server", "server/api", "server/api/anthropic",
    "server/api/responses", "server/engine", "server/http", "server/metrics", "server/page", "text",
}  # fmt: skip

Arrow = tuple[str, str]  # the module that imports, and the module that it imports


@cache
def modules() -> list[tuple[str, ast.AST]]:
    """Every module's name, and of its syntax tree the imports: all that is asked for here."""
    found: list[tuple[str, ast.AST]] = []
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        found.append((name, ast.Module(body=imports, type_ignores=[])))
    return found


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def arrows(name: str, tree: ast.AST) -> Iterator[Arrow]:
    """Yield a module's imports from other rooms. In `from gradus import x`, x is a room if a room has that name."""
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "gradus":
            found = [f"gradus.{alias.name}" if alias.name in ROOMS else "gradus" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            found = [node.module or ""]
        yield from ((name, other) for other in found if other.split(".")[0] == "gradus" and room(other) != room(name))


def upward(found: Iterator[Arrow]) -> set[Arrow]:
    """Return the arrows that do not lead down. Every circle has at least one of them."""
    return {(here, there) for here, there in found if ROOMS.index(room(there)) >= ROOMS.index(room(here))}


def tools_in_an_engine(found: Iterator[Arrow]) -> set[Arrow]:
    """Arrows from the engine's rooms to the tools."""
    return {(here, there) for here, there in found if room(here) in ENGINE and room(there) in TOOLS}


def crowded(root: Path) -> dict[str, int]:
    """Folders with more files side by side than a reader takes in at once, by their path below root."""
    folders = [root, *(path for path in root.rglob("*") if path.is_dir() and path.name != "__pycache__")]
    sizes = {folder: sum(path.is_file() for path in folder.iterdir()) for folder in folders}
    return {str(folder.relative_to(root)): size for folder, size in sizes.items() if size > MOST_FILES}


def named(page: str, there: set[str]) -> list[str]:
    """A page's modules and rooms, in the order of their first mention: "drive.py" is "drive", "predict/" "predict"."""
    found = re.findall(r"(\w+)(?:\.py\b|/(?=[\s:]))", page)
    return [name for name in dict.fromkeys(found) if name in there]


def backward(room: str) -> set[Arrow]:
    """Imports from one room inside a room to another that its page names later."""
    package = f"gradus.{room.replace('/', '.')}"
    depth = package.count(".") + 1
    page = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    order = named(page, {path.stem for path in (ROOT / room).iterdir()})
    found = set()
    for name, tree in modules():
        for node in ast.walk(tree) if name.startswith(f"{package}.") else ():
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
                here, *there = (order.index(target.split(".")[depth]) for target in (name, *targets))
                found |= {(name, target) for target, at in zip(targets, there, strict=True) if at > here}
    return found


@pytest.mark.parametrize("room", sorted(IN_ORDER))
def test_a_room_is_read_in_the_order_of_its_imports(room):
    assert not backward(room)


def test_a_page_names_its_rooms_in_order():
    page = "Read:\n    one.py   first;  two.py: then\n    three/   last, and one.py\n    gone.py"
    assert named(page, {"one", "two", "three", "four"}) == ["one", "two", "three"]


def test_no_room_imports_one_above_it():
    assert not upward(arrow for name, tree in modules() for arrow in arrows(name, tree))


def test_no_engine_imports_what_measures_trains_or_teaches():
    assert not tools_in_an_engine(arrow for name, tree in modules() for arrow in arrows(name, tree))


def test_the_engines_rooms_and_the_tools_are_rooms():
    assert set(ROOMS) >= ENGINE | TOOLS and not ENGINE & TOOLS


def test_no_folder_has_more_files_than_a_reader_takes_in():
    assert crowded(ROOT) == {}


def test_the_check_for_crowded_folders_counts_files_of_every_kind_and_no_folders(tmp_path):
    for folder, files in (("few", MOST_FILES), ("many", MOST_FILES + 1)):
        (tmp_path / folder / "room").mkdir(parents=True)
        for number in range(files):
            (tmp_path / folder / f"{number}.json").touch()
    assert crowded(tmp_path) == {"many": MOST_FILES + 1}


def test_every_room_has_its_place():
    there = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert (there - {"__init__"}) | {"gradus"} == set(ROOMS) and len(ROOMS) == len(set(ROOMS))


@pytest.mark.parametrize(
    "code",
    [
        "import gradus.attention.backend",
        "from gradus.execution.runner import ModelRunner",
        "def late():\n    from gradus.sampling.sampler import Rows",
        "if TYPE_CHECKING:\n    from gradus.attention.batch import Batch",
        "from gradus import server",
        "from gradus import __version__",
    ],
)
def test_the_check_catches_an_arrow_that_leads_up(code):
    assert len(upward(arrows("gradus.kernels.fuse.model", ast.parse(code)))) == 1


def test_the_check_lets_arrows_down_and_rooms_own_modules_pass():
    code = "import torch\nfrom gradus.models.layers import Linear\nfrom gradus.kernels.rows.norm import add_rms_norm"
    assert list(arrows("gradus.kernels.fuse.model", ast.parse(code))) == [
        ("gradus.kernels.fuse.model", "gradus.models.layers")
    ]
    assert not upward(arrows("gradus.kernels.fuse.model", ast.parse(code)))


def test_a_circle_of_two_rooms_is_caught_whichever_way_they_are_ordered():
    circle = [("gradus.cache.pool", "gradus.engine.plan"), ("gradus.engine.plan", "gradus.cache.pool")]
    assert len(upward(iter(circle))) == 1


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_the_check_catches_an_engine_that_imports_a_tool(tool):
    late = ast.parse(f"def late():\n    from gradus.{tool} import x\n    import gradus.errors")
    assert tools_in_an_engine(arrows("gradus.text.llm", late)) == {("gradus.text.llm", f"gradus.{tool}")}
    assert not tools_in_an_engine(arrows("gradus.cli.commands.bench", late))
