"""The paged attention kernels where there is no GPU: what they compute, interpreted; and what they compile to."""

import re
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch
import triton

from gradus.errors import ConfigError
from gradus.kernels.attention import paged as paged_attention
from gradus.kernels.attention import work as attention_work
from gradus.kernels.attention.launch import Launch, launches
from tests.kernels.ahead_of_time import H200, compile_for, instructions
from tests.kernels.interpreter import run_interpreted
from tests.pairwise import first

TYPES = {
    "sums": "*fp32", "peaks": "*fp32", "totals": "*fp32", "tickets": "*i32", "tables": "*i64", "items": "*i32",
    "q_stride": "i32:16", "table_stride": "i32:16", "scale": "fp32", "softcap": "fp32", "eps": "fp32",
}  # fmt: skip


def test_the_kernels_are_right_when_interpreted():
    run_interpreted(
        "interpreted_paged_attention.py", "interpreted_mixed_layers.py", "interpreted_widen.py", "interpreted_pages.py"
    )


def test_long_prompts_on_hopper_are_right_when_interpreted():
    run_interpreted("interpreted_hopper_attention.py")


def compiled(
    head_dim: int, group: int, launch: Launch, tokens: int, new: int = 0, fp8: bool = False, sinks: bool = False
):
    kernel, width = paged_attention._attend, triton.next_power_of_2(head_dim)
    shape = paged_attention.constants(
        launch, group, 8, head_dim, tokens, page=16, window=None, softcap=False, far=False,
        eight_bits=fp8,
    )  # fmt: skip
    constants = shape | {
        "PDL": True,
        "NEW": new,
        "rotary": None,
        "growth": None,
        "value_eps": None,
        "q_gain": None,
        "k_gain": None,
        "key_scales": None,
        "value_scales": None,
        "sinks": None,
    }
    values = dict.fromkeys(("out", "q", "keys", "values"), "*bf16")
    if new:
        del constants["rotary"]
        values["rotary"] = "*bf16"
    if sinks:
        del constants["sinks"]
        values["sinks"] = "*fp32"
    if fp8:
        del constants["key_scales"], constants["value_scales"]
        values |= dict.fromkeys(("keys", "values"), "*fp8e4nv") | dict.fromkeys(("key_scales", "value_scales"), "*fp32")
    assert constants["WIDTH"] == width
    return compile_for(H200, kernel, TYPES | values, constants, num_warps=launch.warps, num_stages=launch.stages)


# (head dim, group): of Qwen3-0.6B, Llama-3.2-1B and gpt-oss; most registers that a thread may take for four decodes to
# run at once on a multiprocessor
@pytest.mark.parametrize(
    "head_dim, group, new, sinks", first([(64, 4, 1, False), (128, 2, 0, False), (64, 8, 1, True), (64, 4, 0, False)])
)
def test_a_decode_compiled_for_an_h200_spills_nothing_and_leaves_room_for_four(head_dim, group, new, sinks):
    launch = launches(head_dim, torch.bfloat16, group)[0]
    found = compiled(head_dim, group, launch, tokens=1, new=new, sinks=sinks)
    assert found.spilled == 0
    assert found.registers * launch.warps * 32 * 4 <= 65536
    assert found.shared * 4 <= H200.shared_memory
    assert "cp.async" in found.assembly  # keys are on their way while others are worked on


# most words spilled: in the tile with the new token's turned heads, a few so that four programs still run at once
@pytest.mark.parametrize("head_dim, group, new, spilled", first([(64, 4, 1, 8), (128, 2, 0, 0), (64, 4, 0, 0)]))
def test_a_decode_over_8_bits_leaves_room_for_four_and_takes_half_the_memory(head_dim, group, new, spilled):
    launch = launches(head_dim, torch.bfloat16, group, eight_bits=True)[0]
    found = compiled(head_dim, group, launch, tokens=1, new=new, fp8=True)
    wide = compiled(head_dim, group, replace(launch, halves=False), tokens=1, new=new)
    assert found.spilled <= spilled
    assert found.registers * launch.warps * 32 * 4 <= 65536
    assert found.shared <= 0.7 * wide.shared
    # values come from shared memory as words, four or more at a time
    assert "ldmatrix.sync.aligned.m8n8.x4.trans" in found.assembly and "ld.shared.b8" not in found.assembly
    assert "cp.async" in found.assembly
    # scales too are on their way while others are worked on: 4 bytes to a thread, of keys and values, twice (the first
    # step's come before the loop)
    assert len(re.findall(r"cp\.async\.ca[^;]*, 0x4, ", found.assembly)) == 4


