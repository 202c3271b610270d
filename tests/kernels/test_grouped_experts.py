"""The grouped products of experts: interpreted on the CPU, compiled for an H200, and which launch takes which."""

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch

from gradus.device.capability import Capability
from gradus.execution.gpu.warm_up import steps
from gradus.kernels.experts import grouped_tables
from gradus.kernels.experts.grouped import grouped_kernel
from gradus.kernels.experts.grouped_launch import (
    AnyLaunch,
    GroupedLaunch,
    HopperGroupedLaunch,
    HopperLaunch,
    HopperStreamedLaunch,
)
from gradus.kernels.experts.grouped_tables import MeasuredGroups, choose_launch, copies, fitted, unmeasured
from gradus.kernels.experts.hopper import grouped as hopper_grouped
from gradus.kernels.experts.hopper import streamed as hopper_streamed
from gradus.kernels.experts.hopper import tiles as hopper_tiles
from tests.kernels.ahead_of_time import EVERY, H200, Resources, compile_for, instructions
from tests.kernels.interpreter import run_interpreted

STREAMING, SHARING = GroupedLaunch(16, 64, 128, 3, 4, early=True), GroupedLaunch(128, 128, 64, 3, 8)


def test_interpreted_on_the_cpu_they_do_what_their_references_do():
    run_interpreted("interpreted_grouped_experts.py")


def compiled(launch: GroupedLaunch, *, up: bool) -> Resources:
    """Qwen3-30B-A3B's first product of its experts, or the second."""
    types = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), "*bf16") | {"pairs_ptr": "*i32", "starts_ptr": "*i32"}
    types |= {"experts": "i32", "N": "i32:16", "K": "i32:16"}
    constants = {"CHOSEN": 8, "ACTIVATION": "silu"} if up else {"CHOSEN": 0, "ACTIVATION": None}
    constants |= {"bias_ptr": None, "GATED": up, "EVEN_K": True, "EXPERTS": 128, "PDL": launch.early}
    constants |= {"BLOCK_M": launch.tokens, "BLOCK_N": launch.rows, "BLOCK_K": launch.columns}
    if launch.copied:
        types["described"] = f"tensordesc<bf16[{launch.rows},{launch.columns}]>"
    else:
        constants["described"] = None
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    return compile_for(H200, grouped_kernel, types, constants, **options)


@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
@pytest.mark.parametrize("copied", [False, True], ids=["pointers", "copy engine"])
@pytest.mark.parametrize(("launch", "registers"), [(STREAMING, 96), (SHARING, 255)], ids=["few", "many"])
def test_on_an_h200_they_multiply_on_the_matrix_units_and_spill_nothing(launch, registers, copied, up):
    used = compiled(launch._replace(copied=copied), up=up)
    assert used.spilled == 0 and used.registers <= registers
    assert "wgmma.mma_async" in used.assembly
    assert ("cp.async.bulk.tensor" in used.assembly) == copied
    stages = launch.shared_bytes(gated=up)
    assert stages <= used.shared <= stages + 2048 <= H200.shared_memory


def test_two_programs_that_stream_weights_share_a_multiprocessor():
    used = compiled(STREAMING, up=True)
    assert H200.programs(warps=STREAMING.warps, shared=used.shared, registers=used.registers) == 2


def test_a_first_product_lets_the_second_start_only_after_its_own_wait():
    """The second reads before it waits what the launch before the first wrote."""
    text = compiled(STREAMING, up=True).assembly
    assert 0 < text.index("griddepcontrol.wait") < text.index("griddepcontrol.launch_dependents")
    text = compiled(STREAMING, up=False).assembly
    assert 0 < text.index("griddepcontrol.launch_dependents") < text.index("griddepcontrol.wait")


def on_hopper(launch: HopperLaunch, *, up: bool, biased: bool) -> Resources:
    """Qwen3-30B-A3B's first product of its experts, or the second."""
    types = dict.fromkeys(("bias_ptr", "out_ptr"), "*bf16") | {"pairs_ptr": "*i32", "starts_ptr": "*i32"}
    types |= dict.fromkeys(("experts", "steps", "tiles"), "i32") | {"N": "i32:16"}
    activation = "silu" if up else None
    if isinstance(launch, HopperStreamedLaunch):
        types |= {"x": "*bf16" if up else described(launch.tokens), "weight": described(64)}
        constants = hopper_streamed.constants(launch, 128, 8, activation, biased=biased, early=True)
        return compile_for(H200, hopper_streamed.hopper_streamed_kernel, types, constants, num_warps=4)
    types |= {"x": "*bf16" if up else described(64), "weight": described(128)}
    constants = hopper_grouped.constants(launch, 128, 8, activation, biased=biased)
    return compile_for(H200, hopper_grouped.hopper_grouped_kernel, types, constants, num_warps=4)


def described(rows: int) -> str:
    return f"tensordesc<bf16[{rows},64],{hopper_tiles.TILE!r}>"


