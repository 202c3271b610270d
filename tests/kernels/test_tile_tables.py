"""Which tile takes a product with a quantized matrix, on a device that was measured and on one that was not."""

from pathlib import Path
from tomllib import loads

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch

from gradus.device.capability import Capability
from gradus.execution.gpu.warm_up import steps
from gradus.kernels.core.tuning import stored_form
from gradus.kernels.quantized import tile_tables
from gradus.kernels.quantized.tile import TileLaunch
from gradus.kernels.quantized.tile_tables import (
    FEWEST_TILES,
    PROGRAMS,
    SCHEMES,
    MeasuredTiles,
    choose_tile,
    library_multiplies,
    unmeasured,
    unmeasured_tile,
)

ROOT = Path(__file__).parents[2]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16, FP32 = torch.bfloat16, torch.float32
PROCESSORS = 128


@pytest.fixture
def hopper(monkeypatch):
    return on(monkeypatch, Capability(9, 0))


def on(monkeypatch, able):
    monkeypatch.setattr(tile_tables, "capability", lambda device: able)
    monkeypatch.setattr(tile_tables, "table_of", lambda device: None)
    monkeypatch.setattr(tile_tables, "multiprocessors", lambda device: PROCESSORS)
    choose_tile.cache_clear()
    return able


@pytest.fixture(autouse=True)
def _forget():
    choose_tile.cache_clear()
    yield
    choose_tile.cache_clear()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("n", "k"), [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)])
def test_few_rows_have_programs_for_every_multiprocessor_and_loops_worth_starting(scheme, n, k):
    for m in (1, 8, 16, 33, 64):
        launch = unmeasured_tile(scheme, m, n, k, PROCESSORS)
        assert launch.tokens >= m and launch.tokens < 2 * max(m, 16)
        assert -(-n // launch.rows) * launch.splits >= PROGRAMS * PROCESSORS
        assert -(-k // 128) // launch.splits >= FEWEST_TILES


def test_a_hundred_rows_are_cut_into_programs_enough():
    for m in (65, 128, 200, 256):
        launch = unmeasured_tile("int8", m, 4096, 4096, PROCESSORS)
        assert 64 * -(-m // launch.tokens) * launch.splits >= 128 and launch.splits <= 2


def test_a_small_matrix_is_not_cut_into_loops_that_are_all_beginning():
    assert unmeasured_tile("int4", 1, 576, 576, PROCESSORS).splits == 1


def test_many_rows_go_to_the_library_where_it_has_the_product(hopper):
    assert choose_tile("int4", 256, 4096, 4096, BF16, CUDA) is not None
    assert choose_tile("int4", 257, 4096, 4096, BF16, CUDA) is None
    assert choose_tile("fp8", 64, 4096, 4096, BF16, CUDA) is not None
    assert choose_tile("fp8", 65, 4096, 4096, BF16, CUDA) is None
    assert choose_tile("int8", 8192, 4096, 4096, BF16, CUDA) == choose_tile("fp8-block", 8192, 4096, 4096, BF16, CUDA)


def test_a_library_that_cannot_multiply_is_never_chosen(hopper, monkeypatch):
    tall = unmeasured_tile("fp8", 8192, 4096, 4096, PROCESSORS)
    assert choose_tile("fp8", 8192, 50257, 4096, BF16, CUDA) == tall  # an odd number of rows
    assert choose_tile("fp8", 8192, 4096, 4096, torch.float16, CUDA) == tall
    assert choose_tile("fp8", 8192, 4096, 4096, BF16, CPU) == tall
    assert not library_multiplies("int8", 16, 4096, 4096, BF16, CUDA)
    assert library_multiplies("int8", 17, 4096, 4096, BF16, CUDA)
    on(monkeypatch, Capability(8, 9))
    assert choose_tile("fp8", 8192, 4096, 4096, BF16, CUDA) == tall


def test_wide_floats_of_4_bits_go_to_the_library_early():
    assert choose_tile("int4", 16, 4096, 4096, FP32, CPU) is not None
    assert choose_tile("int4", 17, 4096, 4096, FP32, CPU) is None


def test_a_gate_s_outputs_are_half_the_rows(hopper):
    half, all_rows = (unmeasured("int4", 1, n, 4096, PROCESSORS) for n in (14336, 28672))
    assert choose_tile("int4", 1, 28672, 4096, BF16, CUDA, gated=True) == half
    assert (half.splits, all_rows.splits) == (2, 1)


def test_a_measured_device_takes_what_was_fastest_on_it(monkeypatch):
    tile, taller = [64, 128, 8, 4, 5, 2, 3], [128, 128, 64, 1, 3, 8, 0]
    lower, higher = (stored_form(TileLaunch(*launch)) for launch in (tile, taller))
    matrices = [{"n": 4096, "k": 4096, "launches": [lower, higher, None]}]
    matrices += [{"n": 28672, "k": 4096, "launches": [higher, higher, higher]}]
    stored = {"device": "X", "capability": [9, 0], "rows": [1, 64, 8192], "schemes": {"int4": matrices}}
    table = MeasuredTiles.read(stored)
    monkeypatch.setattr(tile_tables, "table_of", lambda device: table)
    assert choose_tile("int4", 1, 4000, 4100, BF16, CPU) == TileLaunch(*tile)
    assert choose_tile("int4", 2, 4096, 4096, BF16, CPU) == TileLaunch(*taller)
    assert choose_tile("int4", 65, 4096, 4096, BF16, CPU) is choose_tile("int4", 9999, 4096, 4096, BF16, CPU) is None
    assert choose_tile("int4", 9999, 30000, 4096, BF16, CPU) == TileLaunch(*taller)
    assert choose_tile("int8", 1, 4096, 4096, BF16, CPU) == unmeasured("int8", 1, 4096, 4096, 1)  # not in the file


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tallest", [64, 256])
def test_warm_up_meets_every_tile_that_a_prompt_can_take(scheme, tallest, hopper):
    """What is compiled follows from the tile alone: no kernel is specialized for its number of rows."""

    def met(lengths):
        return {choose_tile(scheme, m, 4096, 4096, BF16, CUDA) for m in lengths}

    lengths = {sum(counts) for counts in steps(tallest, most=8192, crowd=64)}
    assert met(lengths) == met(range(2, 1200)) | met([8192])


def test_files_go_into_the_wheel():
    patterns = loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "gradus.kernels.quantized"
    ]
    assert "measured/*.json" in patterns


def test_sums_are_shared_by_programs_that_have_a_share():
    launch = TileLaunch(64, 128, 8, splits=8, stages=4, warps=4)
    shared = launch.shared_sums(3, 130, 130, 9, FP32, CPU)  # 9 tiles: 5 programs of two, but for the last
    assert shared.grid == (3, 5, 1) and shared.chunk == 2 and shared.partial.shape == (5, 3, 130)
    assert launch.shared_sums(3, 130, 130, 1, FP32, CPU).partial is None
