"""Engines under Python's own collector, in a process that has little to collect.

A full collection looks through all that is alive: in a process that has collected ten thousand tests it takes seconds.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.forked import run_forked

HERE = Path(__file__).parent


@pytest.mark.slow
def test_engines_are_collected_and_spared_as_in_a_program():
    files = [str(HERE / name) for name in ("collected_closing.py", "collected_garbage.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = run_forked(command, cwd=Path.cwd(), env=os.environ | {"GRADUS_TEST_COLLECTOR": "1"}, timeout=170)
    assert done.returncode == 0, done.stdout[-6000:]
