"""The kernels of a step that verifies drafts, interpreted on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")


@pytest.mark.slow
@pytest.mark.timeout(600)  # a slow processor takes five minutes for the second
@pytest.mark.parametrize("name", ["interpreted_drafts.py", "interpreted_speculation.py"])
def test_interpreted_on_the_cpu(name):
    """In a process of its own: Triton decides at its import whether it interprets."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name(name))]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
