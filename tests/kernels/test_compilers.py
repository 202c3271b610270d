"""Kernels compiled by other processes: into the cache that this one reads, and by this one where that fails."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import triton
from triton.compiler import ASTSource

from gradus.kernels.core.compilers import Compilers, Task, is_cached
from gradus.kernels.rows.activation import activation_kernel
from tests.kernels.ahead_of_time import H200, source_of, target_of
from tests.kernels.test_every_gpu import hopper_prompts
from tests.pairwise import first

TARGET, OPTIONS = target_of(H200), {"num_warps": 4}
MODULES = ["gradus.kernels.rows.activation"]


@pytest.fixture
def empty_cache(monkeypatch, tmp_path) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    yield


def source(**constants: object) -> ASTSource:
    types = {"in_ptr": "*bf16", "out_ptr": "*bf16", "width": "i32:16"}
    given = {
        "ACTIVATION": "silu",
        "GATED": True,
        "BLOCK": 256,
        "PDL": False,
        "times_ptr": None,
        "stride": None,
    } | constants
    return source_of(activation_kernel, types, given)


@pytest.mark.usefixtures("empty_cache")
def test_what_other_processes_compile_is_only_read_here():
    wanted = [source(), source(GATED=False)]
    assert not any(is_cached(each, TARGET, OPTIONS) for each in wanted)
    with closing(Compilers(2, MODULES)) as compilers:
        for each in wanted:
            compilers.compile(each, TARGET, OPTIONS)
    assert all(is_cached(each, TARGET, OPTIONS) for each in wanted)
    assert not is_cached(wanted[0], TARGET, {"num_warps": 8}), "another kernel"
    assert "cubin" in triton.compile(wanted[0], target=TARGET, options=OPTIONS).asm


@pytest.mark.usefixtures("empty_cache")
def test_a_kernel_in_gluon_is_sent_as_one():
    _, case = next(hopper_prompts(H200))
    wanted = source_of(case.kernel, {"out": "*bf16", **case.types}, case.constants)
    pickle.loads(pickle.dumps(Task.of(wanted, TARGET, case.options))).compile()
    assert is_cached(wanted, TARGET, case.options)


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize(
    ("modules", "given", "survives"),
    first(
        [
            (MODULES, {"ACTIVATION": "an unknown one"}, True),  # it does not compile
            (["gradus.kernels.there_is_none"], {}, False),  # no process gets through its start
            (MODULES, {"BLOCK": lambda: 256}, True),  # it cannot be sent
        ]
    ),
)
def test_what_cannot_be_compiled_elsewhere_is_left_to_the_process_that_asks(modules, given, survives):
    with closing(Compilers(2, modules)) as compilers:
        for each in (source(**given), source(GATED=False), source(BLOCK=512)):
            compilers.compile(each, TARGET, OPTIONS)
    assert not is_cached(source(**given), TARGET, OPTIONS)
    assert is_cached(source(BLOCK=512), TARGET, OPTIONS) == survives


KEYS = """
import sys
from importlib import import_module
from gradus.kernels.core.compilers import kernels_of, settle_key
for module in sys.argv[1:]:
    import_module(module)
for kernel in reversed(kernels_of(sys.argv[1:])):
    settle_key(kernel)
print(*sorted(kernel.cache_key for kernel in kernels_of(sys.argv[1:])))
"""


def test_a_kernel_has_the_same_key_in_every_process():
    """Whatever it has seen before: here other modules first."""
    rooms = ("sampling.narrowing", "sampling.plain", "sampling.full", "attention.paged")
    modules = [f"gradus.kernels.{name}" for name in rooms]
    found = set()
    for order in (modules, modules[::-1]):
        command = [sys.executable, "-c", KEYS, *order]
        found.add(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1 and len(found.pop().split()) > 40


@pytest.mark.usefixtures("empty_cache")
def test_where_nothing_is_asked_for_no_process_starts():
    with closing(Compilers(2, MODULES)) as compilers:
        assert compilers._process is None
