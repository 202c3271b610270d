"""The race of compiled kernels and torch on a CPU, and the table that it writes."""

import json

import pytest

pytest.importorskip("numba")

from benchmarks.kernels import cpu_rows
from gradus.kernels.cpu import rows


def measured(**milliseconds: list[tuple[int, float, float]]) -> dict:
    """Return results with these times by kind: (rows, in the kernels, in torch)."""
    found = [
        {"kind": kind, "hidden_size": 64, "tokens": count, "kernels_ms": ours, "torch_ms": torchs}
        for kind, times in milliseconds.items()
        for count, ours, torchs in times
    ]
    return {
        "commit": "0123",
        "hardware": {"processor": "A Processor (TM) 7", "instruction sets": "asimd sve"},
        "rows": found,
    }


def test_kernels_are_taken_as_far_as_they_are_no_slower(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_rows, "MEASURED", tmp_path)
    found = measured(
        bfloat16=[(8, 1, 2), (16, 2, 3), (32, 4, 3)], int8=[(8, 3, 2), (16, 5, 4), (32, 6, 9)], int4=[(32, 1, 2)]
    )
    file = cpu_rows.write_table(found)
    assert file.name == "a-processor-tm-7-asimd-sve.json"
    most = json.loads(file.read_text())["most_rows"]
    assert most == {"bfloat16": {"64": 16}, "int8": {"64": 8}, "int4": {"64": 32}}


def test_what_is_stored_is_within_what_the_kernels_can():
    for kinds in rows.stored().values():
        for widths in kinds.values():
            assert all(cpu_rows.ALWAYS <= most <= cpu_rows.ROWS[-1] for most in widths.values())


def test_both_ways_are_measured():
    found = cpu_rows.measure("random:tiny-llama", "bfloat16", rounds=1)
    assert [row["tokens"] for row in found] == list(cpu_rows.ROWS[: len(found)])
    assert len(found) == len(cpu_rows.ROWS) or found[-1]["kernels_ms"] > found[-1]["torch_ms"]
    assert all(row["kernels_ms"] > 0 and row["torch_ms"] > 0 and row["kind"] == "bfloat16" for row in found)
