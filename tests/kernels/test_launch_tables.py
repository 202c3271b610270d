"""Which launch takes a product: what was measured on a device, and what a device takes that was never measured."""

import json
import math
from fnmatch import fnmatch
from pathlib import Path
from tomllib import loads

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch

from benchmarks.kernels import fused_kernels, racing
from gradus.device.capability import Capability
from gradus.kernels.core.tuning import KINDS, launch_of, stored_form
from gradus.kernels.linear import dispatch as linear
from gradus.kernels.linear.launch_tables import Measured, Unmeasured, matching, table_of
from gradus.kernels.linear.launches import (
    MOST_OUTPUTS,
    MOST_STREAMED_ROWS,
    FewRowsLaunch,
    GemvLaunch,
    SplitKLaunch,
    StreamedLaunch,
)
from gradus.kernels.linear.launches import MOST_ROWS as FEW_ROWS
from gradus.kernels.linear.splitk import MOST_ROWS

ROOT = Path(__file__).parents[2]
HOPPER = Capability(9, 0)
H200 = matching("NVIDIA H200", HOPPER)


@pytest.mark.parametrize(
    ("m", "n", "k", "launch"),
    [
        (1, 768, 3072, GemvLaunch(2, 1024, 4)),
        (1, 1024, 3072, StreamedLaunch(8, 1024, 2, 4, 100, 1)),
        (1, 262144, 640, GemvLaunch(4, 256, 2)),
        (32, 576, 1536, SplitKLaunch(16, 256, 4, 3, 4)),
        (16, 576, 1536, StreamedLaunch(16, 512, 1, 4, 100, 1)),
        (2, 576, 1536, FewRowsLaunch(16, 4, 12, 2)),
        (64, 128256, 4096, SplitKLaunch(64, 64, 1, 3, 4)),
        (64, 151936, 1024, None),
        (32, 576, 576, None),
    ],
)
def test_an_h200_takes_what_was_measured_on_one(m, n, k, launch):
    chosen = H200.choose(m, n, k)
    assert chosen == launch and type(chosen) is type(launch)


def test_few_rows_choose_as_the_next_number_of_rows_that_was_measured():
    assert H200.choose(3, 2048, 2048) == H200.choose(4, 2048, 2048) == FewRowsLaunch(16, 8, 8, 1)
    assert H200.choose(5, 2048, 2048) == H200.choose(8, 2048, 2048)
    assert H200.choose(33, 50257, 768) == H200.choose(64, 50257, 768)


def test_many_rows_and_none_go_to_cublas():
    assert H200.choose(MOST_ROWS + 1, 2048, 2048) is H200.choose(8192, 50257, 768) is H200.choose(0, 768, 768) is None


def test_a_shape_never_measured_takes_its_nearest_neighbors_launch():
    assert H200.choose(1, 2100, 2000) == H200.choose(1, 2048, 2048)
    assert isinstance(H200.choose(1, 5000, 5000), GemvLaunch)


def test_a_device_never_measured_takes_its_capabilitys_file_or_what_runs_anywhere():
    assert matching("NVIDIA H200", HOPPER) == H200
    assert matching("NVIDIA H100 80GB HBM3", HOPPER) == matching("NVIDIA GH200 480GB", HOPPER) != H200
    for able in (Capability(8, 0), Capability(8, 9), Capability(12, 0)):
        table = matching("a GPU that nobody has seen", able)
        assert isinstance(table, Unmeasured)
        assert table.choose(2, 4096, 4096) is None
        assert table.choose(1, 4096, 4096) == table.fused(1, 4096, 4096)


@pytest.mark.parametrize("k", [24, 576, 1000, 1024, 4096, 14336])
def test_the_launch_for_any_device_has_16_weights_per_thread_in_flight(k):
    launch = Unmeasured().fused(1, 4096, k)
    assert launch.rows * launch.columns == 16 * 32 * launch.warps


def test_a_fused_product_takes_gemv_even_where_cublas_wins_and_half_the_rows_with_a_gate(monkeypatch):
    monkeypatch.setattr(linear, "table_of", lambda device: H200)
    device = torch.device("meta")
    try:
        assert linear.choose_fused(1, 576, 576, False, device) == GemvLaunch(2, 256, 1)
        assert linear.choose_fused(1, 576, 576, True, device) == GemvLaunch(1, 256, 1)
        assert linear.choose_fused(2, 3072, 768, True, device) == GemvLaunch(1, 256, 1)
        assert linear.choose_fused(4, 3072, 768, False, device) is None, "slower than its parts"
        assert linear.choose_fused(8, 3072, 576, True, device) == FewRowsLaunch(16, 8, 3, 2), "it takes pairs of rows"
        assert linear.choose_fused(17, 3072, 576, True, device) is None, "more rows than a kernel takes"
        assert linear.choose(32, 576, 576, device) is None
    finally:
        linear.choose.cache_clear()
        linear.choose_fused.cache_clear()


