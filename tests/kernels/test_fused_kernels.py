"""The kernels beside attention: interpreted on the CPU, and compiled for an H200."""

import math
import re

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.kernels.linear.few_rows import few_rows_kernel
from gradus.kernels.linear.gemv import gemv_kernel
from gradus.kernels.linear.launch_tables import matching
from gradus.kernels.linear.launches import WARP_COLUMNS, SplitKLaunch, StreamedLaunch
from gradus.kernels.linear.splitk import splitk_kernel
from gradus.kernels.linear.streamed_gemv import streamed_gemv_kernel
from gradus.kernels.linear.streamed_rows import streamed_rows_kernel
from gradus.kernels.rows.activation import activation_kernel
from gradus.kernels.rows.norm import norm_kernel, warps_of
from gradus.kernels.rows.rope_store import heads_together, rope_store_kernel
from gradus.kernels.step.places import places_kernel
from tests.kernels.ahead_of_time import H200, Resources, compile_for
from tests.kernels.interpreter import run_interpreted
from tests.kernels.test_every_gpu import samplers
from tests.pairwise import first

POINTER = "*bf16"


def test_interpreted_on_the_cpu_they_do_what_their_references_do():
    run_interpreted("interpreted_fused_kernels.py")


def compiled(kernel, constants: dict, scalars: dict[str, str], pointers: dict[str, str] | None = None, **options):
    """Every argument that is neither a constant nor named in `scalars` or `pointers` is a pointer to bfloat16."""
    constants = ({"PDL": False} if "PDL" in kernel.arg_names else {}) | constants
    names = [name for name in kernel.arg_names if name not in constants]
    return compile_for(H200, kernel, dict.fromkeys(names, POINTER) | scalars | (pointers or {}), constants, **options)


def assert_within(used: Resources, registers: int) -> None:
    assert used.registers <= registers and used.spilled == 0 and used.shared <= H200.shared_memory


def wide_loads(used: Resources) -> int:
    return len(re.findall(r"ld\.global[^;]*v4\.b32", used.assembly))


@pytest.mark.parametrize("width", [768, 4096])
def test_a_norm_reads_16_bytes_at_a_time(width):
    block = 1024 if width == 768 else 4096
    constants = {"D": width, "CENTER": False, "BLOCK": block, "delta_weight_ptr": None, "factor_ptr": None}
    constants["bias_ptr"] = None
    used = compiled(norm_kernel, constants, {"eps": "fp32"}, num_warps=warps_of(block))
    assert_within(used, 64)
    assert wide_loads(used) == 6  # x, delta and the weight, 16 values of each a thread


def test_rope_and_storing_fit_registers():
    constants = {"Q_HEADS": 16, "KV_HEADS": 8, "HALF": 64, "HEADS": heads_together(4096, 16, 8), "BLOCK": 64}
    constants |= {"PAGE": 16, "SPAN": 0, "growth_ptr": None, "value_eps": None}
    constants |= {"key_scales_ptr": None, "value_scales_ptr": None}
    numbers = {"slots_ptr": "*i64", "positions_ptr": "*i64"}
    assert_within(compiled(rope_store_kernel, constants, {"eps": "fp32"}, numbers, num_warps=1), 96)


def test_an_activation_reads_16_bytes_at_a_time():
    constants = {"ACTIVATION": "silu", "GATED": True, "BLOCK": 1024, "times_ptr": None, "stride": None}
    used = compiled(activation_kernel, constants, {"width": "i32:16"})
    assert_within(used, 48)
    assert wide_loads(used) == 2


PLAIN = {
    "bias_ptr": None,
    "residual_ptr": None,
    "gain_ptr": None,
    "shift_ptr": None,
    "ACTIVATION": None,
    "GATED": False,
    "ROWS": 1,
}
NUMBERS = {"M": "i32", "N": "i32:16", "eps": "fp32"}
GATED = PLAIN | {"ACTIVATION": "silu", "GATED": True}
del GATED["gain_ptr"]  # an RMSNorm before it
NORMED = {name: value for name, value in PLAIN.items() if name != "gain_ptr"}


@pytest.mark.parametrize(
    ("n", "k", "around"),
    first(
        [
            (4096, 14336, GATED),
            (768, 768, PLAIN),
            (2048, 2048, GATED),
            (768, 768, GATED),
            (2048, 2048, PLAIN),
            (4096, 14336, PLAIN),
        ],
        count=2,
    ),
)
def test_the_measured_gemv_of_a_shape_fits_registers(n, k, around):
    launch = matching("NVIDIA H200", H200).fused(1, n, k)
    constants = around | {"K": k, "BLOCK_N": launch.rows, "BLOCK_K": launch.columns}
    used = compiled(gemv_kernel, constants, NUMBERS, num_warps=launch.warps)
    assert_within(used, 168)
    assert wide_loads(used) == len(re.findall(r"ld\.global", used.assembly))


