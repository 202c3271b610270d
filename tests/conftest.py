"""Conditions of every test: no network, one thread, repeatable random examples, and markers that skip themselves.

Everything here happens before torch is first imported.
"""

import gc
import ipaddress
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# Tiny models are fastest on one thread, and two test runs side by side do not slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Children (the command line under test, pip) are not reached by the guard below; these keep them offline.
os.environ.pop("GRADUS_API_KEY", None)  # a developer's own would make every server here ask for it
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", PIP_NO_INDEX="1")
# Where the environment forbids bytecode files, as in many containers, each process compiles all of torch as it imports
# it, and there are hundreds of processes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

MARKERS = {
    "gpu": "needs a CUDA GPU; skipped without one",
    "weights": "weights(name): needs this pulled model (smollm2-135m when none is named); skipped where it is not",
    "stress": "more examples, or combinations, than every run should pay for; run by `make stress`",
    "slow": "takes more than five seconds",
    "quick": "a file's cheapest representative; of a parametrized test, its first case alone",
    "plans_memory": "plans memory from what is free on the GPU: `make test-gpu` runs these in one process",
    "clients": "runs a client's own program, which `make clients` installs and tests",
}
ASKED_FOR = ("stress", "clients")  # markers of tests that are left out unless they are asked for

# Files that processes side by side begin with, one each: the longest. The first has numba compile, for half a minute;
# meanwhile the others do without, and then find the code on disk. The last files by name are short: all end together.
FIRST = (
    "cpu/test_beside.py",
    "kernels/test_drafts.py",
    "course/test_check.py",
    "benchmarks/test_quantized_linear.py",
    "kernels/test_fused_kernels.py",
)

# "ci": the same few examples every time, so a failure is the change's own. "stress": new ones at each run. "check": the
# first of "ci", for `gradus check`: a student waits for it.
settings.register_profile("ci", max_examples=10, derandomize=True, deadline=None)
settings.register_profile("check", max_examples=5, derandomize=True, deadline=None)
settings.register_profile(
    "stress", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(profile := os.environ.get("HYPOTHESIS_PROFILE", "ci"))
if profile != "stress":
    # Hypothesis also draws constants that it finds in the source of imported modules. Which modules those are depends
    # on the tests that the process ran before, so examples would too, whatever `derandomize` says.
    providers.is_local_module_file = lambda path: False


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}" if "(" not in meaning else meaning)
    _guard_network()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are processors: hundreds of tests wait for a process of their own to start or end."""
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Look for no garbage among what is imported and collected: all of it stays, and each look costs more.

    Collections during the tests then look through the tests' own objects, not through torch.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that must be asked for, and put first what others wait for."""
    _leave_quick_to_first_cases(items)
    for marker in ASKED_FOR:
        if marker not in config.option.markexpr:
            left_out = [item for item in items if item.get_closest_marker(marker)]
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker(marker)]
    items.sort(key=lambda item: item.get_closest_marker("plans_memory") is not None)  # behind the kernels they run
    items.sort(key=lambda item: next((place for place, end in enumerate(FIRST) if _is(item, end)), len(FIRST)))


def _leave_quick_to_first_cases(items: list[pytest.Item]) -> None:
    """Let the marker `quick` of a parametrized test hold for its first case alone: the choice then takes minutes."""
    begun: set[tuple[str, str]] = set()
    for item in items:
        test = item.path.as_posix(), getattr(item, "originalname", item.name)
        if test in begun:
            item.own_markers[:] = [marker for marker in item.own_markers if marker.name != "quick"]
        begun.add(test)


def _is(item: pytest.Item, ending: str) -> bool:
    return item.path.as_posix().endswith(f"/{ending}")


@pytest.fixture(autouse=True, scope="session")
def collector_left_alone() -> Iterator[None]:
    """Engines and servers neither run the collector nor hide anything from it: `gradus.garbage` has an idle one. And
    nobody puts back into its sight what `pytest_collection` hid, as a benchmark does behind its engines.

    A full collection for each of a thousand engines would take longer than their tests. Where a GPU is in use, an
    engine still looks for the memory of those before it. tests/collector leaves the collector as it is.
    """
    if os.environ.get("GRADUS_TEST_COLLECTOR") == "1":
        yield
        return
    idle = SimpleNamespace(
        **dict.fromkeys(("set_threshold", "freeze", "unfreeze", "disable", "enable", "isenabled"), lambda *_: None)
    )
    idle.collect = lambda: gc.collect() if _uses_gpu() else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradus.garbage.gc", idle)
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def imported_late() -> Iterator[None]:
    """Hide from the collector what a file's tests have imported, if it is as much as numba or matplotlib."""
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + 100:
        gc.collect()
        gc.freeze()


@pytest.fixture
def process() -> psutil.Process:
    """This process, as psutil knows it; the test is skipped where a Linux hides its /proc."""
    try:
        return psutil.Process()
    except psutil.NoSuchProcess:
        pytest.skip("psutil knows no process here: /proc is hidden")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("no CUDA GPU")
    for marker in item.iter_markers("weights"):
        name = marker.args[0] if marker.args else "smollm2-135m"
        if not _is_pulled(name):
            pytest.skip(f"{name} is not pulled: gradus pull {name}")
    if torch := sys.modules.get("torch"):
        _seed(torch, on_gpu=item.get_closest_marker("gpu") is not None)


def _seed(torch: Any, on_gpu: bool) -> None:
    """A test's random numbers are the same alone, in any order and in any process.

    `torch.manual_seed` would keep a stack trace for each kind of device that is not in use yet, in a millisecond.
    """
    torch.default_generator.manual_seed(0)
    if on_gpu or torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _is_pulled(name: str) -> bool:
    from gradus.loading import CATALOGUE

    return name in CATALOGUE and CATALOGUE[name].pulled


# -- no network ------------------------------------------------------------------------------------------------------


class NetworkBlocked(OSError):
    """A test tried to reach another machine."""


def _guard_network() -> None:
    """Connecting to anything but this machine raises, and so does looking up its name."""
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        _allow(self.family, address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        _allow(self.family, address)
        return connect_ex(self, address)

    def guarded_getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Iterable[Any]:
        _allow(socket.AF_INET, (host,))
        return getaddrinfo(host, *arguments, **options)

    socket.socket.connect = guarded_connect  # type: ignore[method-assign]
    socket.socket.connect_ex = guarded_connect_ex  # type: ignore[method-assign]
    socket.getaddrinfo = guarded_getaddrinfo  # type: ignore[assignment]


def _allow(family: int, address: Any) -> None:
    if family not in (socket.AF_INET, socket.AF_INET6):
        return
    host = address[0]
    host = host.decode() if isinstance(host, bytes) else host
    if not _is_this_machine(host):
        raise NetworkBlocked(f"tests need no network, and this one tried to reach {host}")


def _is_this_machine(host: str | None) -> bool:
    if host in (None, "", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
