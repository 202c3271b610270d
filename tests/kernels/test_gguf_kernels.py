"""The kernels of GGUF's blocks: interpreted on the CPU, and compiled for an H200."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.kernels.quantized.gguf import MOST_ROWS, NUMBERS, gguf_kernel, launch_for, widen_blocks_kernel
from gradus.kernels.quantized.tile import TOGETHER
from tests.kernels.ahead_of_time import H200, Resources, compile_for
from tests.kernels.interpreter import run_interpreted
from tests.pairwise import first


def test_interpreted_on_the_cpu_they_do_what_their_references_do():
    run_interpreted("interpreted_gguf.py")


def test_a_model_in_blocks_runs_on_them():
    run_interpreted("interpreted_gguf_model.py")


def compiled(name: str, m: int, gated: bool) -> Resources:
    launch = launch_for(m, 4096, 4096, processors=132)
    constants = {"bias_ptr": None, "FORMAT": NUMBERS[name], "ACTIVATION": "silu" if gated else None, "GATED": gated}
    constants |= {"BLOCK_M": launch.tokens, "BLOCK_N": launch.rows, "GROUP_M": TOGETHER, "PDL": True}
    constants |= {"residual_ptr": None} if gated else {}
    types = {"x_ptr": "*bf16", "blocks_ptr": "*u8", "out_ptr": "*bf16", "partial_ptr": "*fp32", "arrived_ptr": "*i32"}
    types |= {"M": "i32", "chunk": "i32", "ROW": "i32"} | dict.fromkeys(("N", "K", "stride"), "i32:16")
    types |= {} if gated else {"residual_ptr": "*bf16"}
    return compile_for(H200, gguf_kernel, types, constants, num_warps=launch.warps, num_stages=launch.stages)


CASES = [(name, m, gated) for name in NUMBERS for m in (1, MOST_ROWS) for gated in (False, True)]


@pytest.mark.parametrize(("name", "m", "gated"), first(CASES, count=3))
def test_a_product_fits_registers(name, m, gated):
    used = compiled(name, m, gated)
    assert used.spilled <= 64 and used.shared <= H200.shared_memory


@pytest.mark.parametrize("name", first([*NUMBERS], count=2))
@pytest.mark.parametrize("lookup", [False, True])
def test_rows_are_widened_in_registers(name, lookup):
    types = {"blocks_ptr": "*u8", "out_ptr": "*bf16", "first": "i32", "count": "i32", "K": "i32:16", "ROW": "i32"}
    constants = {"FORMAT": NUMBERS[name], "BLOCK_N": 1 if lookup else 8, "PDL": False}
    types |= {"ids_ptr": "*i64"} if lookup else {}
    constants |= {} if lookup else {"ids_ptr": None}
    used = compile_for(H200, widen_blocks_kernel, types, constants, num_warps=4)
    assert used.spilled == 0