def test_weights_are_under_way_before_a_dependent_launch_waits():
    constants = PLAIN | {"K": 2048, "BLOCK_N": 1, "BLOCK_K": 2048, "PDL": True}
    code = compiled(gemv_kernel, constants, NUMBERS, num_warps=4).assembly
    start, wait = code.index("griddepcontrol.launch_dependents"), code.index("griddepcontrol.wait")
    assert start < code.index("ld.global") < wait < code.rindex("ld.global") < code.index("st.global")


# The matrix, and the launch that was fastest of all for SmolLM2's qkv, gate and up, and down.
@pytest.mark.parametrize(
    ("k", "around", "launch", "registers"),
    first(
        [
            (576, PLAIN, (16, 4, 5, 2), 88),
            (576, GATED, (16, 8, 3, 2), 96),
            (1536, PLAIN, (16, 4, 12, 2), 160),
            (8960, PLAIN, (16, 16, 7, 1), 128),
        ],
        count=2,
    ),
)
def test_a_few_rows_on_the_matrix_units_pass_no_shared_memory_on_their_way_there(k, around, launch, registers):
    outputs, warps, ahead, sums = launch
    constants = {name: value for name, value in around.items() if name != "shift_ptr"}
    constants |= {"K": k, "ROWS": 8, "BLOCK_N": outputs, "WARPS": warps, "AHEAD": ahead, "SUMS": sums, "PDL": True}
    used = compiled(few_rows_kernel, constants, NUMBERS, num_warps=warps)
    assert_within(used, registers)
    products = used.assembly.count("mma.sync.aligned.m16n8k16")
    assert products == ahead * 2 * (2 if around is GATED else 1)
    code = used.assembly
    wait, product = code.index("griddepcontrol.wait"), code.rindex("mma.sync")
    assert code.index("ld.global") < wait, "weights are under way before a dependent launch waits"
    assert not re.search(r"(ld|st)\.shared|matrix|bar\.sync", code[:product])
    assert code[product:].count("bar.sync") == 1


# Outputs and columns of Qwen2.5-Coder-0.5B's qkv, gate and up, and down; of Qwen2.5-Coder-1.5B's gate and up.
@pytest.mark.parametrize(
    ("n", "k", "around", "launch", "registers"),
    first(
        [
            (896, 4864, PLAIN, (4, 2560, 1, 8, 100, 1), 128),
            (4864, 896, GATED, (8, 512, 2, 4, 200, 1), 96),
            (1152, 896, NORMED, (4, 1024, 1, 8, 100, 1), 64),
            (4864, 896, GATED, (4, 1024, 1, 8, 100, 1), 80),
            (8960, 1536, GATED, (4, 512, 1, 8, 100, 1), 96),
        ],
        count=2,
    ),
)
def test_a_streamed_rows_weights_are_under_way_before_it_waits(n, k, around, launch, registers):
    launch = StreamedLaunch(*launch)
    slices = launch.slices(n, k, around is GATED, 132, H200.shared_memory)
    constants = {name: value for name, value in around.items() if name not in ("shift_ptr", "GATED", "ROWS")}
    constants |= {"K": k, "MATRICES": 1 + around["GATED"], "ROWS": launch.outputs, "COLUMNS": launch.columns}
    constants |= {"ROW_WARPS": launch.row_warps, "COLUMN_WARPS": launch.column_warps, "STAGES": slices.stages}
    constants |= {"GROUPS": slices.groups, "PLACES": 1 << (slices.groups - 1).bit_length(), "PDL": True}
    used = compiled(streamed_gemv_kernel, constants, NUMBERS, num_warps=launch.warps)
    assert_within(used, registers)
    assert used.shared <= slices.bytes
    code = used.assembly
    start, wait = code.index("griddepcontrol.launch_dependents"), code.index("griddepcontrol.wait")
    assert start < code.index("cp.async.cg.shared.global") < wait < code.index("cp.async.wait_group")
    copies = len(re.findall(r"cp\.async\.cg[^;]*, 0x10, ", code))
    assert copies == code.count("cp.async.cg") > 0, "16 bytes each"
    assert not re.search(r"ld\.shared\.(v2\.)?b(16|8)", code)


