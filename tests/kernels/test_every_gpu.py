"""Every kernel, compiled ahead of time for every GPU from Ampere on, with the launch that would be chosen there.

What is checked is what would fail at the first launch: that it compiles, and that its shared memory is there. A sample
runs always, all of it by `make stress`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch
import triton
import triton.language as tl

from gradus.attention.triton_paged import FUSED_ROPE_WIDTH
from gradus.device.capability import OLDEST, Capability
from gradus.kernels.attention import hopper as hopper_attention
from gradus.kernels.attention import paged as paged_attention
from gradus.kernels.attention import work as attention_work
from gradus.kernels.attention.launch import HOPPER_LAUNCHES, bytes_needed, fitted, launches
from gradus.kernels.attention.new_token import MOST_NEW
from gradus.kernels.attention.widen import widen_pages_kernel
from gradus.kernels.experts import dispatch, grouped_tables, packed_tiles
from gradus.kernels.experts.combine import BLOCK as COMBINED
from gradus.kernels.experts.combine import combine_kernel
from gradus.kernels.experts.few import few_experts_kernel
from gradus.kernels.experts.grouped import grouped_kernel
from gradus.kernels.experts.grouped_launch import HopperGroupedLaunch, HopperStreamedLaunch
from gradus.kernels.experts.hopper import grouped as hopper_grouped
from gradus.kernels.experts.hopper import streamed as hopper_streamed
from gradus.kernels.experts.hopper import tiles as hopper_tiles
from gradus.kernels.experts.launches import MOST_FEW, launch_of
from gradus.kernels.experts.packed import packed_experts_kernel
from gradus.kernels.experts.packed_launch import unraced as packed_launch
from gradus.kernels.experts.packed_tiles import Form
from gradus.kernels.experts.routing import route_kernel
from gradus.kernels.fuse.quantized import FUSED_ROWS
from gradus.kernels.linear.few_rows import few_rows_kernel
from gradus.kernels.linear.gemv import gemv_kernel
from gradus.kernels.linear.launch_tables import Measured, matching
from gradus.kernels.linear.launches import MOST_ROWS, SplitKLaunch, StreamedLaunch
from gradus.kernels.linear.splitk import splitk_kernel
from gradus.kernels.linear.streamed_gemv import streamed_gemv_kernel
from gradus.kernels.linear.streamed_rows import streamed_rows_kernel
from gradus.kernels.quantized import gguf as gguf_kernels
from gradus.kernels.quantized import hopper_launch, hopper_product
from gradus.kernels.quantized import mxfp4 as mxfp4_kernels
from gradus.kernels.quantized.eight_bits import eight_bit_kernel
from gradus.kernels.quantized.int4 import int4_kernel, widen_kernel
from gradus.kernels.quantized.quantize import PIECE, quantize_in_pieces_kernel, quantize_kernel
from gradus.kernels.quantized.tile import TOGETHER
from gradus.kernels.quantized.tile_tables import SCHEMES, Scheme, unmeasured_tile
from gradus.kernels.rows.activation import BLOCK, activation_kernel
from gradus.kernels.rows.norm import norm_kernel, warps_of
from gradus.kernels.rows.pages import move_pages_kernel
from gradus.kernels.rows.rope_store import heads_together, rope_store_kernel
from gradus.kernels.rows.summed_norm import summed_norm_kernel
from gradus.kernels.sampling import full as asked_sampling
from gradus.kernels.sampling import narrowing
from gradus.kernels.sampling.narrowing import Statistics
from gradus.kernels.sampling.plain import block_best_kernel, row_best_kernel
from gradus.kernels.sampling.slot_settings import SlotSettings
from gradus.kernels.step.decode_rows import decode_rows_kernel
from gradus.kernels.step.draft_inputs import first_inputs_kernel, next_inputs_kernel
from gradus.kernels.step.draft_passes import first_rows_kernel, next_rows_kernel
from gradus.kernels.step.ngram import look_up_kernel
from gradus.kernels.step.places import places_kernel
from gradus.kernels.step.prompt_history import keep_prompts_kernel
from gradus.kernels.step.verify import accept_drafts_kernel, pack_rows_kernel
from tests.kernels.ahead_of_time import EVERY, H200, Resources, compile_for, instructions
from tests.pairwise import first

STREAMED = (StreamedLaunch(4, 1024, 1, 8, 200, 1), StreamedLaunch(8, 512, 2, 4, 100, 1))
STREAMED_ROWS = StreamedLaunch(16, 512, 1, 8, 100, 1)
TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}
# Bytes per thread that may be spilled on an H200, by how the name begins: the most that Triton 3.6 and 3.7 make of it.
# In float32 a product is three, so registers are short. Of a prompt's 256 rows some values are spilled outside of the
# loop (faster all the same, measured). Values of 8 bits take registers to be widened: in bfloat16, for heads of 128, a
# prompt's fastest tile spills (`benchmarks/kernels/paged_attention_fp8.json`); heads of 256 and 512, and float32, were
# not raced. A tile of 64 rows of heads of 512 spills behind its loop.
SPILLED = {
    "hopper prompt": 208,  # none of them in the loop without a mask; raced with them
    "decode 256 float32 fp8": 16,
    "decode that turns 64 float32": 16,
    "drafts that turn 64 float32": 376,
    "prompt 64 float32 64": 8,
    "prompt 128 bfloat16 256": 192,
    "prompt 128 bfloat16 fp8 64": 152,
    "prompt 128 float32 64": 320,
    "prompt 128 float32 fp8": 88,
    "prompt 256 bfloat16 fp8": 8,
    "prompt 256 float32 32": 368,
    "prompt 256 float32 fp8": 280,
    "decode 512 float32": 920,
    "prompt 512 bfloat16 64": 424,
    "prompt 512 float32 fp8": 1232,
}


class Case(NamedTuple):
    """A kernel as it would be launched. Arguments that are neither constants nor in `types` point to bfloat16."""

    kernel: Any
    types: Mapping[str, Any]
    constants: dict[str, Any]
    options: dict[str, int]

    def compiled(self, able: Capability, early: bool) -> Resources:
        constants = ({"PDL": early} if "PDL" in self.kernel.arg_names else {}) | self.constants
        types = dict.fromkeys((name for name in self.kernel.arg_names if name not in constants), "*bf16")
        return compile_for(able, self.kernel, {**types, **self.types}, constants, **self.options)


def cases(able: Capability) -> Iterator[tuple[str, Case]]:
    """By name, the kernels of a Qwen3-like model on this GPU."""
    yield from beside_products(able)
    yield from products(able)
    yield from experts()
    yield from quantized_products(able)
    yield from beside_quantized(able)
    yield from samplers()
    yield from asked_samplers()
    yield from hopper_prompts(able)
    yield from widening(able)
    yield from moves(able)
    yield from hopper_products(able)
    yield from grouped_experts(able)
    yield from packed_experts(able)
    yield from mxfp4_products()
    yield from hopper_experts(able)
    for head_dim, group in ((64, 4), (64, 1), (128, 2), (256, 4), (512, 8), (512, 16)):
        for dtype in TYPES:
            yield from attention(able, head_dim, group, dtype)
            if able.multiplies_fp8:
                yield from attention(able, head_dim, group, dtype, fp8=True)
    yield from attention(able, 64, 8, torch.bfloat16, sinks=True)  # gpt-oss


def beside_products(able: Capability) -> Iterator[tuple[str, Case]]:
    norm = {"D": 4096, "CENTER": False, "BLOCK": 4096, "bias_ptr": None}
    plain, ends = {"delta_weight_ptr": None, "factor_ptr": None}, {"weight_ptr": None, "y_ptr": None}
    yield "norm", Case(norm_kernel, {"eps": "fp32"}, norm | plain, {"num_warps": warps_of(4096)})
    yield (
        "norm of what is added, scaled",
        Case(norm_kernel, {"eps": "fp32"}, norm | ends, {"num_warps": warps_of(4096)}),
    )
    words = dict.fromkeys(["x_ptr", "stream_ptr", "weight_ptr", "y_ptr", "epochs_ptr", "stop_ptr"], "*i32")
    words |= dict.fromkeys(["first_id", "last_id"], "i32") | dict.fromkeys(["inbox_ptr", "addresses_ptr"], "*i64")
    ranks = {"RANK": 0, "RANKS": 2, "ROWS": 256, "CAPACITY": 2048, "W": 2048, "BLOCK": 2048, "ids_ptr": None}
    ranks |= {"KIND": tl.bfloat16, "HALVES": True}
    yield "summed norm", Case(summed_norm_kernel, words | {"eps": "fp32"}, ranks, {"num_warps": 8})
    alone = {"times_ptr": None, "stride": 0}
    gated = {"ACTIVATION": "silu", "GATED": True, "BLOCK": BLOCK} | alone
    yield "activation", Case(activation_kernel, {"width": "i32:16"}, gated, {"num_warps": 4})
    times, strides = (
        {"ACTIVATION": "gelu_tanh", "GATED": False, "BLOCK": BLOCK},
        {"width": "i32:16", "stride": "i32:16"},
    )
    yield "activation times", Case(activation_kernel, strides, times, {"num_warps": 4})
    yield from passing_heads(able)
    tables = {"slots_ptr": "*i32", "lengths_ptr": "*i32"}
    strides = dict.fromkeys(("rows", "group_stride", "slot_stride"), "i32")
    found = {"tables_ptr": "*i64", "places_ptr": "*i64"}
    pointers = {f"{each}_ptr": "*i32" for each in ("slots", "limits", "history", "owners", "ends")}
    pointers |= {f"{each}_ptr": "*i64" for each in ("known", "tables", "tokens", "positions", "places")}
    sizes = strides | {"padding": "i32", "width": "i32"}
    yield "decode rows", Case(decode_rows_kernel, pointers | sizes, {"PAGE": 16, "GROUPS": 2, "BLOCK": 128}, {})
    yield "places", Case(places_kernel, tables | found | strides, {"PAGE": 16, "BLOCK": 128}, {})
    yield from drafts()
    numbers = dict.fromkeys(("spans", "fewest", "most", "entries", "aim", "few", "tile_tokens", "step", "whole"), "i32")
    numbers |= {"adding": "fp32"}
    lists = dict.fromkeys(("items", "slots", "query_start", "lengths"), "*i32")
    yield "work", Case(attention_work._lay_out, numbers | lists, {"WINDOW": 512, "SPANS": 256}, {"num_warps": 8})


def experts() -> Iterator[tuple[str, Case]]:
    """Qwen3-30B-A3B's: one row, 8 and 16."""
    router = {"E": 128, "BLOCK_E": 128, "CHOSEN": 8, "PLACES": 8, "SIGMOID": False, "NORMALIZED": True, "SCALE": 1.0}
    router |= {"GROUPS": 1, "CHOSEN_GROUPS": 1, "correction_ptr": None, "factors_ptr": None}
    deepseek = router | {"E": 256, "BLOCK_E": 256, "SIGMOID": True, "GROUPS": 8, "CHOSEN_GROUPS": 4}
    result = {"chosen_ptr": "*i32", "weights_ptr": "*fp32"}
    yield "experts' choice", Case(route_kernel, result, router, {"num_warps": 4})
    grouped = {name: value for name, value in deepseek.items() if name != "correction_ptr"}
    yield (
        "experts' choice in groups",
        Case(route_kernel, result | {"correction_ptr": "*fp32"}, grouped, {"num_warps": 8}),
    )
    for partial in (False, True):
        combined = {"D": 2048, "CHOSEN": 8, "BLOCK": COMBINED, "PARTIAL": partial}
        name = f"{'a rank' if partial else 'experts'}' sum"
        yield name, Case(combine_kernel, {"weights_ptr": "*fp32"}, combined, {"num_warps": 4})
    gate = {"ACTIVATION": "silu", "GATED": True, "bias_ptr": None}
    for rows in (1, 8, 16):
        up, down = launch_of(rows, 2048, 768)
        shared = {"E": 128, "CHOSEN": 8, "PLACES": 8, "ROWS": max(16, rows), "BY_EXPERT": rows > 16}
        types = {"M": "i32", "chosen_ptr": "*i32"}
        for name, launch, more in (
            ("up", up, {"K": 2048, "N": 768, "BY_PAIR": False} | gate),
            ("down", down, {"K": 768, "N": 2048, "BY_PAIR": True} | gate | {"ACTIVATION": None, "GATED": False}),
        ):
            tile = {"BLOCK_N": launch.outputs, "BLOCK_K": launch.columns}
            options = {"num_warps": launch.warps, "num_stages": launch.stages}
            yield f"experts of few rows {rows}, {name}", Case(few_experts_kernel, types, shared | more | tile, options)


