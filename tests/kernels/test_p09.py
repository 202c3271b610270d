"""p09's kernels where there is no GPU: what they compute, interpreted; and what they compile to."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import triton

from phases.p09_triton_attention import norm, paged_attention, splits
from tests.kernels.ahead_of_time import EVERY, H200, compile_for
from tests.kernels.interpreter import run_interpreted
from tests.pairwise import first


@pytest.mark.slow
def test_interpreted_on_the_cpu():
    run_interpreted("interpreted_norm.py", "interpreted_p09.py", "interpreted_splits.py")


SHAPES = [(128, 2), (64, 4), (256, 4)]  # (head dim, group) of Qwen3-0.6B, Llama-3.2-1B and Gemma 3 270M
LAUNCHES = [
    pytest.param(*shape, rows, dtype, marks=() if dtype == "bf16" and shape == (128, 2) else pytest.mark.stress)
    for shape in SHAPES
    for rows in (paged_attention.DECODE_ROWS, paged_attention.PROMPT_ROWS)
    for dtype in ("bf16", "fp32")  # wide heads in float32 take ptxas most of a minute
]


@pytest.mark.parametrize(("head_dim", "group", "rows", "dtype"), LAUNCHES)
def test_attention_compiles_for_an_h200_and_fits(head_dim, group, rows, dtype):
    found = compiled(H200, head_dim, group, rows, dtype)
    assert found.shared <= H200.shared_memory
    if dtype == "bf16" and head_dim <= 128:
        assert found.spilled == 0


@pytest.mark.parametrize("able", first(EVERY), ids=str)
def test_attention_compiles_for_every_gpu_and_fits(able):
    assert compiled(able, 128, 2, paged_attention.PROMPT_ROWS, "bf16").shared <= able.shared_memory


def compiled(able, head_dim, group, rows, dtype):
    types = dict.fromkeys(("out", "q", "keys", "values"), f"*{dtype}")
    types |= dict.fromkeys(("tables", "query_start", "lengths"), "*i64")
    types |= {"table_width": "i32:16", "scale": "fp32", "softcap": "fp32"}
    constants = {
        "HEADS": 8, "GROUP": group, "HEAD_DIM": head_dim, "PAGE": 16, "WINDOW": 0, "SOFTCAP": False,
        "ROWS": rows, "KEYS": paged_attention.KEYS, "WIDTH": triton.next_power_of_2(head_dim),
    }  # fmt: skip
    return compile_for(able, paged_attention.paged_attention_kernel, types, constants, num_warps=4, num_stages=2)


PARTS = 16


@pytest.mark.parametrize("able", first(EVERY), ids=str)
def test_split_attention_compiles_for_every_gpu_without_spilling(able):
    types = dict.fromkeys(("q", "keys", "values"), "*bf16") | dict.fromkeys(("tables", "lengths"), "*i64")
    types |= dict.fromkeys(("seen_ptr", "total_ptr", "peak_ptr"), "*fp32") | {"table_width": "i32:16", "scale": "fp32"}
    constants = {
        "HEADS": 8, "GROUP": 2, "HEAD_DIM": 128, "PAGE": 16, "PARTS": PARTS, "ROWS": paged_attention.DECODE_ROWS,
        "KEYS": paged_attention.KEYS, "WIDTH": 128,
    }  # fmt: skip
    found = compile_for(able, splits.attend_part_kernel, types, constants, num_warps=4, num_stages=2)
    assert found.spilled == 0 and found.shared <= able.shared_memory
    types = {"out": "*bf16"} | dict.fromkeys(("seen_ptr", "total_ptr", "peak_ptr"), "*fp32")
    constants = {"HEAD_DIM": 128, "PARTS": PARTS, "WIDTH": 128}
    assert compile_for(able, splits.merge_parts_kernel, types, constants, num_warps=4).spilled == 0


def test_the_norm_compiles_for_an_h200_without_spilling():
    types = dict.fromkeys(("x_ptr", "delta_ptr", "weight_ptr", "y_ptr"), "*bf16") | {"eps": "fp32"}
    assert compile_for(H200, norm.add_rms_norm_kernel, types, {"D": 1024, "BLOCK": 1024}, num_warps=4).spilled == 0
