"""The sum over ranks with its norm, and a rank's part on the kernels, by Triton's interpreter."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from tests.kernels.interpreter import run_interpreted


def test_interpreted():
    run_interpreted("interpreted_summed_norm.py", "interpreted_fused_part.py")
