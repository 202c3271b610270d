"""Quantized models on the kernels, interpreted on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")


@pytest.mark.slow
def test_interpreted_on_the_cpu():
    """In a process of its own: Triton decides at its import whether it interprets."""
    file = Path(__file__).with_name("interpreted_quantized_model.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
