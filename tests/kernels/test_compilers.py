"""Kernels compiled by other processes: into the cache that this one reads, and by this one where that fails."""

import pickle
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import triton
from triton.compiler import ASTSource

from gradus.kernels.core.compilers import Compilers, Task, is_cached, kernels_of, settle_key
from gradus.kernels.rows.activation import activation_kernel
from tests.forked import SERVER
from tests.kernels.ahead_of_time import H200, source_of, target_of
from tests.kernels.test_every_gpu import products
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
    """Though the first thing that they are asked for does not compile."""
    wanted, unknown = [source(), source(GATED=False)], source(ACTIVATION="an unknown one")
    assert not any(is_cached(each, TARGET, OPTIONS) for each in wanted)
    with closing(Compilers(2, MODULES)) as compilers:
        for each in (unknown, *wanted):
            compilers.compile(each, TARGET, OPTIONS)
    assert not is_cached(unknown, TARGET, OPTIONS)
    assert all(is_cached(each, TARGET, OPTIONS) for each in wanted)
    assert not is_cached(wanted[0], TARGET, {"num_warps": 8}), "another kernel"
    assert "cubin" in triton.compile(wanted[0], target=TARGET, options=OPTIONS).asm


@pytest.mark.usefixtures("empty_cache")
def test_a_kernel_in_gluon_is_sent_as_one():
    case = next(case for _, case in products(H200) if case.kernel.is_gluon())
    pointers = {name: "*bf16" for name in case.kernel.arg_names if name.endswith("_ptr")}
    wanted = source_of(case.kernel, pointers | case.types, {"PDL": False, **case.constants})
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
        ],
        count=0,
    ),
)
def test_what_cannot_be_compiled_elsewhere_is_left_to_the_process_that_asks(modules, given, survives):
    with closing(Compilers(2, modules)) as compilers:
        for each in (source(**given), source(GATED=False), source(BLOCK=512)):
            compilers.compile(each, TARGET, OPTIONS)
    assert not is_cached(source(**given), TARGET, OPTIONS)
    assert is_cached(source(BLOCK=512), TARGET, OPTIONS) == survives


def tell_keys(modules: list[str], end: Connection) -> None:
    """Import these modules in their order, and send their kernels' keys, settled from the last to the first."""
    for module in modules:
        import_module(module)
    for kernel in reversed(kernels_of(modules)):
        settle_key(kernel)
    end.send(sorted(kernel.cache_key for kernel in kernels_of(modules)))


def test_a_kernel_has_the_same_key_in_every_process():
    """Whatever it has seen before, here other modules first, and however it hashes strings, where it is not forked."""
    rooms = ("sampling.narrowing", "sampling.plain", "sampling.full", "attention.paged")
    modules = [f"gradus.kernels.{name}" for name in rooms]
    found = []
    for context, order in ((SERVER, modules), (get_context("spawn"), modules[::-1])):
        ours, theirs = Pipe()
        process = context.Process(target=tell_keys, args=(order, theirs))
        process.start()
        theirs.close()  # so that a process that fails ends the wait
        found.append(ours.recv())
        process.join()
    assert found[0] == found[1] and len(found[0]) > 40


@pytest.mark.usefixtures("empty_cache")
def test_where_nothing_is_asked_for_no_process_starts():
    with closing(Compilers(2, MODULES)) as compilers:
        assert compilers._process is None