def passing_heads(able: Capability) -> Iterator[tuple[str, Case]]:
    """Qwen3's heads in a prompt; OLMo 2 7B's, whose norm spans them; Gemma 4's widest, and those without keys."""
    numbers = {"slots_ptr": "*i64", "positions_ptr": "*i64", "eps": "fp32"}
    usual = {"Q_HEADS": 16, "KV_HEADS": 8, "HALF": 64, "HEADS": heads_together(4096, 16, 8, 128), "BLOCK": 64}
    usual |= {"PAGE": 16, "SPAN": 0, "growth_ptr": None, "value_eps": None}
    unscaled = {"key_scales_ptr": None, "value_scales_ptr": None}
    yield "rope and store", Case(rope_store_kernel, numbers, usual | unscaled, {"num_warps": 1})
    if able.multiplies_fp8:
        stored = {"keys_ptr": "*fp8e4nv", "values_ptr": "*fp8e4nv"} | dict.fromkeys(unscaled, "*fp32")
        yield "rope and store fp8", Case(rope_store_kernel, numbers | stored, usual, {"num_warps": 1})
    across = usual | unscaled | {"Q_HEADS": 32, "KV_HEADS": 32, "SPAN": 4096}
    yield "rope and store, norm across heads", Case(rope_store_kernel, numbers, across, {"num_warps": 4})
    grown = {name: value for name, value in usual.items() if name != "growth_ptr"} | unscaled
    yield "rope and store, grown", Case(rope_store_kernel, numbers | {"growth_ptr": "*fp32"}, grown, {"num_warps": 1})
    wide = usual | unscaled | {"HALF": 256, "HEADS": heads_together(4096, 16, 4, 512), "BLOCK": 256, "KV_HEADS": 4}
    yield "rope and store 512", Case(rope_store_kernel, numbers, wide | {"value_eps": 1e-6}, {"num_warps": 1})
    alone = usual | unscaled | dict.fromkeys(("keys_ptr", "values_ptr", "slots_ptr", "k_weight_ptr"))
    alone |= {"HALF": 256, "HEADS": heads_together(4096, 8, 0, 512), "BLOCK": 256, "Q_HEADS": 8, "KV_HEADS": 0}
    yield (
        "queries alone 512",
        Case(rope_store_kernel, {"positions_ptr": "*i64", "eps": "fp32"}, alone, {"num_warps": 1}),
    )


