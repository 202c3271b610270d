"""The rooms of src/gradus and the one direction of their imports, read from the syntax trees.

Every import counts: those inside functions, and those for type checkers alone.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "gradus"

# Rooms from low to high: a room may import those before it. "gradus" is the package's own __init__, the front door.
ROOMS = [
    "errors", "garbage", "phases", "exercises", "cache", "engine", "config", "scheduling", "device", "models",
    "quantization", "loading", "kernels", "attention", "calibration", "sampling", "speculative", "execution",
    "assembly", "text", "training", "gradus", "server", "doctor", "bench", "course", "cli", "__main__",
]  # fmt: skip

Arrow = tuple[str, str]  # the module that imports, and the module that it imports


def modules() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        yield name, ast.parse(path.read_text(encoding="utf-8"))


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


def test_no_room_imports_one_above_it():
    assert not upward(arrow for name, tree in modules() for arrow in arrows(name, tree))


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
