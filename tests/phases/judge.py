"""The judge of an exercise: a pytest plugin that replaces a module with the student's file that rewrites it.

    pytest -p tests.phases.judge tests/phases -x --phase=p01 --module=phases.p01_kv_cache.contiguous --file=mine.py
           --facts=facts --shares=2

runs the tests of one phase, the most telling ones first, and writes down what the first failure looked like: `gradus
check` makes a sentence of it. Two shares are two processes: each takes the next test that neither has taken, until one
of them fails, and writes a file of its own: facts.0 and facts.1. Several modules and their files are judged together.
Test files outside tests/phases may be named as well: they are about a part that no phase owns (tests/cache), and run
whole.
"""

import ctypes
import gc
import json
import linecache
import os
import re
import signal
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

from gradus import phases
from gradus.exercises.declaration import exercises_of
from gradus.exercises.substitute import substitute
from tests.phases.drive import Ending

ROOT = Path(__file__).parents[2]
PHASES = ROOT / "tests" / "phases"
NAME = re.compile(r"p\d\d")
LEFT_OUT = {"test_differential.py", "test_paged_invariance.py"}  # slow, and the oracle asks for the same tokens
SAID = {"capped": "in a model with a soft cap, and with a scale of its own"}  # what a shape's name does not say
PR_SET_PDEATHSIG = 1  # of Linux, where alone tests are shared out
share = 0  # this process's
beside: list[int] = []  # the processes of the other shares
queue = os.pipe()  # the tests' places in the order, two bytes each: the process that reads a place runs that test
TORCH = re.compile(r"^\s*(import|from) torch", re.MULTILINE)
failures: list[dict] = []
passed: list[int] = []  # their places
kept: dict[str, tuple[int, list[str]]] = {}  # what passed has shown, in words: the first test's place and its modules
order: dict[str, int] = {}  # by node id
near: dict[str, list[str]] = {}  # by node id: the phase's modules that a test is about


def pytest_addoption(parser):
    group = parser.getgroup("gradus check")
    for name in ("phase", "facts"):
        group.addoption(f"--{name}", required=True)
    for name in ("module", "file"):
        group.addoption(f"--{name}", action="append", required=True)
    group.addoption("--shares", type=int, default=1)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Before any conftest can import the module."""
    gc.disable()  # what is imported stays: looking through it again and again would take as long as half of torch
    options = early_config.known_args_namespace
    substitute({module: Path(file) for module, file in zip(options.module, options.file, strict=True)})


def pytest_collection_modifyitems(config, items):
    """Keep the phases' tests that take this phase as a parameter, and all tests of a part."""
    phase = config.getoption("phase")
    earlier = {item.function for item in items if is_phases(item) and "" < phase_of(item) < phase}
    modules = config.getoption("module")
    meant = [item for item in items if not is_phases(item) or phase_of(item) == phase]
    meant = [item for item in meant if item.path.name not in LEFT_OUT and is_about(item, modules)]
    if not any(TORCH.search(Path(file).read_text(encoding="utf-8")) for file in config.getoption("file")):
        meant = in_one_shape(meant)
    meant.sort(key=lambda item: (telling(item), is_phases(item) and item.function in earlier))
    order.update({item.nodeid: place for place, item in enumerate(meant)})
    parts = [exercise.module for exercise in exercises_of(phases.find(phase))]
    for item in meant:
        near[item.nodeid] = [module for module in parts if is_near(item, module)]
    items[:] = meant
    os.write(queue[1], b"".join(place.to_bytes(2) for place in range(len(meant))))
    os.close(queue[1])
    gc.freeze()
    gc.enable()
    _share_out(config.getoption("shares"))


def _share_out(shares: int) -> None:
    """Fork a process for each further share, now that all is imported."""
    global share
    for number in range(1, shares):
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends when the first process is ended
            share = number
            beside.clear()
            return
        beside.append(child)


def pytest_runtestloop(session):
    """pytest's own loop, with the queue in the place of the list.

    pytest asks what follows a test before it undoes the test's fixtures, so each share takes one test ahead.
    """
    if session.testsfailed:
        raise session.Interrupted("a test file cannot be imported")
    item = _taken(session.items)
    while item is not None:
        following = _taken(session.items)
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            while os.read(queue[0], 1 << 16):
                pass  # no share begins another test
            raise session.Failed(session.shouldfail)
        item = following
    return True


def _taken(items: list):
    """The next test that no share has taken; None behind the last one."""
    place = os.read(queue[0], 2)
    return items[int.from_bytes(place)] if place else None


def is_about(item, modules: list[str]) -> bool:
    """Return whether a test runs one of the modules. Engines run all of a phase; a test of functions names them in its
    code."""
    if not item.path.stem.endswith("_forward"):
        return True
    names = names_in(item.function.__code__)
    return "forward" in names or any(module.rpartition(".")[2] in names for module in modules)