def drafts() -> Iterator[tuple[str, Case]]:
    """What a step that verifies 8 drafts begins and ends with, and the passes of a draft model."""
    of_32_bits = ("slots", "limits", "most", "barred", "history", "owners", "ends", "query_start", "lengths")
    of_64_bits = ("known", "drafts", "tables", "tokens", "positions", "places", "inputs", "drawn", "kept", "rows")
    pointers = {f"{name}_ptr": "*i32" for name in of_32_bits} | {f"{name}_ptr": "*i64" for name in of_64_bits}
    numbers = dict.fromkeys(
        ("spans", "rows", "history_stride", "width", "group_stride", "slot_stride", "padding"), "i32"
    )
    numbers |= dict.fromkeys(("count", "number", "longest", "vocabulary"), "i32")
    last = dict.fromkeys(("tokens_ptr", "positions_ptr", "owners_ptr", "lengths_ptr"))
    for name, kernel, constants, warps in (
        ("pack rows", pack_rows_kernel, {"K": 8, "PAGE": 16, "GROUPS": 2, "SPANS": 256, "BLOCK": 32}, 4),
        ("first rows", first_rows_kernel, {"PAGE": 16, "GROUPS": 1, "BLOCK": 128}, 4),
        ("next rows", next_rows_kernel, {"BLOCK": 128}, 4),
        ("keep draft", next_rows_kernel, {"BLOCK": 128} | last, 4),
        ("look up", look_up_kernel, {"COUNT": 8, "COUNTS": 8, "SHORTEST": 2, "LONGEST": 4, "BLOCK": 1024}, 4),
    ):
        types = {
            each: kind
            for each, kind in (pointers | numbers).items()
            if each in kernel.arg_names and each not in constants
        }
        yield name, Case(kernel, types, constants, {"num_warps": warps})
    types = pointers | dict.fromkeys(("D", "tokens", "places", "history_stride", "length"), "i32:16")
    types |= {"tokens_ptr": "*bf16", "places_ptr": "*bf16", "positions_ptr": "*i32"}
    types |= {"scale": "fp32", "drafts_stride": "i32", "hidden_stride": "i32:16"}
    first = {"COUNT": 3, "COUNTS": 4, "TOGETHER": 1, "BLOCK": 512}
    width = {"WIDTH": 5, "WIDER": 8, "BLOCK": 512}
    for name, kernel, constants in (
        ("accept drafts", accept_drafts_kernel, width),
        ("accept drafts without states", accept_drafts_kernel, width | {"states_ptr": None}),
        ("first inputs", first_inputs_kernel, first),
        ("next inputs", next_inputs_kernel, {"BLOCK": 512}),
    ):
        named = {each: kind for each, kind in types.items() if each in kernel.arg_names}
        yield name, Case(kernel, named, constants, {"num_warps": 4})
    told = dict.fromkeys(("owners", "places", "tokens", "slots", "positions", "drawn", "known"), "*i64")
    types = {f"{each}_ptr": kind for each, kind in (told | {"hidden": "*bf16", "history": "*i32"}).items()}
    types |= dict.fromkeys(("tokens", "rows", "first"), "i32")
    types |= dict.fromkeys(("length", "D", "hidden_stride"), "i32:16")
    for name, states in (("keep prompts", {"states_ptr": "*bf16"}), ("keep prompts without states", {})):
        constants = {"BLOCK": 256, "COLUMNS": 512} | ({} if states else {"states_ptr": None})
        yield name, Case(keep_prompts_kernel, types | states, constants, {"num_warps": 4})