@pytest.mark.parametrize("head_dim", [64, 128])
def test_products_in_float16_take_two_thirds_of_the_instructions_to_widen_or_fewer(head_dim):
    launch = launches(head_dim, torch.bfloat16, 4, eight_bits=True)[0]
    found, wider = (
        compiled(head_dim, 4, replace(launch, halves=halves), tokens=1, fp8=True) for halves in (True, False)
    )
    assert found.spilled == 0
    assert "cvt.rn.f16x2.e4m3x2" in found.assembly and "f32.f16.f16.f32" in found.assembly
    assert "fma.rn.bf16x2" not in found.assembly
    widening = re.compile(r"^ .*\s(LOP3|SHF|PRMT|F2FP|HMUL2|HFMA2)\b", re.MULTILINE)
    counts = [len(widening.findall(instructions(each.binary))) for each in (found, wider)]
    assert counts[0] <= 2 / 3 * counts[1]


def test_decodes_alone_multiply_8_bits_in_float16():
    small, *taller = launches(128, torch.bfloat16, 4, eight_bits=True)
    assert small.halves and launches(64, torch.float16, 4, eight_bits=True)[0].halves
    others = launches(128, torch.bfloat16, 4), launches(128, torch.float32, 4, eight_bits=True), taller
    assert not any(launch.halves for each in others for launch in each)


def test_more_heads_than_a_tile_has_rows_are_refused_in_one_line():
    assert launches(128, torch.bfloat16, 71)[0].rows >= 71
    with pytest.raises(ConfigError, match=r"at most 64 query heads per key head, and the model has 71: run without"):
        launches(128, torch.bfloat16, 71, eight_bits=True)


# Of 256 rows a thread spills some bytes, outside of the loop's products: it is faster all the same (on an H200).
@pytest.mark.parametrize("head_dim, group, spilled", first([(64, 4, 64), (128, 4, 768)]))
def test_a_prompt_compiled_for_an_h200_uses_its_matrix_units_and_fits(head_dim, group, spilled):
    launch = launches(head_dim, torch.bfloat16, group)[-1]
    found = compiled(head_dim, group, launch, tokens=launch.rows // group)
    assert "wgmma" in found.assembly
    assert found.spilled <= spilled and found.shared <= H200.shared_memory


def work_of(launch: Launch, tiles: int, kv_heads: int) -> attention_work.Work:
    return attention_work.Work(
        launch, tiles=tiles, group=2, kv_heads=kv_heads, window=None, device=torch.device("cpu")
    )  # fmt: skip


def test_items_are_aimed_at_by_multiprocessors_and_by_one_program_each_where_keys_are_few():
    launch = launches(128, torch.bfloat16, 2, processors=132)[0]
    works = [work_of(launch, tiles, kv_heads=8) for tiles in (1, 2, 4, 64)]
    assert {(work.few, work.aim) for work in works} == {(16, 66)}
    assert work_of(launch, 1, kv_heads=1000).few == work_of(launch, 1, kv_heads=1000).aim == 1


def test_planning_a_step_compiles_for_an_h200_without_spilling():
    tensors = dict.fromkeys(("items", "slots", "query_start", "lengths"), "*i32")
    numbers = ("spans", "fewest", "most", "entries", "aim", "few", "tile_tokens", "step", "whole")
    found = compile_for(
        H200,
        attention_work._lay_out,
        tensors | dict.fromkeys(numbers, "i32") | {"adding": "fp32"},
        {"WINDOW": 512, "SPANS": 256},
        num_warps=8,
    )
    assert found.spilled == 0
