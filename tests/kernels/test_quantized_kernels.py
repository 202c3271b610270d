"""The kernels of quantized matrices: interpreted on the CPU, and compiled for an H200."""

import re

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch
import triton.language as tl

from gradus.kernels.quantized.eight_bits import eight_bit_kernel, most_registers
from gradus.kernels.quantized.int4 import int4_kernel, widen_kernel
from gradus.kernels.quantized.quantize import PIECE, quantize_in_pieces_kernel, quantize_kernel
from gradus.kernels.quantized.tile import TOGETHER, TileLaunch
from gradus.kernels.rows.norm import warps_of
from tests.kernels.ahead_of_time import H200, Resources, compile_for
from tests.kernels.interpreter import run_interpreted
from tests.pairwise import first


def test_interpreted_on_the_cpu_they_do_what_their_references_do():
    run_interpreted("interpreted_quantized.py")


def assert_within(used: Resources, registers: int) -> None:
    assert used.registers <= registers and used.spilled == 0 and used.shared <= H200.shared_memory


# -- int4 ------------------------------------------------------------------------------------------------------------


def int4_compiled(tokens: int, rows: int = 64, warps: int = 4, *, kind=tl.bfloat16, **more) -> Resources:
    pointer = "*bf16" if kind == tl.bfloat16 else "*fp16"
    constants = {"bias_ptr": None, "residual_ptr": None, "ACTIVATION": None, "GATED": False, "EVEN_K": True}
    constants |= {
        "GROUPS": 1,
        "KIND": kind,
        "PAIRED": True,
        "BLOCK_M": tokens,
        "BLOCK_N": rows,
        "GROUP_M": TOGETHER,
    }
    constants |= {"PDL": False} | more
    types = {"x_ptr": pointer, "out_ptr": pointer, "words_ptr": "*i16", "pairs_ptr": "*i32"}
    types |= {"partial_ptr": "*fp32", "arrived_ptr": "*i32", "M": "i32", "chunk": "i32", "ahead": "i32"}
    types |= dict.fromkeys(("N", "K", "stride"), "i32:16")
    return compile_for(H200, int4_kernel, types, constants, num_warps=warps, num_stages=4)


@pytest.mark.parametrize(
    ("tokens", "registers", "groups"),
    first(
        [(8, 72, 4), (64, 112, 1), (16, 72, 2), (8, 72, 1), (8, 72, 2), (16, 72, 1), (16, 72, 4), (64, 112, 2),
         (64, 112, 4)],
        count=2,
    ),
)  # fmt: skip
def test_4_bit_weights_go_from_shared_memory_to_the_tensor_cores_in_registers(tokens, registers, groups):
    used = int4_compiled(tokens, GROUPS=groups)
    assert_within(used, registers)
    assert ("wgmma" if tokens >= 16 else "mma.sync") in used.assembly
    assert "cp.async.cg" in used.assembly and "st.shared.v" not in used.assembly.split("mma")[0]


@pytest.mark.parametrize("kind", [tl.float16, tl.bfloat16])
def test_a_pair_of_weights_takes_two_multiplications(kind):
    """16 words, so 64 weights, per thread."""
    used = int4_compiled(8, kind=kind)
    assert len(re.findall(r"fma\.rn\.b?f16x2", used.assembly)) == 32 * 2
    assert_within(used, 64)


def test_a_gate_s_two_matrices_fit_registers():
    assert_within(int4_compiled(8, GATED=True, ACTIVATION="silu"), 96)
    assert_within(int4_compiled(64, GATED=True, ACTIVATION="silu"), 168)


def test_before_a_dependent_launch_waits_weights_are_asked_for():
    code = int4_compiled(8, PDL=True).assembly
    assert code.index("launch_dependents") < code.index("prefetch.global.L2") < code.index("griddepcontrol.wait")
    assert code.index("griddepcontrol.wait") < code.index("cp.async")


