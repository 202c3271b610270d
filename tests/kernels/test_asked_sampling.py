"""The draw of whatever slots ask for: interpreted on the CPU, and compiled for an H200."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from tests.kernels.ahead_of_time import H200
from tests.kernels.test_every_gpu import asked_samplers


@pytest.mark.slow
def test_interpreted_on_the_cpu_it_follows_the_definition():
    """In a process of its own: Triton decides at its import whether it interprets."""
    file = Path(__file__).with_name("interpreted_asked_sampling.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


REGISTERS = {"statistics": 112, "narrow and report": 128, "search": 128, "asked block": 96, "asked row": 64}


@pytest.mark.slow
def test_its_kernels_fit_registers_and_keep_the_logarithm_exact():
    """The approximate logarithm is wrong where it matters: close to 1, where the noise is least and tokens win."""
    for name, case in asked_samplers():
        used = case.compiled(H200, early=True)
        assert used.registers <= REGISTERS[name] and used.spilled == 0, f"{name}: {used[:3]}"
        assert used.shared <= H200.shared_memory
        if name in ("narrow and report", "asked block"):
            assert "lg2.approx" not in used.assembly, name