def names_in(code: CodeType) -> set[str]:
    """Return the names that a function uses, including its comprehensions and lambdas, which have separate code
    objects."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(names_in, inner))


def is_phases(item) -> bool:
    return item.path.is_relative_to(PHASES)


def phase_of(item) -> str:
    """p01, say; "" for a test of the final engine, or of no phase in particular."""
    named = (value for value in parameters(item).values() if isinstance(value, str) and NAME.fullmatch(value))
    return next(named, "")


def in_one_shape(items: list) -> list:
    """A file without tensors does the same for every model, so each test runs with the first shape that it names."""
    firsts: dict = {}
    for item in items:
        others = [(name, repr(value)) for name, value in parameters(item).items() if name != "shape"]
        firsts.setdefault((item.path, item.name.split("[")[0], *others), item)
    return list(firsts.values())


def parameters(item) -> dict:
    return item.callspec.params if hasattr(item, "callspec") else {}


def is_near(item, module: str) -> bool:
    """Whether a test is about one module: it says so (`about`), or it calls the module by itself."""
    said = getattr(item.function, "about", "")
    return module.endswith(f".{said}") if said else calls(item.function, vars(item.module), module, set())


def calls(function, known: dict, module: str, seen: set[str]) -> bool:
    """Whether a test uses the module's functions itself, or by helpers of its own file, and not by an engine alone."""
    for name in names_in(function.__code__) & known.keys() - seen:
        value = known[name]
        if module in (getattr(value, "__module__", ""), value.__name__ if isinstance(value, ModuleType) else ""):
            return True
        own = isinstance(value, FunctionType) and value.__module__ == known["__name__"]
        if own and calls(value, known, module, seen | {name}):
            return True
    return False


def telling(item) -> int:
    """The order: what a phase promises says most about a mistake, then the part alone, whole runs, random schedules.

    Among equals, promises that no earlier phase makes come first: the exercise is about them.
    """
    if item.get_closest_marker("hypothesis"):
        return 4
    if not is_phases(item):
        return 1
    return 0 if item.path.stem.startswith("test_promises") else 2 if item.path.stem == "test_oracle" else 3


def pytest_exception_interact(node, call, report):
    if not failures:
        failures.append(facts_of(node, call.excinfo.value, report))


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        passed.append(order[report.nodeid])
        place = order[report.nodeid], near[report.nodeid]
        kept.setdefault(words(report.location[2].split("[")[0].split(".")[-1]), place)


def pytest_assertrepr_compare(op, left, right):
    """Explain a comparison in the student's terms. The tests have the actual value on the left, the expected one on the
    right."""
    if op != "==":
        return None
    if isinstance(left, dict) and isinstance(right, dict):
        key = next((key for key in [*right, *left] if left.get(key) != right.get(key)), None)
        left, right = left.get(key), right.get(key)
    if isinstance(left, Ending) and isinstance(right, Ending):
        if left.tokens == right.tokens:
            left, right = left.finish_reason, right.finish_reason
            return [f"expected an end by {right!r}, got {left!r}"]
        left, right = left.tokens, right.tokens
    return [f"expected {brief(right)}, got {brief(left)}"]


def brief(value) -> str:
    """Shorten a value to fit a sentence, a long list of tokens to its beginning."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 90 else f"{text[:80]} …"


def facts_of(node, error: BaseException, report) -> dict:
    error = bare(error)
    return {
        "order": order.get(node.nodeid, -1),
        "claim": claim(node) if isinstance(node, pytest.Item) else "",  # not in a test, but on the way to them
        "kind": type(error).__name__,
        "message": str(error),
        "frames": frames(error),
        "test_file": report.location[0],
        "test_line": (report.location[1] or 0) + 1,
        "printed": report.capstdout,
    }


def bare(error: BaseException) -> BaseException:
    """The exception itself: hypothesis wraps one that came only once in a group, and a timeout in there once more.

    pytest wraps an ImportError.
    """
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif error.__cause__ and (error.__traceback__ is None or isinstance(error, pytest.Collector.CollectError)):
            error = error.__cause__
        else:
            return error


def claim(node) -> str:
    """The test's name as words: what must hold, and for which model."""
    name = getattr(node, "originalname", None) or node.name
    if name == "runTest":  # hypothesis's state machines have no name of their own
        return "the books balance under random use"
    shape = parameters(node).get("shape")
    return words(name) + (f" ({SAID.get(shape, shape)})" if shape else "")


def words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def frames(error: BaseException) -> list[dict]:
    """The frames that the exception passed, from the test to where it was raised."""
    found = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if Path(code.co_filename).is_file():
            found.append(
                {
                    "file": code.co_filename,
                    "line": trace.tb_lineno,
                    "function": code.co_qualname.replace(".<locals>", ""),
                    "text": linecache.getline(code.co_filename, trace.tb_lineno).strip(),
                    "test": Path(code.co_filename).is_relative_to(ROOT / "tests"),
                }
            )
        trace = trace.tb_next
    return found


def pytest_sessionfinish(session):
    facts = {"passed": passed, "kept": kept, "failure": failures[0] if failures else None}
    shares = [share] if order else range(session.config.getoption("shares"))  # without a test, no process was forked
    for number in shares:
        Path(f"{session.config.getoption('facts')}.{number}").write_text(json.dumps(facts), encoding="utf-8")


def pytest_unconfigure():
    """End as a share ended that did not come to write its facts."""
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in beside]
    for code in codes:
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        if code > 1:
            os._exit(code)
