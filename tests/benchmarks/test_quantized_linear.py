"""The benchmark of quantized products: rehearsed on tiny matrices with interpreted kernels, and the file it makes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch

from benchmarks.kernels import quantized_linear, racing
from benchmarks.kernels.quantized_linear import (
    LIBRARY,
    MATRICES,
    Contender,
    bad,
    cells,
    compilations,
    compile_one,
    refined,
    shown,
    table,
    tiles,
    winner,
)
from gradus.kernels.quantized.tile import TileLaunch
from gradus.kernels.quantized.tile_tables import ROWS, SCHEMES, MeasuredTiles
from tests.pairwise import first

ROOT = Path(__file__).parents[2]
REHEARSED = """
import json, sys
from benchmarks.kernels.quantized_linear import main
from tests.kernels.interpreted_e4m3 import rounded_to_nearest
from tests.kernels.interpreter import without_overhead
with rounded_to_nearest(), without_overhead():
    for options in json.loads(sys.argv[1]):
        sys.argv[1:] = ["--device", "cpu", "--tiny", "--workers", "0", *options]
        print("###", main())
"""


def rehearsed(*each: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the benchmark once for each list of options, all in one process."""
    command = [sys.executable, "-c", REHEARSED, json.dumps(each)]
    environment = os.environ | {"PYTHONPATH": f"src{os.pathsep}.", "TRITON_INTERPRET": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schemes", "sweep"), first([(["bf16", "int4"], []), (["bf16", *SCHEMES], ["--sweep"])]), ids=["chosen", "all"]
)
def test_it_checks_and_measures_and_goes_on_where_it_was(schemes, sweep, tmp_path):
    out, later = tmp_path / "found.json", tmp_path / "later.json"
    done = rehearsed(
        ["--rows", "3", "--schemes", ",".join(schemes), *sweep, "--out", str(out)],
        ["--rows", "3,70", "--schemes", "int4", "--parts", "products", "--out", str(later), "--before", str(out)],
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said, more, end = done.stdout.split("### 0\n")
    assert not end
    found = json.loads(out.read_text())
    assert len(found["checks"]) == 9 and not any(map(bad, found["checks"]))
    assert set(found["products"]) == {
        f"{scheme} {matrix} 3" for scheme in schemes for matrix in ("qkv", "gate_up", "head")
    }
    for entry in found["products"].values():
        assert winner(entry) and not entry["failed"] and min(entry["times"].values()) > 0
    assert "int4 3: qkv " in said and "0 wrong" in said and "0 launches failed" in said

    assert "int4 qkv 70" in more and "int4 qkv 3: " not in more  # measured before
    again = json.loads(later.read_text())
    assert again["products"]["int4 qkv 3"] == found["products"]["int4 qkv 3"]
    assert LIBRARY in again["products"]["int4 qkv 70"]["times"] and "int4 70: qkv" in shown(again)


def test_each_kind_of_kernel_is_compiled_once_and_what_fails_is_said():
    tasks = compilations(bench(), list(cells(bench(), [*SCHEMES], list(ROWS))), sweep=True)
    assert 400 < len(tasks) == len(set(tasks)) < 700
    assert {task.contender.launch.splits for task in tasks} == {1, 2}
    wrong = tasks[0]._replace(contender=Contender(TileLaunch(63, 128, 8, 1, 3, 4)))  # not interpreted: no kernel at all
    assert "launch=TileLaunch(rows=63" in racing.problem_of(compile_one, wrong)


def test_what_differs_from_the_reference_is_an_error():
    good = {"scheme": "int8", "m": 3, "n": 5, "k": 7, "values that differ": 0, "made wide": 1e-3}
    assert not bad(good)
    assert bad(good | {"values that differ": 1}) and bad(good | {"made wide": 0.1})
    assert bad(good | {"made wide": float("nan")})  # an element that was not written


# -- the device's file -----------------------------------------------------------------------------------------------


def made_up(slower: str = "none") -> dict:
    """Results of all cells; of int8, the library is the fastest with 8192 rows."""
    products = {}
    for cell in cells(bench(), ["int4", "int8"], list(ROWS)):
        n, k = MATRICES[cell.matrix]
        times = {str([64, 128, 8, 2, 4, 4, cell.m]): 3.0, f"{[64, 128, 8, 2, 4, 4, 0]} subnormal": 1.0}
        times |= {f"{[32, 128, 8, 2, 4, 2, 0]} waits": 2.0}
        times |= {LIBRARY: 0.5} if cell.scheme == "int8" and cell.m == 8192 else {}
        entry = {"scheme": cell.scheme, "matrix": cell.matrix, "m": cell.m, "n": n, "k": k, "times": times}
        products[cell.key] = entry
    products.pop(slower, None)
    header = {"device": "NVIDIA Y", "capability": [9, 0], "torch": "2", "triton": "3"}
    return header | {"products": products}


def bench() -> quantized_linear.Bench:
    return quantized_linear.Bench(torch.device("cpu"), torch.float16, MATRICES, 1.0, 1.0, 0.0)


def test_a_file_has_the_fastest_tiles_that_the_engine_would_run():
    """Not those that unpack in another way, nor those that wait where launches start early."""
    read = MeasuredTiles.read(json.loads(table(made_up())))
    assert read.device == "NVIDIA Y" and read.rows == ROWS and set(read.launches) == {"int4", "int8"}
    assert read.choose("int4", 16, 4096, 4096) == TileLaunch(64, 128, 8, 2, 4, 4, 16)
    assert read.choose("int8", 8192, 4096, 14336) is None
    assert read.choose("int8", 8192, 128256, 4096) == TileLaunch(64, 128, 8, 2, 4, 4, 256)  # more logits as 256


def test_a_scheme_that_was_not_measured_whole_is_left_out():
    assert set(MeasuredTiles.read(json.loads(table(made_up("int4 down 64")))).launches) == {"int8"}


# -- which tiles race ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("m", ROWS)
def test_every_number_of_rows_has_tiles_to_race(scheme, m):
    for n, k in MATRICES.values():
        raced = list(tiles(scheme, m, n, k))
        assert raced and len(set(raced)) == len(raced) <= 64
        assert all(launch.tokens >= min(m, 64) for launch in raced)
        assert scheme != "fp8-block" or {launch.columns for launch in raced} == {128}


def test_the_best_are_tried_with_weights_fetched_ahead_and_without_an_early_start():
    best = Contender(TileLaunch(64, 128, 8, 2, 4, 4), early=True)
    more = refined([best, Contender(None)])
    assert {each.launch.ahead for each in more if each.early} == {2, 4, 8}
    assert sum(not each.early for each in more) == 1
    assert best not in more


def test_with_a_like_devices_results_only_the_fastest_tiles_of_a_cell_race():
    found = json.loads((ROOT / "benchmarks/kernels/quantized_linear.json").read_text())
    known = quantized_linear.fastest_tiles(found)
    device = torch.device("cpu")
    bench = quantized_linear.Bench(device, torch.float16, MATRICES, 1.0, 1.0, 0.0, known)
    cell = quantized_linear.Cell("int4", "qkv", 8)
    times = found["products"][cell.key]["times"]
    fastest = quantized_linear.launch_named(min(times, key=times.__getitem__))
    racing = [each.launch for each in quantized_linear.contenders(bench, cell, sweep=True)]
    assert fastest._replace(ahead=0) in racing and len(racing) <= 1 + quantized_linear.MOST_KNOWN
    more = quantized_linear.contenders(bench._replace(known={}), cell, sweep=True)
    assert len(more) > len(racing)


@pytest.mark.parametrize("file", ["quantized_linear.json", "quantized_linear_h100.json"])
def test_a_devices_file_is_what_the_benchmark_writes_of_its_results(file):
    found = json.loads((ROOT / "benchmarks/kernels" / file).read_text())
    assert racing.file_of(quantized_linear.FILES, found["device"]).read_text() == table(found)
