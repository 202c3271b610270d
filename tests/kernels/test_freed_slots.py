"""Slots that change owners, on a GPU's runner through Triton's interpreter."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from tests.kernels.interpreter import run_interpreted


def test_freed_slots_under_the_interpreter():
    run_interpreted("interpreted_freed_slots.py")
