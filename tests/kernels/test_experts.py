"""Kernels of mixtures of experts: interpreted on the CPU, and compiled for an H200."""

import json
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from benchmarks.kernels import experts as race
from gradus.kernels.experts import launches
from tests.kernels.ahead_of_time import H200
from tests.kernels.interpreter import run_interpreted
from tests.kernels.test_every_gpu import experts


def test_interpreted_they_are_the_reference():
    run_interpreted("interpreted_experts.py")


def test_interpreted_models_with_experts_give_the_models_tokens():
    run_interpreted("interpreted_mixture_model.py")


def test_they_spill_nothing_and_leave_room_for_several_programs():
    """A program waits for memory most of the time, so several share a multiprocessor: 512 of its 2048 threads at least
    with the registers that one takes."""
    for name, case in experts():
        used = case.compiled(H200, early=True)
        assert used.spilled == 0 or "groups" in name, name
        assert used.registers <= 128 or "groups" in name, name
        if "few" in name:
            assert "wgmma" in used.assembly or "mma.sync" in used.assembly, name


def test_the_table_is_what_the_race_found():
    """But for the numbers of rows that grouped products, raced apart, are faster for."""
    found = json.loads(Path(race.__file__).with_suffix(".json").read_text(encoding="utf-8"))
    written = {name: getattr(launches, name) for name in ("MixtureLaunch", "FewLaunch")}
    raced = eval(race.table_text(found).partition(" = ")[2], written)
    few = {sizes: {rows: launch for rows, launch in each.items() if launch} for sizes, each in launches.FASTEST.items()}
    assert few == {sizes: {rows: each[rows] for rows in few[sizes]} for sizes, each in raced.items()}