# Outputs and columns of Qwen2.5-Coder-1.5B's qkv, gate and up, and down; of Qwen2.5-Coder-0.5B's gate and up.
@pytest.mark.parametrize(
    ("n", "k", "around", "rows", "launch", "registers"),
    first(
        [
            (1536, 8960, PLAIN, 8, (16, 512, 1, 8, 100, 1), 96),
            (4864, 896, GATED, 16, (16, 512, 1, 8, 100, 1), 128),
            (2048, 1536, NORMED, 8, (16, 512, 1, 8, 100, 1), 96),
            (8960, 1536, GATED, 8, (16, 256, 1, 4, 100, 1), 168),
            (3072, 1024, GATED, 32, (16, 256, 1, 4, 100, 1), 255),
        ],
        count=2,
    ),
)
def test_streamed_rows_weights_are_under_way_before_they_wait(n, k, around, rows, launch, registers):
    launch = StreamedLaunch(*launch)
    slices = launch.slices(n, k, around is GATED, 132, H200.shared_memory, rows, around is not PLAIN)
    constants = {name: value for name, value in around.items() if name not in ("shift_ptr", "GATED", "ROWS")}
    constants |= {"K": k, "MATRICES": 1 + around["GATED"], "ROWS": rows, "OUTPUTS": launch.outputs, "PDL": True}
    constants |= {"COLUMNS": launch.columns, "WARPS": launch.warps, "GROUPS": slices.groups, "STAGES": slices.stages}
    used = compiled(streamed_rows_kernel, constants, NUMBERS, num_warps=launch.warps)
    assert_within(used, registers)
    assert used.shared <= slices.bytes
    code = used.assembly
    start, wait = code.index("griddepcontrol.launch_dependents"), code.index("griddepcontrol.wait")
    assert start < code.index("cp.async.cg.shared.global") < wait < code.index("cp.async.wait_group")
    copies = len(re.findall(r"cp\.async\.cg[^;]*, 0x10, ", code))
    assert copies == code.count("cp.async.cg") > 0, "16 bytes each"
    # with a norm, all tiles of a group; without one, the loop is over tiles
    tiles = 1 if around is PLAIN else math.ceil(k / launch.columns)
    parts = tiles * launch.columns // (launch.warps * WARP_COLUMNS) * (1 + around["GATED"])
    assert code.count("mma.sync") == parts * (WARP_COLUMNS // 16) * (rows // 8)
    assert len(re.findall(r"ld\.shared\.v4\.b32", code)) >= 4 * parts, "16 bytes of a row"


@pytest.mark.parametrize(
    ("launch", "rows"), first([((64, 128, 4, 5, 4), 16), ((16, 128, 1, 5, 4), 16), ((128, 64, 1, 3, 4), 64)], count=2)
)
def test_splitk_products_stream_weights_through_shared_memory(launch, rows):
    launch = SplitKLaunch(*launch)
    constants = {"EVEN_K": True, "BLOCK_M": rows, "BLOCK_N": launch.rows, "BLOCK_K": launch.columns}
    constants |= {"bias_ptr": None, "residual_ptr": None}
    if launch.splits == 1:
        constants |= {"partial_ptr": None, "arrived_ptr": None}
    scratch = {"partial_ptr": "*fp32", "arrived_ptr": "*i32"} if launch.splits > 1 else {}
    numbers = {"M": "i32", "N": "i32:16", "K": "i32:16", "chunk": "i32:16"}
    used = compiled(splitk_kernel, constants, numbers, scratch, num_warps=launch.warps, num_stages=launch.stages)
    assert_within(used, 128)
    assert "cp.async.cg" in used.assembly
    assert ("wgmma" if launch.rows >= 64 else "mma.sync") in used.assembly


def test_sampling_keeps_the_logarithm_exact():
    """The approximate one is wrong where it matters: close to 1, where the noise is least and tokens win."""
    block, row = (case.compiled(H200, early=True) for _, case in samplers())
    assert_within(block, 96)
    assert "lg2.approx" not in block.assembly and wide_loads(block) >= 2
    assert_within(row, 64)


def test_where_rows_are_stored_fits_registers():
    tables = {"slots_ptr": "*i32", "lengths_ptr": "*i32", "tables_ptr": "*i64", "places_ptr": "*i64"}
    numbers = dict.fromkeys(("rows", "group_stride", "slot_stride"), "i32")
    assert_within(compiled(places_kernel, {"PAGE": 16, "BLOCK": 128}, numbers, tables), 48)