def test_a_matrix_is_made_wide_with_16_bytes_per_access():
    types = {
        "words_ptr": "*i16",
        "pairs_ptr": "*i32",
        "ROWS": "i32:16",
        "K": "i32:16",
        "first": "i32:16",
        "count": "i32",
    }
    constants = {"GROUPS": 1, "KIND": tl.bfloat16, "BLOCK_N": 64, "PDL": False}
    used = compile_for(H200, widen_kernel, types | {"out_ptr": "*bf16"}, constants, num_warps=4)
    assert_within(used, 64)
    assert len(re.findall(r"st\.global[^;]*v4\.b32", used.assembly)) == 8


# -- 8 bits --------------------------------------------------------------------------------------------------------


def eight_compiled(
    kind: str,
    launch: tuple[int, int, int, int, int],
    *,
    blocks: bool = False,
    residual: bool = False,
    maxnreg: int | None = None,
    **more,
) -> Resources:
    """launch: rows, columns, tokens, stages, warps."""
    rows, columns, tokens, stages, warps = launch
    constants = {"bias_ptr": None, "residual_ptr": None, "EVEN_K": True, "ACTIVATION": None, "GATED": False}
    constants |= {"BLOCK_M": tokens, "BLOCK_N": rows, "BLOCK_K": columns, "GROUP_M": TOGETHER, "PDL": False}
    constants |= ({} if blocks else {"block_ptr": None}) | more
    types = {"x_ptr": kind, "weight_ptr": kind, "out_ptr": "*bf16", "block_ptr": "*i64"}
    types |= {
        "x_scale_ptr": "*fp32",
        "scale_ptr": "*fp32",
        "arrived_ptr": "*i32",
        "M": "i32",
        "chunk": "i32",
        "ahead": "i32",
    }
    types |= {"partial_ptr": "*i32" if kind == "*i8" else "*fp32"} | dict.fromkeys(("N", "K", "stride"), "i32:16")
    if residual:
        del constants["residual_ptr"]
        types["residual_ptr"] = "*bf16"
    types = {name: kind for name, kind in types.items() if name not in constants}
    options = {} if maxnreg is None else {"maxnreg": maxnreg}
    return compile_for(H200, eight_bit_kernel, types, constants, num_warps=warps, num_stages=stages, **options)


INTS, FLOATS, BLOCKS = (
    ("*i8", "s32.s8.s8", False),
    ("*fp8e4nv", "f32.e4m3.e4m3", False),
    ("*fp8e4nv", "f32.e4m3.e4m3", True),
)
SMALL, MIDDLE, LARGE = ((64, 128, 16, 4, 4), 64), ((64, 128, 64, 4, 4), 160), ((128, 128, 128, 3, 8), 248)


@pytest.mark.parametrize(
    ("kind", "instruction", "blocks", "launch", "registers"),
    first(
        [(*INTS, *LARGE), (*FLOATS, *MIDDLE), (*BLOCKS, *SMALL), (*INTS, *SMALL), (*INTS, *MIDDLE), (*FLOATS, *SMALL),
         (*FLOATS, *LARGE), (*BLOCKS, *MIDDLE), (*BLOCKS, *LARGE)],
        count=3,
    ),
)  # fmt: skip
def test_8_bit_numbers_meet_in_the_tensor_cores_as_they_are(kind, instruction, blocks, launch, registers):
    used = eight_compiled(kind, launch, blocks=blocks)
    assert_within(used, registers)
    assert f"wgmma.mma_async.sync.aligned.m64n{min(launch[2], 128)}k32.{instruction}" in used.assembly
    assert "cvt.rn.f16x2.e4m3x2" not in used.assembly  # converted before they meet, as a narrower tile's are


def test_sums_of_e4m3_are_added_in_float32_every_128_products():
    code = eight_compiled("*fp8e4nv", (64, 128, 16, 4, 4)).assembly
    start = code.index("wgmma.mma_async")
    assert "add.f32" in code[start : code.index("bra", start)] or "add.rn.f32" in code[start : code.index("bra", start)]


def test_an_8_bit_gate_s_two_matrices_fit_registers():
    for kind in ("*i8", "*fp8e4nv"):
        assert_within(eight_compiled(kind, (64, 128, 16, 4, 4), GATED=True, ACTIVATION="silu"), 96)