def products(able: Capability) -> Iterator[tuple[str, Case]]:
    table = matching("", able)
    around = {"bias_ptr": None, "residual_ptr": None, "shift_ptr": None, "ACTIVATION": "silu", "GATED": True}
    for n, k in ((768, 768), (4096, 4096), (4096, 14336)):
        launch = table.fused(1, n, k)
        constants = around | {"K": k, "ROWS": 1, "BLOCK_N": launch.rows, "BLOCK_K": launch.columns}
        types = {"M": "i32", "N": "i32:16", "eps": "fp32"}
        yield f"gemv {n} {k}", Case(gemv_kernel, types, constants, {"num_warps": launch.warps})
    for rows, gated in product((8, MOST_ROWS), (False, True)):
        constants = {"K": 1536, "ROWS": rows, "BLOCK_N": 16, "WARPS": 8, "AHEAD": 3, "SUMS": 1}
        constants |= {"ACTIVATION": "silu" if gated else None, "GATED": gated}
        types = {"M": "i32", "N": "i32:16", "eps": "fp32"}
        yield f"few rows {rows}{' gated' if gated else ''}", Case(few_rows_kernel, types, constants, {"num_warps": 8})
    for (n, k, gated), launch in product(((896, 4864, False), (4864, 896, True), (8192, 2048, True)), STREAMED):
        slices = launch.slices(n, k, gated, 132, able.shared_memory)
        assert slices.bytes <= able.shared_memory
        constants = {"K": k, "MATRICES": 1 + gated, "ROWS": launch.outputs, "COLUMNS": launch.columns}
        constants |= {"ROW_WARPS": launch.row_warps, "COLUMN_WARPS": launch.column_warps, "STAGES": slices.stages}
        constants |= {"GROUPS": slices.groups, "PLACES": triton.next_power_of_2(slices.groups), "ACTIVATION": None}
        constants |= {"ACTIVATION": "silu", "residual_ptr": None} if gated else {"gain_ptr": None}
        types = {"N": "i32:16", "eps": "fp32"}
        name = f"streamed gemv {n} {k} {launch.row_warps} {launch.column_warps}"
        yield name, Case(streamed_gemv_kernel, types, constants, {"num_warps": launch.warps})
    for (n, k, gated), rows in product(((1152, 896, False), (896, 2048, False), (4864, 896, True)), (8, MOST_ROWS)):
        launch = STREAMED_ROWS
        slices = launch.slices(n, k, gated, 132, able.shared_memory, rows, normed=gated)
        assert slices.bytes <= able.shared_memory
        constants = {"K": k, "MATRICES": 1 + gated, "ROWS": rows, "OUTPUTS": launch.outputs, "COLUMNS": launch.columns}
        constants |= {"WARPS": launch.warps, "GROUPS": slices.groups, "STAGES": slices.stages, "ACTIVATION": None}
        constants |= {"ACTIVATION": "silu", "residual_ptr": None} if gated else {"gain_ptr": None}
        types = {"M": "i32", "N": "i32:16", "eps": "fp32"}
        name = f"streamed rows {rows} {n} {k}"
        yield name, Case(streamed_rows_kernel, types, constants, {"num_warps": launch.warps})
    found = (
        {column for row in table.launches["launches"].values() for column in row}
        if isinstance(table, Measured)
        else set()
    )
    for launch in sorted(launch for launch in found if isinstance(launch, SplitKLaunch)):
        constants = {"bias_ptr": None, "residual_ptr": None, "EVEN_K": True, "BLOCK_M": 64}
        constants |= {"BLOCK_N": launch.rows, "BLOCK_K": launch.columns}
        types = {"M": "i32", "N": "i32:16", "K": "i32:16", "chunk": "i32:16"}
        types |= {"partial_ptr": "*fp32", "arrived_ptr": "*i32"}
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        yield f"splitk {' '.join(map(str, launch))}", Case(splitk_kernel, types, constants, options)


def quantized_products(able: Capability) -> Iterator[tuple[str, Case]]:
    """With a bias and a residual, or with a gate, whose sums are twice as many."""
    types = {"words_ptr": "*i16", "pairs_ptr": "*i32", "x_scale_ptr": "*fp32", "scale_ptr": "*fp32", "M": "i32"}
    types |= {"block_ptr": "*i64", "arrived_ptr": "*i32", "chunk": "i32", "ahead": "i32"}
    types |= dict.fromkeys(("N", "K", "stride"), "i32:16")
    for scheme, m, gated in product(schemes_of(able), (1, 16, 64, 256, 8192), (False, True)):
        if gated and m > FUSED_ROWS:
            continue
        launch = unmeasured_tile(scheme, m, 4096, 4096, 132)
        constants = {"EVEN_K": True, "ACTIVATION": "silu" if gated else None, "GATED": gated, "GROUP_M": TOGETHER}
        constants |= {"BLOCK_M": launch.tokens, "BLOCK_N": launch.rows}
        constants |= {"residual_ptr": None} if gated else {}
        constants |= {"partial_ptr": None, "arrived_ptr": None} if launch.splits == 1 else {}
        if scheme == "int4":
            kernel, kinds = int4_kernel, {"partial_ptr": "*fp32"}
            constants |= {"GROUPS": 1, "KIND": tl.bfloat16, "PAIRED": True}
        else:
            kind = "*i8" if scheme == "int8" else "*fp8e4nv"
            kernel, kinds = eight_bit_kernel, {"x_ptr": kind, "weight_ptr": kind}
            kinds["partial_ptr"] = "*i32" if scheme == "int8" else "*fp32"
            constants |= {"BLOCK_K": launch.columns} | ({} if scheme == "fp8-block" else {"block_ptr": None})
        named = {name: kind for name, kind in (types | kinds).items() if name in kernel.arg_names}
        named = {name: kind for name, kind in named.items() if name not in constants}
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        yield f"{scheme} {m}{' gated' if gated else ''}", Case(kernel, named, constants, options)


def schemes_of(able: Capability) -> list[Scheme]:
    """A GPU without arithmetic for e4m3 is refused those schemes, by `gradus.quantization.schemes`."""
    return [scheme for scheme in SCHEMES if able.multiplies_fp8 or not scheme.startswith("fp8")]


def beside_quantized(able: Capability) -> Iterator[tuple[str, Case]]:
    types = {"words_ptr": "*i16", "pairs_ptr": "*i32", "ROWS": "i32:16", "K": "i32:16", "first": "i32", "count": "i32"}
    constants = {"GROUPS": 1, "KIND": tl.bfloat16, "BLOCK_N": 64}
    yield "widen", Case(widen_kernel, types, constants, {"num_warps": 4})
    for kind, group in product(["*i8", "*fp8e4nv"] if able.multiplies_fp8 else ["*i8"], (128, 16384)):
        types = {"values_ptr": kind, "scales_ptr": "*fp32", "M": "i32", "eps": "fp32"}
        constants = {"K": 14336, "LARGEST": 127.0, "FLOOR": 1e-36, "GROUP": group, "BLOCK": 16384, "shift_ptr": None}
        plain, gated = ({"ACTIVATION": None}, {"ACTIVATION": "silu", "gain_ptr": None})
        yield f"rounded {kind} {group}", Case(quantize_kernel, types, constants | plain, {"num_warps": warps_of(16384)})
        yield f"rounded {kind} {group} gated", Case(quantize_kernel, types, constants | gated, {"num_warps": 16})
        pieces = {"K": 14336, "LARGEST": 127.0, "FLOOR": 1e-36, "BLOCK": PIECE}
        types = {"x_ptr": "*bf16", "values_ptr": kind, "scales_ptr": "*fp32"}
        yield f"rounded {kind} in pieces", Case(quantize_in_pieces_kernel, types, pieces, {"num_warps": 8})