@pytest.mark.parametrize(("up", "biased"), [(True, False), (False, True)], ids=["up", "down with biases"])
@pytest.mark.parametrize(
    ("launch", "product", "issued", "waits"),
    [
        (HopperGroupedLaunch(4), "m64n256k16", 2 * 4, 2 * 2),
        (HopperStreamedLaunch(16, 11), "m64n16k16", 2 * 4, 2),
        (HopperStreamedLaunch(64, 8), "m64n64k16", 2 * 4, 2),
    ],
    ids=["prompt", "few", "more"],
)
def test_on_hopper_no_register_is_spilled_and_products_are_waited_for_once_per_tile(
    launch, product, issued, waits, up, biased
):
    """A compiler that cannot follow them would wait behind each product, and says so nowhere but in what it makes."""
    used = on_hopper(launch, up=up, biased=biased)
    assert used.spilled == 0 and used.shared <= H200.shared_memory
    assert used.assembly.count(f"wgmma.mma_async.sync.aligned.{product}") == issued, "four of 16 columns, of both parts"
    found = instructions(used.binary).count("WARPGROUP.DEPBAR")
    assert found == waits, "for those before the last ones, in the loop, and for these behind it"
    assert used.assembly.count("cp.async.mbarrier.arrive.noinc") == up, "gathered rows count toward the tile's barrier"


# -- which launch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("able", EVERY, ids=str)
@pytest.mark.parametrize("item", [2, 4])
def test_every_launch_of_the_rule_fits_every_gpu(able, item):
    for rows in (1, 8, 16, 17, 64, 65, 4096):
        launch = fitted(unmeasured(rows, item), able, gated=True, item=item)
        assert launch.shared_bytes(gated=True, item=item) <= able.shared_memory - 2048
        assert launch.stages >= 2 and launch.columns >= 16


def test_a_launch_too_large_loses_stages_and_then_columns():
    assert fitted(SHARING, H200, gated=True, item=2) == SHARING
    assert fitted(SHARING, Capability(8, 6), gated=True, item=2) == SHARING._replace(stages=2)
    wide = SHARING._replace(columns=128)
    assert fitted(wide, Capability(8, 6), gated=True, item=2) == SHARING._replace(stages=2)


def test_the_copy_engine_needs_a_hopper_and_rows_of_multiples_of_16_bytes():
    assert copies(H200, 2048, 2) and copies(Capability(12, 0), 2048, 2)
    assert not copies(Capability(8, 9), 2048, 2) and not copies(H200, 2044, 2)


@pytest.fixture
def measured(monkeypatch):
    """An H200 with a table: 16 and 512 rows per expert."""
    hopper, streams = HopperGroupedLaunch(4), STREAMING._replace(copied=True)
    launches = {use: {(768, 2048): (streams, hopper)} for use in ("up", "down")}
    table = MeasuredGroups("NVIDIA H200", H200, (16, 512), launches)
    monkeypatch.setattr(grouped_tables, "table_of", lambda device: table)
    monkeypatch.setattr(grouped_tables, "capability", lambda device: H200)
    choose_launch.cache_clear()
    yield hopper, streams
    choose_launch.cache_clear()


def chosen(pairs: int, k: int = 2048, *, gated: bool = True) -> AnyLaunch:
    return choose_launch("up", pairs, 128, 768, k, torch.bfloat16, gated, torch.device("cuda"))


def test_the_next_measured_number_of_rows_per_expert_chooses_and_beyond_all_the_last(measured):
    hopper, streams = measured
    assert chosen(8) == chosen(16 * 128) == streams
    assert chosen(16 * 128 + 1) == chosen(512 * 128) == chosen(5000 * 128) == hopper


def test_what_hopper_s_kernel_does_not_multiply_takes_the_rule_s_launch(measured):
    many = 512 * 128
    for launch in (chosen(many, 2080), chosen(many, gated=False)):
        assert launch == unmeasured(512)
    assert chosen(8, 2044).copied is False


def test_launches_are_read_as_they_were_stored():
    stored = [{"kind": "hopper streamed", "tokens": 16, "stages": 11}, {"kind": "hopper grouped", "stages": 4}]
    schemes = {"up": [{"n": 768, "k": 2048, "launches": stored}]}
    found = {"device": "NVIDIA H200", "capability": [9, 0], "rows": [1, 8], "schemes": schemes}
    table = MeasuredGroups.read(found)
    assert table.choose("up", 1, 768, 2048) == HopperStreamedLaunch(16, 11)
    assert table.choose("up", 8, 768, 2048) == HopperGroupedLaunch(4)


@pytest.mark.parametrize(("experts", "taken"), [(128, 8), (8, 2), (32, 4)])
def test_warm_up_meets_every_launch_that_a_prompt_can_take(experts, taken, monkeypatch):
    """For models with experts, `steps` ends with the longest prompt."""
    rows = (1, 2, 4, 8, 16, 64, 256, 512)
    launches = {
        use: {(768, 2048): tuple(HopperStreamedLaunch(16, number) for number in rows)} for use in ("up", "down")
    }
    table = MeasuredGroups("NVIDIA H200", H200, rows, launches)
    monkeypatch.setattr(grouped_tables, "table_of", lambda device: table)
    monkeypatch.setattr(grouped_tables, "capability", lambda device: H200)
    choose_launch.cache_clear()

    def met(lengths):
        device = torch.device("cuda")
        sizes = 768, 2048, torch.bfloat16, True, device
        return {choose_launch("up", tokens * taken, experts, *sizes) for tokens in lengths}

    warmed = {sum(counts) for counts in steps(8192, most=8192, crowd=64)}
    assert met(warmed) == met(range(2, 8193))
    choose_launch.cache_clear()