@pytest.mark.parametrize(
    ("width", "group", "kind"),
    first(
        [(14336, 16384, "*i8"), (4096, 128, "*fp8e4nv"), (4096, 4096, "*i8"), (4096, 128, "*i8"), (14336, 128, "*i8"),
         (4096, 4096, "*fp8e4nv"), (14336, 16384, "*fp8e4nv"), (14336, 128, "*fp8e4nv")],
        count=2,
    ),
)  # fmt: skip
def test_a_row_is_rounded_out_of_registers(width, group, kind):
    block = 4096 if width == 4096 else 16384
    constants = {"K": width, "LARGEST": 448.0, "FLOOR": 1e-36, "GROUP": group, "BLOCK": block, "PDL": False}
    constants |= {"ACTIVATION": None}
    types = {"x_ptr": "*bf16", "gain_ptr": "*bf16", "values_ptr": kind, "scales_ptr": "*fp32"}
    types |= {"M": "i32", "eps": "fp32"}
    used = compile_for(H200, quantize_kernel, types, constants | {"shift_ptr": None}, num_warps=warps_of(block))
    assert_within(used, 128)
    assert len(re.findall(r"ld\.global[^;]*v4\.b32", used.assembly)) >= 4
    assert used.assembly.count("div.rn.f32") > block // (32 * warps_of(block))  # each value's, and the scales'


@pytest.mark.parametrize("kind", first(["*fp8e4nv", "*i8"]))
def test_pieces_of_a_row_leave_room_for_other_programs(kind):
    constants = {"K": 14336, "LARGEST": 448.0, "FLOOR": 1e-36, "BLOCK": PIECE, "PDL": False}
    types = {"x_ptr": "*bf16", "values_ptr": kind, "scales_ptr": "*fp32"}
    used = compile_for(H200, quantize_in_pieces_kernel, types, constants, num_warps=8)
    assert_within(used, 64)  # of 256 threads each: four programs at once


@pytest.mark.parametrize("kind", first(["*i8", "*fp8e4nv"]))
def test_what_a_gate_lets_through_is_rounded_out_of_registers(kind):
    constants = {"K": 14336, "LARGEST": 448.0, "FLOOR": 1e-36, "GROUP": 16384, "BLOCK": 16384, "PDL": False}
    constants |= {"ACTIVATION": "silu", "gain_ptr": None, "shift_ptr": None}
    types = {"x_ptr": "*bf16", "values_ptr": kind, "scales_ptr": "*fp32", "M": "i32", "eps": "fp32"}
    assert_within(compile_for(H200, quantize_kernel, types, constants, num_warps=16), 64)  # two programs at once


def test_a_prompt_s_tiles_of_integers_leave_room_for_a_second_program():
    """With the sum onto the residual stream, too: it comes after the loop, so what it spills is spilled once."""
    launch = TileLaunch(128, 128, 128, 1, 3, 8)
    assert most_registers(launch, torch.int8) == 128 and most_registers(launch, torch.float8_e4m3fn) is None
    shape = (launch.rows, launch.columns, launch.tokens, launch.stages, launch.warps)
    alone = eight_compiled("*i8", shape, maxnreg=128)
    onto = eight_compiled("*i8", shape, residual=True, maxnreg=128)
    assert_within(alone, 128)
    assert onto.registers <= 128 and onto.spilled <= 64 and 2 * onto.shared <= H200.shared_memory


# -- arithmetic that no interpreter has ------------------------------------------------------------------------------


def test_tricks_with_bits_give_the_scheme_s_weights():
    """The instructions' arithmetic, one after the other, in exact numbers: float64 rounded once."""
    generator = torch.Generator().manual_seed(0)
    q = torch.arange(16).repeat_interleave(2000)
    scale = torch.rand(len(q), generator=generator).mul(0.1).bfloat16().double()
    offset = torch.randn(len(q), generator=generator).bfloat16().double()
    expected = (q * scale + offset).bfloat16()
    magic = (q.short() | 0x4300).view(torch.bfloat16).double()
    assert torch.equal(((magic - 128) * scale + offset).bfloat16(), expected)
    half = (q.short() | 0x6400).view(torch.float16).double() - 1024
    assert torch.equal(half, q.double())