RACED = dict.fromkeys(("temperatures_ptr", "maxima_ptr", "times_ptr", "thresholds_ptr", "totals_ptr"), "*fp32")
RACED |= dict.fromkeys(("slots_ptr", "history_ptr", "tokens_ptr", "drawn_ptr", "pairs_ptr"), "*i32")
RACED |= {"out_ptr": "*i64", "seeds_ptr": "*i64", "positions_ptr": "*i64", "row_stride": "i32:16"}
RACED |= dict.fromkeys(("blocks", "out_stride", "width", "V"), "i32")
PLAIN = dict.fromkeys(("settings", "thresholds_ptr", "drawn_ptr", "totals_ptr", "pairs_ptr"))


def samplers() -> Iterator[tuple[str, Case]]:
    for name, kernel, constants, warps in (
        ("block best", block_best_kernel, {"BLOCK": 2048}, 4),
        ("row best", row_best_kernel, {"BLOCKS": 128, "PAIRS": 1}, 1),
    ):
        constants |= {name: None for name in PLAIN if name in kernel.arg_names}
        types = {name: kind for name, kind in RACED.items() if name in kernel.arg_names and name not in constants}
        yield name, Case(kernel, types, constants, {"num_warps": warps})


def asked_samplers() -> Iterator[tuple[str, Case]]:
    """For a vocabulary of 151,936, as in a CUDA graph: 1187 groups of 128 tokens, 75 blocks of 2048."""
    noted = Statistics(*["*fp32"] * 5, room="*i32", groups="i32", blocks="i32")
    tables = SlotSettings(
        seeds="*i64", numbers="*fp32", choices="*i32", bias_values="*fp32", banned_until="*i32", seen="*i32",
        masks="*i32", slots="i32", most_entries="i32:16", seen_stride="i32:16", mask_words="i32",
    )  # fmt: skip
    known = RACED | {"V": "i32:16", "positions_ptr": "*i32", "noted": noted, "settings": tables}
    for name, kernel, constants, warps in (
        ("statistics", asked_sampling.statistics_kernel, {"BLOCK": narrowing.BLOCK}, 4),
        ("narrow and report", asked_sampling.narrow_and_report_kernel, {"GROUPS": 2048, "BLOCKS": 128, "PAIRS": 21}, 8),
        ("search", asked_sampling.search_kernel, {"BLOCKS": 128}, 16),
        ("asked block", block_best_kernel, {"BLOCK": 2048, "seeds_ptr": None, "temperatures_ptr": None}, 4),
        ("asked row", row_best_kernel, {"BLOCKS": 128, "PAIRS": 21, "temperatures_ptr": None}, 1),
    ):
        types = {name: kind for name, kind in known.items() if name in kernel.arg_names and name not in constants}
        yield name, Case(kernel, types, constants, {"num_warps": warps})


