"""The engine on machines that this one is not: without numba, on older processors, on an ARM."""

import ast
import ctypes
import json
import re
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding, ir

from gradus import LLM, SamplingParams
from gradus.kernels import cpu
from gradus.kernels.cpu import vectors
from tests.fresh import Parent
from tests.pairwise import first

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "src" / "gradus" / "kernels" / "cpu").rglob("*.py"))

# -- sources -----------------------------------------------------------------------------------------------------------


def parallel_regions(source: str) -> list[str]:
    """Where a file asks numba for a loop on threads of its own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        names += [node.arg or ""] if isinstance(node, ast.keyword) else []
        names += [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []  # of FLAGS
        found += [f"line {getattr(node, 'lineno', 0)}: {name}" for name in names if name in ("prange", "parallel")]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_kernel_has_a_parallel_region(path):
    """numba fuses two that follow each other, and then computes something else: see the package's docstring."""
    assert parallel_regions(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    ["from numba import prange", "numba.prange(3)", "@njit(parallel=True)\ndef f(): ...", "FLAGS = {'parallel': True}"],
)
def test_the_check_for_parallel_regions_catches(line):
    assert parallel_regions(line)


def slice_assignments(source: str) -> list[str]:
    """Where compiled code assigns to a slice: numba then compiles the words of an error about lengths, too."""
    compiled = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and any(re.search(r"njit|kept", ast.unparse(d)) for d in node.decorator_list)
    ]
    targets = [
        target for function in compiled for node in ast.walk(function) if isinstance(node, ast.Assign)
        for target in node.targets
    ]  # fmt: skip
    return [
        f"line {target.lineno}: {ast.unparse(target)}"
        for target in targets
        if isinstance(target, ast.Subscript) and any(isinstance(part, ast.Slice) for part in ast.walk(target.slice))
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_kernel_assigns_to_a_slice(path):
    assert slice_assignments(path.read_text(encoding="utf-8")) == []


def test_the_check_for_slices_catches():
    assert slice_assignments("@njit(**FLAGS)\ndef f(x, y):\n    x[0, :3] = y")
    assert not slice_assignments("@njit(**FLAGS)\ndef f(x, y):\n    x[0, 3] = y\ndef g(x, y):\n    x[:3] = y")


# -- without numba -----------------------------------------------------------------------------------------------------

GENERATE = """
import json, sys
{before}
from gradus import LLM, SamplingParams
llm = LLM("random:tiny-llama", device="cpu", dtype="float32", max_sequences=2)
done = llm.generate(["Once upon", "a"], SamplingParams(max_tokens=12, ignore_eos=True))
print(json.dumps([type(llm.engine.runner.step.passes).__name__, [one.token_ids for one in done]]))
"""


@pytest.fixture(scope="module")
def parent():
    """A parent of processes that can import numba, and can do without."""
    parent = Parent("import gradus.assembly.on_torch, gradus.assembly.final, gradus.text.llm\n")
    yield parent
    parent.close()


def generated(parent, before: str = "", **environment: str) -> tuple[list, str]:
    """Return the runner's class and tokens from a fresh process, and its other output."""
    done = parent.run(GENERATE.format(before=before), **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def tokens_here() -> list[list[int]]:
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32", max_sequences=2)
    done = llm.generate(["Once upon", "a"], SamplingParams(max_tokens=12, ignore_eos=True))
    return [list(one.token_ids) for one in done]


BROKEN = """
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

class Broken(MetaPathFinder, Loader):
    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self) if name == "numba" else None

    def exec_module(self, module):
        raise ImportError("Numba needs NumPy 2.4 or less.\\nGot NumPy 9.0.")

sys.meta_path.insert(0, Broken())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("sys.modules['numba'] = None", "numba is not installed (pip install numba)"),
        (BROKEN, "numba cannot be loaded: Numba needs NumPy 2.4 or less. Got NumPy 9.0."),
    ],
    ids=["missing", "broken"],
)
def test_without_numba_the_engine_says_so_in_a_line_and_gives_the_same_tokens(parent, before, reason):
    (runner, tokens), printed = generated(parent, before)
    assert printed == f"the engine runs without its kernels: {reason}\n"
    assert runner == "TorchPass" and tokens == tokens_here()


def test_numba_is_not_missing_where_it_is():
    assert cpu.missing() is None


# -- other processors --------------------------------------------------------------------------------------------------

PRODUCT = "from gradus.kernels.cpu import byte_products; print(byte_products.NAME)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "expected"),
    first(  # test_byte_products.py has all other choices
        [
            ({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, "None"),
            ({"NUMBA_CPU_FEATURES": "+avx512f,+avx512vnni"}, "avx512vnni"),
            ({"NUMBA_CPU_FEATURES": "+avx512f,+avx2,-avx512vnni"}, "avx2"),
            ({"NUMBA_CPU_FEATURES": "+avx2,+fma"}, "avx2"),
        ],
        2,
    ),
)
def test_int8_takes_the_instruction_that_numba_compiles_for(parent, environment, expected):
    done = parent.run(PRODUCT, **environment)
    assert done.stdout.split() == [expected], done.stderr


@pytest.mark.stress
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["generic", "x86-64-v3"])
def test_an_older_processor_gives_the_same_tokens(parent, name, tmp_path):
    (runner, tokens), _ = generated(parent, NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES="", NUMBA_CACHE_DIR=str(tmp_path))
    assert runner == "CompiledPass" and tokens == tokens_here()


def test_float16_is_widened_by_integers_where_no_instruction_does_it():
    """All finite numbers, to the bit: LLVM would call a function of its own for them, and end the process without."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 2), "widen")
    builder = ir.IRBuilder(function.append_basic_block())
    code, lanes = vectors.Code(builder), 16
    bits = code.read(function.args[0], code.whole(0), ir.VectorType(vectors.SINGLE, lanes))
    wide = vectors.widened_half(builder, bits, ir.VectorType(vectors.FLOAT, lanes))
    code.write(function.args[1], code.whole(0), wide)
    builder.ret_void()
    engine = binding.create_mcjit_compiler(
        binding.parse_assembly(str(module)), binding.Target.from_default_triple().create_target_machine()
    )
    engine.finalize_object()
    widen = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("widen"))
    halves = np.arange(1 << 16, dtype=np.uint16)
    halves = halves[np.isfinite(halves.view(np.float16))].reshape(-1, lanes)
    found = np.zeros(halves.shape, np.float32)
    for row, out in zip(halves.astype(np.uint32) | 0xABCD0000, found, strict=True):  # the upper half is another's
        widen(row.ctypes.data, out.ctypes.data)
    assert np.array_equal(found.view(np.uint32), halves.view(np.float16).astype(np.float32).view(np.uint32))


@pytest.mark.stress
@pytest.mark.timeout(400)
def test_no_part_of_a_step_asks_for_an_x86(parent, tmp_path):
    """Where the platform is another, and numba's target has no extension."""
    before = """
import gradus.kernels.cpu.machine
gradus.kernels.cpu.machine.IS_X86 = False
"""
    after = f"""
from gradus.kernels.cpu.decode_step import run
open({str(tmp_path / "step.ll")!r}, "w").write(next(iter(run.inspect_llvm().values())))
"""
    # what an ARM widens float16 with has another name here, and must be there for the step to run
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+avx,+f16c", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = parent.run(GENERATE.format(before=before) + after, **environment)
    assert done.returncode == 0, done.stderr
    asked = set(re.findall(r"llvm\.x86\.[\w.]+", (tmp_path / "step.ll").read_text()))
    assert all(name.startswith("llvm.x86.atomic.") for name in asked)  # LLVM's own, for the target that this was