def test_without_gluon_no_launch_is_one_of_a_kernel_in_gluon(monkeypatch):
    monkeypatch.setattr(linear, "table_of", lambda device: H200)
    monkeypatch.setattr(linear, "few_rows", None)
    choose, choose_fused = linear.choose.__wrapped__, linear.choose_fused.__wrapped__
    device = torch.device("meta")
    assert choose(4, 576, 1536, device) is None and choose_fused(4, 3072, 576, True, device) is None
    assert choose(1, 576, 1536, device) == GemvLaunch(2, 512, 2)


class OneRow(Unmeasured):
    """A table whose single rows are streamed, pairs of rows of a gate as they are."""

    def fused(self, m, n, k):
        return StreamedLaunch(4, 1024, 1, 8, 100, 1)


def test_a_streamed_row_takes_pairs_of_rows_and_columns_in_eights(monkeypatch):
    monkeypatch.setattr(linear, "table_of", lambda device: OneRow())
    choose, choose_fused = linear.choose.__wrapped__, linear.choose_fused.__wrapped__
    device = torch.device("meta")
    streamed = StreamedLaunch(4, 1024, 1, 8, 100, 1)
    assert choose(1, 896, 4864, device) == choose_fused(1, 9728, 896, True, device) == streamed
    assert choose(1, 896, 4860, device) == GemvLaunch(1, 2048, 4)
    assert choose_fused(1, 9728, 892, True, device) == GemvLaunch(1, 256, 1), "with a gate half of its rows"
    monkeypatch.setattr(linear, "streamed_gemv", None)
    assert choose(1, 896, 4864, device) == GemvLaunch(1, 2048, 4), "another Gluon"


@pytest.mark.parametrize("kilobytes", [0, 24, 100, 400])
@pytest.mark.parametrize(
    ("n", "k", "gated"), [(4864, 896, True), (896, 4864, False), (5, 24, False), (151936, 896, False)]
)
def test_slices_hold_all_outputs_and_fit_shared_memory(n, k, gated, kilobytes):
    launch = StreamedLaunch(8, 512, 2, 4, kilobytes, 2)
    for memory in (99 * 1024, 227 * 1024):
        slices = launch.slices(n, k, gated, 132, memory)
        assert slices.bytes <= memory and slices.stages >= 1
        assert min(n, 2 * 132) <= slices.programs <= n
        assert (slices.groups - 1) * launch.outputs < math.ceil(n / slices.programs) <= slices.groups * launch.outputs
        assert slices.groups * launch.outputs <= 2 * MOST_OUTPUTS


def test_a_launch_may_have_a_program_for_each_tile_of_outputs():
    slices = StreamedLaunch(16, 512, 1, 4, 100, 0).slices(576, 576, False, 132, 227 * 1024, rows=8)
    assert slices.programs == 36 and slices.groups == 1


def test_a_matrix_measured_with_few_rows_takes_its_neighbors_launch_with_more():
    assert isinstance(H200.choose(8, 1536, 1536), StreamedLaunch)
    assert H200.choose(32, 1536, 1536) == H200.choose(32, 2048, 2048)


def test_a_matrix_measured_with_something_fused_in_is_never_taken_for_its_neighbor():
    assert isinstance(H200.fused(8, 3000, 600), FewRowsLaunch), "as the nearest"
    assert H200.fused(2, 3072, 768) is not None
    assert H200.fused(8, 3072, 768) is None, "slower than its parts, whatever is best for its neighbors"


def test_where_triton_interprets_nothing_was_measured():
    assert isinstance(table_of(torch.device("cpu")), Unmeasured)


def test_a_devices_name_decides_and_each_device_is_asked(monkeypatch):
    names = {"cuda:0": "NVIDIA H200", "cuda:1": "NVIDIA L4"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[str(device)])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0) if device.index == 0 else (8, 9))
    tables = [table_of.__wrapped__(torch.device(name)) for name in names]
    assert tables[0] == H200 and isinstance(tables[1], Unmeasured)


def test_a_layer_that_is_faster_apart_keeps_its_parts():
    """Its products alone may be faster otherwise, but a layer is what a step waits for."""
    use, *_ = fused_kernels.uses("smollm2-135m")
    entry = {"m": 8} | use._asdict() | {"times": {fused_kernels.name_of(FewRowsLaunch(16, 8, 3, 1)): 1.0, "apart": 2.0}}
    assert launch_of(fused_kernels.chosen(entry, few_rows=True)) == FewRowsLaunch(16, 8, 3, 1)
    for times, slower in (({"few rows": 2.0, "apart": 3.0}, False), ({"few rows": 3.0, "apart": 2.0}, True)):
        found = fused_kernels.slower_in_a_chain([{"model": "smollm2-135m", "m": 8, "layer": times}])
        assert ((use.n, use.k, "rms", 8) in found) == slower
    assert fused_kernels.chosen(entry, few_rows=False) is None