def attention(
    able: Capability, head_dim: int, group: int, dtype: torch.dtype, fp8: bool = False, sinks: bool = False
) -> Iterator[tuple[str, Case]]:
    """Decodes, then every taller tile; with heads rotated before or in the kernel. fp8: of keys and values."""
    types = {"tickets": "*i32", "tables": "*i64", "items": "*i32", "q_stride": "i32:16", "table_stride": "i32:16"}
    types |= dict.fromkeys(("sums", "peaks", "totals"), "*fp32") | dict.fromkeys(("scale", "softcap", "eps"), "fp32")
    types |= dict.fromkeys(("out", "q", "keys", "values"), TYPES[dtype]) | ({"sinks": "*fp32"} if sinks else {})
    what = f"{head_dim} {str(dtype).removeprefix('torch.')}{' fp8' if fp8 else ''}{' sinks' if sinks else ''}"
    scales = ("key_scales", "value_scales")
    types |= dict.fromkeys(scales, "*fp32") | dict.fromkeys(("keys", "values"), "*fp8e4nv") if fp8 else {}
    chosen = launches(head_dim, dtype, group, able=able, eight_bits=fp8)
    for launch in chosen:
        tokens = 1 if launch is chosen[0] else launch.rows // group
        constants = paged_attention.constants(
            launch, group, 8, head_dim, tokens, page=16, window=None, softcap=False, far=False,
            eight_bits=fp8, packed=dtype == torch.bfloat16,
        )  # fmt: skip
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        norms = {"q_gain": None, "k_gain": None} | ({} if fp8 else dict.fromkeys(scales))
        norms |= {"growth": None, "value_eps": None} | ({} if sinks else {"sinks": None})
        plain = constants | norms | {"NEW": 0, "rotary": None}
        kind = "decode" if tokens == 1 else "prompt"
        yield f"{kind} {what} {launch.rows} {group}", Case(paged_attention._attend, types, plain, options)
        turning, with_table = constants | norms, types | {"rotary": TYPES[dtype]}
        if head_dim <= FUSED_ROPE_WIDTH and tokens == 1:
            turns = Case(paged_attention._attend, with_table, turning | {"NEW": 1}, options)
            yield f"decode that turns {what} {group}", turns
        if head_dim <= FUSED_ROPE_WIDTH and group > 1 and (not fp8 or tokens == 1):
            taken = triton.next_power_of_2(launch.rows // group * group)
            drafts = Case(paged_attention._attend, with_table, turning | {"NEW": MOST_NEW, "TAKEN": taken}, options)
            yield f"drafts that turn {what} {launch.rows} {group}", drafts


def hopper_prompts(able: Capability) -> Iterator[tuple[str, Case]]:
    """For heads that have a launch, groups that suit it, windows and sinks."""
    if able != H200:
        return
    kinds = [(64, 4, 0, False), (64, 8, 128, True), (64, 7, 0, False), (128, 1, 0, False), (128, 4, 0, False)]
    kinds += [(128, 8, 4096, False), (128, 64, 0, False), (256, 4, 0, False), (256, 4, 512, False)]
    for head_dim, group, window, sinks in kinds:
        launch = HOPPER_LAUNCHES[head_dim]
        padded = launch.padded(group)
        boxes = {"queries": [64 // padded, padded, 64], "keys": [1, 16, 64], "values": [1, 16, 64]}
        types: dict[str, str] = {
            name: f"tensordesc<bf16{str(box).replace(' ', '')},{hopper_attention.BOX!r}>" for name, box in boxes.items()
        }
        types |= {"tables": "*i64", "items": "*i32", "tiles": "i32", "table_stride": "i32", "factor": "fp32"}
        types |= {"sinks": "*fp32"} if sinks else {}
        constants = {"SHAPE": hopper_attention.Shape.of(launch, 8, group, window)}
        constants |= {} if sinks else {"sinks": None}
        yield (
            f"hopper prompt {head_dim} of {group}, window {window}",
            Case(hopper_attention.hopper_attention, types, constants, {"num_warps": 4}),
        )


def widening(able: Capability) -> Iterator[tuple[str, Case]]:
    """Widen keys and values of 8 bits for Hopper's prompts."""
    if able != H200:
        return
    types = {"keys": "*fp8e4nv", "values": "*fp8e4nv", "key_scales": "*fp32", "value_scales": "*fp32"}
    types |= {"tables": "*i64", "slot": "*i32", "length": "*i32", "table_stride": "i32:16", "seen": "i32"}
    for head_dim in HOPPER_LAUNCHES:
        yield (
            f"widen pages {head_dim}",
            Case(widen_pages_kernel, types, {"HEADS": 8, "PAGE": 16, "HEAD_DIM": head_dim}, {"num_warps": 1}),
        )


def moves(able: Capability) -> Iterator[tuple[str, Case]]:
    """Llama-3.1-8B's pages, to staging and back."""
    if able != H200:
        return
    types = {"staged": "*i64", "pool": "*i64", "pages": "*i64", "staged_stride": "i64:16", "pool_stride": "i64:16"}
    for name, out in (("gathered", True), ("scattered", False)):
        yield f"pages {name}", Case(move_pages_kernel, types, {"WORDS": 4096, "BLOCK": 2048, "OUT": out}, {})


def hopper_products(able: Capability) -> Iterator[tuple[str, Case]]:
    """Into new memory, and onto the residual stream."""
    if able != H200:
        return
    for name, launch in (("alone", hopper_launch.ALONE), ("onto", hopper_launch.ONTO)):
        tile, result = hopper_product.TILE, hopper_product.RESULT
        boxes = {"x": ("i8", [launch.rows, 128], tile), "weight": ("i8", [launch.columns, 128], tile)}
        boxes |= dict.fromkeys(("residual", "out"), ("bf16", [launch.rows, 64], result))
        types = {
            each: f"tensordesc<{kind}{str(box).replace(' ', '')},{layout!r}>"
            for each, (kind, box, layout) in boxes.items()
        }
        types |= {"x_scales": "*fp32", "scales": "*fp32"} | dict.fromkeys(("m", "tiles_m", "tiles_n", "steps"), "i32")
        constants = hopper_product.constants(launch, onto=name == "onto")
        yield f"hopper product {name}", Case(hopper_product.hopper_product_kernel, types, constants, {"num_warps": 4})


def grouped_experts(able: Capability) -> Iterator[tuple[str, Case]]:
    """A few rows per expert, and many, through gpt-oss's experts: of biases, a gate of their own and odd sizes."""
    lists = {"chosen_ptr": "*i32", "pairs_ptr": "*i32", "starts_ptr": "*i32"}
    one = {"BLOCK": 2048}
    yield "dispatch", Case(dispatch.dispatch_kernel, lists | {"count": "i32"}, one, {"num_warps": 4})
    lists |= {"counts_ptr": "*i32"} | dict.fromkeys(("count", "segments"), "i32")
    for kernel in (dispatch.count_kernel, dispatch.place_kernel):
        constants = {"EXPERTS": 128, "SEGMENT": dispatch.SEGMENT}
        here = {name: kind for name, kind in lists.items() if name in kernel.arg_names}
        yield f"dispatch {kernel.__name__}", Case(kernel, here, constants, {"num_warps": 8})
    types = dict.fromkeys(("pairs_ptr", "starts_ptr"), "*i32")
    types |= {"experts": "i32", "N": "i32:16", "K": "i32:16"}
    uses = {
        "up": {"CHOSEN": 4, "ACTIVATION": "clamped_silu", "GATED": True},
        "down": {"CHOSEN": 0, "ACTIVATION": None, "GATED": False},
    }
    for (use, constants), rows, dtype in product(uses.items(), (2, 64, 512), TYPES):
        item, gated = dtype.itemsize, use == "up"
        launch = grouped_tables.fitted(grouped_tables.unmeasured(rows, item), able, gated=gated, item=item)
        here = constants | {"described": None, "EVEN_K": 2880 % launch.columns == 0, "EXPERTS": 32}
        here |= {"BLOCK_M": launch.tokens, "BLOCK_N": launch.rows, "BLOCK_K": launch.columns}
        values = dict.fromkeys(("x_ptr", "weight_ptr", "bias_ptr", "out_ptr"), TYPES[dtype])
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        what = f"experts {use} {rows} {str(dtype).removeprefix('torch.')}"
        yield what, Case(grouped_kernel, types | values, here, options)


FORMS = {
    "plain": (packed_tiles.PLAIN, {"weight_ptr": "*bf16"}, 0),
    "int8": (packed_tiles.BY_ROW, {"weight_ptr": "*i8", "scale_ptr": "*fp32"}, 0),
    "fp8": (packed_tiles.BY_ROW, {"weight_ptr": "*fp8e4nv", "scale_ptr": "*fp32"}, 0),
    "fp8-block": (packed_tiles.BY_BLOCK, {"weight_ptr": "*fp8e4nv", "scale_ptr": "*fp32"}, 0),
    "int4": (packed_tiles.INT4, {"weight_ptr": "*i16", "scale_ptr": "*i32"}, 1),
    "mxfp4": (packed_tiles.MXFP4, {"weight_ptr": "*i16", "scale_ptr": "*u8"}, 0),
    "q4_k": (packed_tiles.GGUF, {"weight_ptr": "*u8"}, gguf_kernels.NUMBERS["q4_k"]),
    "q6_k": (packed_tiles.GGUF, {"weight_ptr": "*u8"}, gguf_kernels.NUMBERS["q6_k"]),
}


def packed_experts(able: Capability) -> Iterator[tuple[str, Case]]:
    """One row and many of each form, through gpt-oss's experts."""
    types = {"chosen_ptr": "*i32", "pairs_ptr": "*i32", "starts_ptr": "*i32", "M": "i32", "experts": "i32"}
    types |= {"N": "i32:16", "K": "i32:16", "STRIDE": "i32:16"}
    for (name, (form, kinds, detail)), rows in product(FORMS.items(), (1, 64, 512)):
        if not able.multiplies_fp8 and name.startswith("fp8"):
            continue
        many, gated = rows > MOST_FEW, rows == 1
        columns = 256 if name == "mxfp4" else 128
        launch = packed_launch(Form(name, form.value, (torch.empty(0), None), 0, columns), rows, 2)
        constants: dict[str, Any] = {"FORM": form.value, "DETAIL": detail, "PAIRED": name in ("int4", "mxfp4")}
        constants |= {"KIND": tl.bfloat16 if name == "int4" else None, "SORTED": many, "BY_EXPERT": rows == 64}
        constants |= {"FIRST": gated, "CHOSEN": 4, "EXPERTS": 32, "EVEN_K": 2880 % launch.columns == 0}
        constants |= {"ACTIVATION": "clamped_silu" if gated else None, "GATED": gated}
        constants |= {"BLOCK_M": launch.tokens, "BLOCK_N": launch.rows, "BLOCK_K": launch.columns}
        constants |= {} if many else {"pairs_ptr": None, "starts_ptr": None}
        constants |= {} if "scale_ptr" in kinds else {"scale_ptr": None}
        here = {each: kind for each, kind in (types | kinds).items() if each not in constants}
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        yield f"packed experts {name} {rows}", Case(packed_experts_kernel, here, constants, options)


def mxfp4_products() -> Iterator[tuple[str, Case]]:
    types = {"words_ptr": "*i16", "scales_ptr": "*u8", "M": "i32", "chunk": "i32", "partial_ptr": "*fp32"}
    types |= {"arrived_ptr": "*i32"} | dict.fromkeys(("N", "K", "stride"), "i32:16")
    for m, gated in ((1, False), (64, False), (16, True)):
        launch = mxfp4_kernels.launch_for(m, 4096, 4096, 132)
        constants: dict[str, Any] = {"EVEN_K": True, "PAIRED": True, "BLOCK_K": launch.columns, "GATED": gated}
        constants |= {"ACTIVATION": "silu" if gated else None, "GROUP_M": TOGETHER}
        constants |= {"BLOCK_M": launch.tokens, "BLOCK_N": launch.rows}
        constants |= {"partial_ptr": None, "arrived_ptr": None} if launch.splits == 1 else {}
        here = {each: kind for each, kind in types.items() if each not in constants}
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        yield f"mxfp4 {m}{' gated' if gated else ''}", Case(mxfp4_kernels.mxfp4_kernel, here, constants, options)
    widening = {"words_ptr": "*i16", "scales_ptr": "*u8", "first": "i32", "count": "i32", "K": "i32:16"}
    constants = {"EVEN_K": True, "BLOCK_N": 32, "BLOCK_K": mxfp4_kernels.COLUMNS, "PAIRED": True}
    yield "mxfp4 widened", Case(mxfp4_kernels.widen_kernel, widening, constants, {"num_warps": 4})


def hopper_experts(able: Capability) -> Iterator[tuple[str, Case]]:
    """A few rows per expert, and a prompt, through gpt-oss's experts."""
    if able != H200:
        return
    numbers = {"pairs_ptr": "*i32", "starts_ptr": "*i32", "N": "i32:16"}
    numbers |= dict.fromkeys(("experts", "steps", "tiles"), "i32")
    for use, activation in (("up", "clamped_silu"), ("down", None)):
        for tokens in (8, 16, 32, 64, 128):
            boxes = {"weight": 128 if tokens == 128 else 64} | ({} if activation else {"x": min(tokens, 64)})
            types = {name: f"tensordesc<bf16[{rows},64],{hopper_tiles.TILE!r}>" for name, rows in boxes.items()}
            if tokens == 128:
                kernel, launch = hopper_grouped.hopper_grouped_kernel, HopperGroupedLaunch(4)
                constants = hopper_grouped.constants(launch, 32, 4, activation, biased=True)
            else:
                kernel, streamed = hopper_streamed.hopper_streamed_kernel, HopperStreamedLaunch(tokens, 8)
                constants = hopper_streamed.constants(streamed, 32, 4, activation, biased=True, early=True)
            yield f"hopper experts {use} {tokens}", Case(kernel, types | numbers, constants, {"num_warps": 4})


def name_of(able: Capability) -> str:
    return f"sm_{10 * able.major + able.minor}"


def checked(able: Capability, name: str, case: Case) -> Resources:
    used = case.compiled(able, early=able.starts_early)
    assert used.shared <= able.shared_memory, f"{name}: {used.shared} bytes of shared memory"
    return used


SAMPLE = [
    "norm",
    "summed norm",
    "gemv 4096 4096",
    "few rows 8 gated",
    "streamed gemv 896 4864 1 8",
    "streamed gemv 4864 896 2 4",
    "streamed rows 8 4864 896",
    "decode 128 bfloat16 16 2",
    "block best",
    "statistics",
    "asked block",
]
SAMPLE += ["int4 1", "int8 64", "fp8 16 gated", "fp8-block 256", "rounded *i8 16384"]
SAMPLE += ["rope and store fp8", "decode 128 bfloat16 fp8 16 2", "pack rows", "accept drafts", "look up"]
SAMPLE += ["accept drafts without states", "first inputs", "next inputs"]
SAMPLE += ["first rows", "next rows", "keep draft", "work"]
SAMPLE += ["dispatch", "dispatch place_kernel", "experts up 2 bfloat16", "experts down 512 bfloat16"]
SAMPLE += ["packed experts mxfp4 1", "packed experts q4_k 64", "mxfp4 16 gated", "packed experts int4 512"]
SAMPLE += ["rope and store, norm across heads", "queries alone 512", "activation times", "decode 512 bfloat16 16 16"]


def test_every_number_of_a_kernel_has_its_type_here():
    """A number without a type would be compiled as a pointer, and only the stress test would notice. None is no number:
    Triton's interpreter takes it, and a GPU's launcher raises TypeError."""
    for name, case in cases(H200):
        numbers = {argument for argument, kind in case.kernel.fn.__annotations__.items() if kind in (int, float)}
        assert numbers <= {*case.types, *case.constants}, name
        assert all(case.constants.get(number, 0) is not None for number in numbers), name


OLD = [name for name in SAMPLE[::2] if "fp8" not in name]  # which has no matrix units for 8-bit floats
NEW = [name for name in SAMPLE if name not in OLD]


@pytest.mark.parametrize(("able", "names"), [(Capability(8, 6), OLD), (Capability(12, 0), NEW)], ids=["old", "new"])
def test_a_sample_of_kernels_compiles_and_fits(able, names):
    """Half of it for an old GPU, the rest for a new one."""
    there = dict(cases(able))
    for name in names:
        checked(able, name, there[name])


def test_a_prompt_fits_a_gpu_with_little_shared_memory():
    """On an H200 this tile has 256 rows, and 160 KiB."""
    able = Capability(8, 6)
    *_, (name, case) = attention(able, 128, 2, torch.bfloat16)
    assert name == "prompt 128 bfloat16 128 2"
    checked(able, name, case)


@pytest.mark.parametrize("head_dim", HOPPER_LAUNCHES)
def test_a_long_prompt_on_hopper_issues_what_was_raced_and_spills_nothing_in_its_loop(head_dim):
    name, case = next(each for each in hopper_prompts(H200) if each[0] == f"hopper prompt {head_dim} of 4, window 0")
    used, launch = checked(H200, name, case), HOPPER_LAUNCHES[head_dim]
    threads = 128 * (launch.consumers + 1)
    assert used.registers == 65536 // threads // 8 * 8, "all that a program of so many threads may begin with"
    loop = shortest_loop_with(used.binary, "MUFU.EX2")
    products = head_dim // 16 + 2 * launch.keys // 16  # scores; sums of values, and of ones: each takes 16 at once
    assert sum("HGMMA" in line for line in loop) == products
    exponentials = 64 * launch.keys // 128 + 2  # of a thread's scores, and of the shrinking of its two rows
    assert sum("MUFU.EX2" in line for line in loop) == exponentials
    assert not [line for line in loop if "LDL" in line or "STL" in line], "registers kept in memory"


def shortest_loop_with(binary: bytes, operation: str) -> list[str]:
    """Find the innermost loop that has the operation, in a disassembled program."""
    found = re.findall(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", instructions(binary), re.MULTILINE)
    places = {int(place, 16): number for number, (place, _) in enumerate(found)}
    loops = []
    for number, (place, line) in enumerate(found):
        back = re.search(r"BRA.* 0x([0-9a-f]+)", line)
        if back and (begin := int(back[1], 16)) < int(place, 16):
            loops.append([each for _, each in found[places[begin] : number + 1]])
    return min((loop for loop in loops if any(operation in line for line in loop)), key=len)


@pytest.mark.parametrize("number", [0, 1], ids=["alone", "onto the stream"])
def test_a_product_on_hopper_spills_no_register_and_waits_for_products_once_per_tile(number):
    """A compiler that cannot follow them would wait behind each product, and says so nowhere but in what it makes."""
    name, case = list(hopper_products(H200))[number]
    used, launch = checked(H200, name, case), (hopper_launch.ALONE, hopper_launch.ONTO)[number]
    assert used.spilled == 0
    products = hopper_launch.CONSUMERS * launch.rows // 64 * launch.columns // 128 * hopper_launch.DEPTH // 32
    assert used.assembly.count("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8") == products
    waits = instructions(used.binary).count("WARPGROUP.DEPBAR")
    assert waits == 2 * hopper_launch.CONSUMERS, "for those before the last ones, in the loop, and for these behind it"


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("able", EVERY, ids=name_of)
def test_every_kernel_compiles_and_fits(able, record_property):
    for name, case in cases(able):
        used = checked(able, name, case)
        record_property(name, f"{used.registers} registers, {used.spilled} spilled, {used.shared} shared")
        if able == H200:
            most = next((bytes for start, bytes in SPILLED.items() if name.startswith(start)), 0)
            assert used.spilled <= most, f"{name}: {used.spilled} bytes spilled"


@pytest.mark.parametrize("able", first([Capability(8, 9), Capability(9, 0), Capability(12, 0)], count=2), ids=name_of)
def test_early_launches_are_said_to_work_exactly_where_they_compile(able, capfd):
    case = dict(beside_products(able))["activation"]
    if able.starts_early:
        assert "griddepcontrol.wait" in case.compiled(able, early=True).assembly
    else:
        with pytest.raises(Exception, match=r"(?i)griddepcontrol|ptxas|internal"):
            case.compiled(able, early=True)
    capfd.readouterr()  # the assembler's complaint


# -- capability ------------------------------------------------------------------------------------------------------


def test_ampere_and_newer_run_kernels_and_hopper_and_newer_start_early():
    runs = {able: (able.runs_kernels, able.starts_early) for able in (Capability(7, 5), *EVERY)}
    assert runs[7, 5] == (False, False)
    assert runs[8, 0] == runs[8, 6] == runs[8, 9] == (True, False)
    assert runs[9, 0] == runs[10, 0] == runs[12, 0] == (True, True)


def test_a_gpu_never_heard_of_is_given_the_least_shared_memory():
    assert Capability(13, 7).shared_memory == min(able.shared_memory for able in EVERY) == 99 * 1024
    assert OLDEST.shared_memory == 163 * 1024 and H200.shared_memory == 227 * 1024


# -- attention tiles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("head_dim, group", [*product([20, 64, 96, 128, 256], [1, 4, 7, 20]), (512, 8), (512, 16)])
def test_tiles_are_cut_to_what_a_gpu_has_and_no_further(head_dim, group, dtype):
    wide = triton.next_power_of_2(head_dim) * dtype.itemsize
    here, there = launches(head_dim, dtype, group), launches(head_dim, dtype, group, able=Capability(8, 6))
    ampere = launches(head_dim, dtype, group, able=Capability(8, 0))
    assert [replace(launch, fits=0) for launch in ampere] == [replace(launch, fits=0) for launch in here]
    for launch in there:
        assert bytes_needed(launch.rows, launch.keys, launch.stages, wide, dtype.itemsize) <= 99 * 1024
        assert launch.rows >= group
    assert [launch.rows for launch in there] == sorted({launch.rows for launch in there})
    assert there[0].keys == here[0].keys


def test_stages_go_before_rows_and_warps_go_with_rows():
    assert fitted((64, 32, 8, 3), 4, 512, 2, 99 * 1024) == (64, 32, 8, 2)
    assert fitted((256, 64, 16, 3), 2, 256, 2, 99 * 1024) == (128, 64, 8, 2)
    assert fitted((256, 64, 16, 3), 2, 256, 2, 227 * 1024) == (256, 64, 16, 3)
    with pytest.raises(ValueError, match="no attention tile of 16 rows"):
        fitted((64, 64, 4, 3), 1, 512, 4, 1024)
