"""The judge of an exercise: a pytest plugin that lets a student's file stand in for the module that it rewrites.

    pytest -p tests.phases.judge tests/phases -x --phase=p01 --module=phases.p01_kv_cache.contiguous --file=mine.py
           --facts=facts.json

runs the tests of one phase, the most telling ones first, and writes down what the first failure looked like:
`gradus check` makes a sentence of it. Test files outside tests/phases, named beside it, are about a part that no phase
owns (tests/cache), and run whole.
"""

import json
import linecache
import re
from pathlib import Path

import pytest

from gradus.exercises.substitute import substitute

ROOT = Path(__file__).parents[2]
PHASES = ROOT / "tests" / "phases"
NAME = re.compile(r"p\d\d")
failures: list[dict] = []


def pytest_addoption(parser):
    group = parser.getgroup("gradus check")
    for name in ("phase", "module", "file", "facts"):
        group.addoption(f"--{name}", required=True)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Before any conftest can import the module."""
    options = early_config.known_args_namespace
    substitute({options.module: Path(options.file)})


def pytest_collection_modifyitems(config, items):
    """Of the phases' tests, keep those that take this phase as a parameter; of a part's own, all."""
    phase = config.getoption("phase")
    earlier = {item.function for item in items if is_phases(item) and "" < phase_of(item) < phase}
    meant = [item for item in items if not is_phases(item) or phase_of(item) == phase]
    items[:] = sorted(meant, key=lambda item: (telling(item), is_phases(item) and item.function in earlier))


def is_phases(item) -> bool:
    return item.path.is_relative_to(PHASES)


def phase_of(item) -> str:
    """p01, say; "" for a test of the final engine, or of no phase in particular."""
    named = (value for value in parameters(item).values() if isinstance(value, str) and NAME.fullmatch(value))
    return next(named, "")


def parameters(item) -> dict:
    return item.callspec.params if hasattr(item, "callspec") else {}


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


def facts_of(node, error: BaseException, report) -> dict:
    error = bare(error)
    return {
        "claim": claim(node),
        "kind": type(error).__name__,
        "message": str(error),
        "frames": frames(error),
        "test_file": report.location[0],
        "test_line": report.location[1] + 1,
        "printed": report.capstdout,
    }


def bare(error: BaseException) -> BaseException:
    """The exception itself: hypothesis wraps one that came only once in a group, and a timeout in there once more."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif error.__traceback__ is None and error.__cause__ is not None:
            error = error.__cause__
        else:
            return error


def claim(node) -> str:
    """The test's name as words: what must hold, and for which model."""
    name = getattr(node, "originalname", None) or node.name
    if name == "runTest":  # hypothesis's state machines have no name of their own
        return "the books balance under random use"
    shape = parameters(node).get("shape")
    return name.removeprefix("test_").replace("_", " ") + (f" ({shape})" if shape else "")


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
    passed = session.testscollected - session.testsfailed
    facts = {"passed": passed, "failure": failures[0] if failures else None}
    Path(session.config.getoption("facts")).write_text(json.dumps(facts), encoding="utf-8")