def test_a_row_is_streamed_where_a_layer_is_fastest_with_it():
    """What a chain of products chose, product by product; `gemv`'s launches are those of each product alone."""
    qkv, output, *_ = fused_kernels.uses("qwen2.5-coder-0.5b")
    streamed, gemv = stored_form(StreamedLaunch(4, 1024, 1, 8, 100, 1)), stored_form(GemvLaunch(2, 256, 1))
    chains = [
        {"model": "qwen2.5-coder-0.5b", "m": 1, "layer": {"streamed": 2.0}, "launches": [streamed, gemv, gemv, gemv]},
        {"model": "qwen2.5-coder-0.5b", "m": 2, "layer": {"gemv": 3.0}},
    ]
    assert fused_kernels.swept_in_a_chain(chains) == {(qkv.n, qkv.k, "rms", 1): streamed}
    found = dict.fromkeys(("device", "capability", "torch", "triton"), "") | {"products": [], "chains": chains}
    times = {json.dumps(gemv): 2.0, "cublas": 9.0}
    found["few"] = [{"m": 1} | use._asdict() | {"times": times} for use in (qkv, output)]
    rows = {(row["n"], row["k"]): row for row in json.loads(fused_kernels.table(found))["matrices"]}
    assert rows[qkv.n, qkv.k]["fused"] == [streamed] and rows[output.n, output.k]["launches"] == [gemv]


def test_with_a_like_devices_results_only_what_was_fastest_there_races():
    use = fused_kernels.uses("smollm2-135m")[1]
    best, few = GemvLaunch(2, 256, 1), FewRowsLaunch(16, 4, 5, 2)
    found = {
        "products": [{"m": 1, "n": use.n, "k": use.k, "launches": [[stored_form(best), 1.0]]}],
        "few": [{"m": 2} | use._asdict() | {"times": {"cublas": 1.0, fused_kernels.name_of(few): 2.0}}],
    }
    known, unknown = fused_kernels.Known(found), fused_kernels.Known({})
    assert known.candidates(1, use.n, use.k) == [best] and known.fused_candidates(use, 2) == [few]
    assert len(known.candidates(8, use.n, use.k)) > 1 and len(known.fused_candidates(use, 4)) > 1
    assert best in unknown.candidates(1, use.n, use.k) and few in unknown.fused_candidates(use, 2)


@pytest.mark.parametrize("launch", [FewRowsLaunch(1, 2, 3, 4), SplitKLaunch(1, 2, 3, 4, 5), GemvLaunch(1, 2, 3)])
def test_a_launch_in_a_file_names_its_kind_and_its_fields(launch):
    stored = json.loads(json.dumps(stored_form(launch)))
    assert launch_of(stored) == launch and type(launch_of(stored)) is type(launch)
    assert type(launch_of(dict(reversed(stored.items())))) is type(launch), "in any order"
    with pytest.raises(TypeError, match="depth"):
        launch_of(stored | {"depth": 1})  # not another kind that has as many fields
    assert {GemvLaunch, FewRowsLaunch, StreamedLaunch, SplitKLaunch} <= {*KINDS.values()}


# -- the files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["fused_kernels.json", "fused_kernels_h100.json"])
def test_a_devices_file_is_what_the_benchmark_writes_of_its_results(file):
    found = json.loads((ROOT / "benchmarks/kernels" / file).read_text())
    path = racing.file_of(fused_kernels.MEASURED, found["device"])
    assert path.read_text() == fused_kernels.table(found)


def test_every_file_says_what_it_was_measured_with_and_goes_into_the_wheel():
    patterns = loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "gradus.kernels.linear"
    ]
    paths = sorted(fused_kernels.MEASURED.iterdir())
    for path in paths:
        stored = json.loads(path.read_text())
        assert {"device", "capability", "torch", "triton"} <= stored.keys()
        assert any(fnmatch(f"measured/{path.name}", pattern) for pattern in patterns)
    assert len(paths) == len(Measured.files())


def test_no_measured_launch_takes_more_rows_than_its_kernel():
    for table in Measured.files():
        assert table.rows[-1] <= MOST_ROWS
        for launches in [*table.launches["launches"].values(), *table.launches["fused"].values()]:
            of_rows = zip(table.rows, launches, strict=False)
            for rows, launch in of_rows:
                assert rows <= FEW_ROWS or not isinstance(launch, FewRowsLaunch)
                assert rows <= MOST_STREAMED_ROWS or not isinstance(launch, StreamedLaunch)


def test_no_measured_stream_has_more_programs_than_live_at_once():
    """No program waits for another to end."""
    for table in Measured.files():
        for (n, k), launches in [*table.launches["launches"].items(), *table.launches["fused"].items()]:
            for rows, launch in zip(table.rows, launches, strict=False):
                if isinstance(launch, StreamedLaunch):
                    slices = launch.slices(n, k, False, 132, table.capability.shared_memory, rows)
                    fit = table.capability.programs(warps=launch.warps, shared=slices.bytes)
                    assert fit >= launch.programs, (table.device, n, k, rows)
