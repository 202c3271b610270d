"""The plan is what really gets allocated, by arithmetic that can be done on paper; nothing is promised twice."""

import json
from dataclasses import replace

import pytest
import torch

from gradus import LLM
from gradus.assembly.final import EngineConfig, build
from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.paged import PagedAttention, block_table_bytes, block_tables
from gradus.attention.storage import PagedStorage
from gradus.bench.sizing.cards import CARDS
from gradus.cache.groups import layer_groups
from gradus.cache.paged import PagedCache
from gradus.cli.memory import as_dict, render
from gradus.config.options import EngineOptions
from gradus.device.capability import Capability, assuming
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.execution.gpu.page_copies import PageCopies
from gradus.execution.memory import device_memory as memory
from gradus.execution.memory import plan as planning
from gradus.execution.memory.device_memory import DeviceMemory, free_memory, readable
from gradus.execution.memory.plan import MemoryPlan, PagePlan, memory_plan, step_bytes
from gradus.kernels import check_kv_dtype
from gradus.models import create_model, randomize
from gradus.models.config import Experts, LayerSizes
from gradus.models.precision import resolve_precision
from gradus.models.shapes import SHAPES
from gradus.quantization.precision import resolve
from gradus.sampling.sampler import Sampler
from gradus.sampling.slots import SlotTable, table_bytes
from gradus.speculative.history import history_bytes
from tests.attention.mixed import MIXED

CPU = torch.device("cpu")
TINY = SHAPES["tiny-llama"]
TOKEN = 2 * 4 * 2 * 24 * 4  # keys and values, 4 layers, 2 key-value heads of 24, 4 bytes
MB = 1_000_000


def options(shape="tiny-llama", context=None, **settings):
    limits = ModelLimits(SHAPES[shape].vocab_size, context or SHAPES[shape].context_length)
    return EngineConfig(limits, **({"memory_fraction": 0.5, "kernels": False, "graphs": False} | settings))


def plan(found, shape="tiny-llama", device=CPU, **settings):
    precision = resolve_precision("float32", CPU, SHAPES[shape])
    return memory_plan(SHAPES[shape], options(shape, **settings), device, precision, memory=found)


def of_phase(phase, shape="tiny-llama", found=None, context=None, dtype="float32", **settings) -> MemoryPlan:
    limits = ModelLimits(SHAPES[shape].vocab_size, context or SHAPES[shape].context_length)
    precision = resolve_precision(dtype, CPU, SHAPES[shape])
    return memory_plan(SHAPES[shape], EngineOptions(limits, **settings), CPU, precision, phase=phase, memory=found)


# -- a phase: the cache has the size that was asked for ----------------------------------------------------------------

PAPER = MemoryPlan(
    device="cpu",
    dtype="float32",
    cache_dtype="float32",
    free_bytes=2000,
    total_bytes=None,
    memory_fraction=0.9,
    usable_bytes=1800,
    weight_bytes=400,
    cache_bytes=600,
    cache_bytes_per_token=2,
    max_sequences=3,
    context_length=100,
)


def test_the_arithmetic_on_paper():
    assert PAPER.cache_bytes_per_sequence == 200
    assert PAPER.sequences_that_fit == 7  # 1800 less 400 leaves 1400
    assert (PAPER.sequences, PAPER.left_bytes, PAPER.fits) == (3, 800, True)
    assert replace(PAPER, max_sequences=9).sequences == 7
    assert replace(PAPER, pages=PagePlan(16, 12, 600, 192)).sequences == 1


def test_sequences_that_fit_hold_only_their_windows():
    """A gemma of 3 groups: a context of 320 tokens has 20 pages, and a window of 16 tokens 2 at most."""
    windowed = PagePlan(16, 47, 48 * 100, 15 * 16, (None, 16, 16))
    shown = replace(PAPER, context_length=320, cache_bytes=48 * 100, usable_bytes=400 + 6 * 2400, pages=windowed)
    assert shown.cache_bytes_per_sequence == (20 + 2 + 2) * 100
    assert (shown.sequences_that_fit, shown.sequences) == (6, 1) and shown.sequences_by_length == {320: 1}


def test_a_model_that_does_not_fit_runs_nothing():
    small = replace(PAPER, usable_bytes=90)
    assert (small.sequences, small.fits) == (0, False)


def test_a_phase_that_runs_one_at_a_time_has_a_cache_for_one():
    one, five = (of_phase(phase, context=100, max_sequences=5) for phase in ("p01", "p03"))
    assert (one.max_sequences, one.cache_bytes) == (1, 100 * TOKEN)
    assert (five.max_sequences, five.cache_bytes) == (5, 500 * TOKEN)


def test_a_tenth_of_the_free_memory_is_left_to_the_steps_of_a_phase():
    plan = of_phase("p03", found=DeviceMemory(free=1000 * MB), context=100)
    assert plan.usable_bytes == 900 * MB and plan.left_bytes == 900 * MB - plan.weight_bytes - plan.cache_bytes


@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-llama", "tiny-qwen3", "tiny-gemma3"])
def test_weights_are_what_the_model_really_allocates(shape):
    model = create_model(SHAPES[shape])
    allocated = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    assert of_phase("p00", shape).weight_bytes == allocated


def test_cache_bytes_follow_the_formula():
    """30 layers, 3 key-value heads of 64."""
    assert of_phase("p01", "smollm2-135m", dtype="bfloat16").cache_bytes_per_token == 2 * 30 * 3 * 64 * 2


def test_a_model_too_large_for_this_machine_is_planned_without_being_allocated():
    plan = of_phase("p01", "llama-3.1-8b", DeviceMemory(8 << 30))
    assert plan.weight_bytes > 8 << 30
    assert plan.sequences_that_fit == 0 and not plan.fits


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])
def test_pages_are_counted_as_they_are_allocated(shape):
    """tiny-gemma3 has windows: several layer groups share the pool."""
    asked = options(shape, context=100, max_sequences=3, page_size=16, cache_tokens=330)
    pages = PagePlan.of(SHAPES[shape], asked, itemsize=4)
    storage = PagedStorage(SHAPES[shape], pages.count, 16, torch.float32, CPU)
    assert pages.bytes == storage.keys.nbytes + storage.values.nbytes
    assert pages.positions == 21 * 16 and pages.count == 21 * len(storage.groups)
    cache = PagedCache(pages.count, 16, [group.window for group in storage.groups])
    assert all(cache.reserve(number, 100) for number in range(3)) and not cache.reserve(3, 1)


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("name", MIXED)
def test_pages_of_mixed_layers_are_counted_as_they_are_allocated(name, kv_dtype):
    """Two kinds of heads, windows, and layers that store nothing."""
    config, kind = MIXED[name], Fp8Storage if kv_dtype == "fp8" else PagedStorage
    pages = PagePlan.of(config, options(context=90, page_size=8, cache_tokens=300, kv_dtype=kv_dtype), itemsize=4)
    storage = kind(config, pages.count, 8, torch.float32, CPU)
    assert pages.bytes == storage.nbytes == (pages.count + 1) * storage.page_bytes
    assert pages.count == 38 * len(layer_groups(config))


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3", "tiny-gemma4", "tiny-gemma4-e"])
def test_the_paged_phases_allocate_what_is_planned(shape):
    llm = LLM(
        f"random:{shape}",
        phase="p06",
        device="cpu",
        dtype="float32",
        context_length=100,
        max_sequences=3,
        cache_tokens=330,
    )
    plan = of_phase("p06", shape, context=100, max_sequences=3, cache_tokens=330)
    assert llm.metrics().cache.pages == plan.pages.count
    storage = llm.engine.runner.attention.storage
    tensors = {id(layer): layer for layer in (*storage.keys, *storage.values)}  # some layers read another's
    assert sum(layer.nbytes for layer in tensors.values()) == plan.cache_bytes


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3", "tiny-gemma4", "tiny-gemma4-e"])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_the_final_engine_allocates_what_is_planned(shape, kv_dtype):
    shown = plan(DeviceMemory(10**9), shape, cache_tokens=330, kv_dtype=kv_dtype)
    llm = LLM(f"random:{shape}", device="cpu", dtype="float32", cache_tokens=330, kv_dtype=kv_dtype)
    assert llm.engine.runner.attention.storage.nbytes == shown.cache_bytes == shown.pages.bytes
    assert llm.settings["kv_dtype"] == kv_dtype


def test_pages_that_do_not_fit_beside_the_weights_are_told():
    plan = of_phase("p04", found=DeviceMemory(1 << 30), cache_tokens=1600)
    assert plan.fits and plan.cache_bytes == plan.pages.bytes
    plan = of_phase("p04", found=DeviceMemory(plan.weight_bytes + plan.cache_bytes), cache_tokens=1600)
    assert not plan.fits and "does NOT fit" in render(plan)  # nothing left for activations


def test_this_machine_has_memory():
    plan = of_phase("p01")
    assert plan.free_bytes > 1 << 20
    assert plan.sequences_that_fit > 0


@pytest.mark.gpu
def test_a_gpu_tells_its_free_memory():
    assert 0 < free_memory(torch.device("cuda")) <= torch.cuda.get_device_properties(0).total_memory


# -- the final engine: what is left ------------------------------------------------------------------------------------


def test_the_cache_gets_what_weights_the_largest_step_and_sampling_leave():
    shown = plan(DeviceMemory(free=8 * MB))
    left = 4 * MB - shown.weight_bytes - shown.step_bytes - shown.table_bytes
    pages = left // (16 * TOKEN)  # of which page 0 is nobody's
    assert (shown.pages.count, shown.pages.positions) == (pages - 1, (pages - 1) * 16)
    assert 0 <= shown.left_bytes < 16 * TOKEN and shown.fits


def test_in_fp8_nearly_twice_the_tokens_of_bfloat16_fit():
    """Heads of 64: 64 bytes and 4 for their scale, in place of 128."""
    precision = resolve_precision("bfloat16", CPU, SHAPES["smollm2-135m"])
    found = DeviceMemory(free=2 * 10**9)
    both = [
        memory_plan(
            SHAPES["smollm2-135m"], options("smollm2-135m", max_sequences=32, kv_dtype=kv_dtype), CPU, precision,
            memory=found,
        )
        for kv_dtype in ("auto", "fp8")
    ]  # fmt: skip
    assert [each.cache_bytes_per_token for each in both] == [2 * 30 * 3 * 128, 2 * 30 * 3 * 68]
    assert [each.cache_dtype for each in both] == ["bfloat16", "fp8"] and both[1].fits
    assert both[1].pages.positions / both[0].pages.positions == pytest.approx(128 / 68, rel=0.01)
    assert "fp8, 12.24 kB per token" in render(both[1])


@pytest.mark.parametrize(
    ("found", "kernels", "fine"), [((8, 9), True, True), ((8, 6), True, False), ((8, 6), False, True)]
)
def test_kernels_that_could_not_read_the_cache_are_told_before_weights_are_loaded(monkeypatch, found, kernels, fine):
    monkeypatch.setattr("gradus.kernels.missing", lambda device: None)
    monkeypatch.setattr("gradus.device.capability.capability", lambda device: Capability(*found))
    if fine:
        return check_kv_dtype("fp8", torch.device("cuda:1"), kernels)
    with pytest.raises(ConfigError, match=r"8.9 or later, cuda:1 has 8.6: leave it out, or .* \(switch_off\)$"):
        check_kv_dtype("fp8", torch.device("cuda:1"), kernels)
    with pytest.raises(ConfigError, match="kv_dtype fp8"):
        plan(DeviceMemory(10**9), device=torch.device("cuda:1"), kernels=True, kv_dtype="fp8")
    check_kv_dtype("auto", torch.device("cuda:1"), kernels)


@pytest.mark.usefixtures("prompts_are_not_raced")
def test_what_long_prompts_over_8_bits_are_widened_into_is_counted_for_a_draft_model_too():
    """They take the keys and values of one layer, 131,072 positions of 8 heads of 64 in bfloat16, on a Hopper GPU. The
    second model has three query heads per key head and never takes the kernel."""
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    layers = [SHAPES[name].stage(range(1)) for name in ("llama-3.2-1b", "llama-3.2-3b")]
    one, other = ((each, resolve_precision("bfloat16", CPU, each)) for each in layers)
    found = DeviceMemory(free=60_000 * MB)

    def tables(model, draft=None, **settings) -> int:
        asked = options("llama-3.2-1b", kernels=True, memory_fraction=1.0, **settings)
        planned = memory_plan(model[0], asked, torch.device("cuda"), model[1], memory=found, draft=draft)
        return planned.table_bytes

    with assuming(CARDS["h100"].assumed):
        plain, fp8 = tables(one), tables(one, kv_dtype="fp8")
        assert fp8 - plain == 2 * 131_072 * 8 * 64 * 2
        assert tables(one, one, kv_dtype="fp8") - plain == 2 * (fp8 - plain)
        assert tables(one, other, kv_dtype="fp8") == tables(other, one, kv_dtype="fp8") == fp8
    with assuming(CARDS["l4"].assumed):
        assert tables(one, kv_dtype="fp8") == tables(one) == plain


@pytest.mark.parametrize("max_sequences", [1, 3, 8])
def test_what_sampling_keeps_of_each_slot_is_counted_as_it_is_allocated(max_sequences):
    """`seen` among it, which is made once a request has a penalty; no masks, which this sampler keeps nowhere."""
    table = Sampler(TINY.vocab_size, CPU, max_sequences).table
    table.allocate()
    shown = plan(DeviceMemory(free=8 * MB), max_sequences=max_sequences)
    kept = shown.table_bytes - block_table_bytes(1, max_sequences + 1, TINY.context_length, 16)
    assert kept == history_bytes(max_sequences, 1, whole=False) + stored_bytes(table)


@pytest.mark.parametrize("context", [None, 500, 16])
def test_block_tables_have_room_for_the_engines_contexts_and_are_counted(context):
    """Gemma 4 12B has 21 groups of layers: with 257 slots of 262,144 tokens their tables take 707 MB."""
    model = MIXED["wide full layers"]
    storage = PagedStorage(model, 8, 16, torch.float32, CPU)
    given = None if context is None else block_tables(storage, 9, context)
    tables = PagedAttention(model, storage, 9, given).tables
    assert tables.nbytes == block_table_bytes(len(storage.groups), 9, context or model.context_length, 16)
    assert 700 * MB < block_table_bytes(len(layer_groups(SHAPES["gemma4-12b"])), 257, 262_144, 16) < 710 * MB
    long = plan(DeviceMemory(free=80 * MB), "gemma3-270m", max_sequences=8, memory_fraction=1.0)
    short = plan(DeviceMemory(free=80 * MB), "gemma3-270m", max_sequences=8, memory_fraction=1.0, context=16)
    assert long.table_bytes - short.table_bytes == block_table_bytes(6, 9, 32768 - 16, 16)


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_what_pages_pass_through_on_their_way_to_host_memory_is_counted_as_it_is_allocated(kv_dtype):
    without, with_host = (
        plan(DeviceMemory(free=900 * MB), memory_fraction=1.0, kv_dtype=kv_dtype, host_cache=size) for size in (None, 1)
    )
    kind = Fp8Storage if kv_dtype == "fp8" else PagedStorage
    copies = PageCopies(kind(TINY, 8, 16, torch.float32, CPU), 1)
    assert with_host.table_bytes - without.table_bytes == copies.staging_bytes > 120 * MB
    assert without.cache_bytes >= with_host.cache_bytes
    copies.close()


@pytest.mark.parametrize("max_sequences", [1, 3, 8])
def test_the_kernels_sampler_also_keeps_masks_and_a_slot_for_padding(max_sequences):
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    from gradus.sampling.kernel_sampler import KernelSampler

    table = KernelSampler(TINY.vocab_size, CPU, max_sequences).table
    assert stored_bytes(table) == table_bytes(TINY.vocab_size, max_sequences + 1, masks=True)
    assert stored_bytes(table) - table_bytes(TINY.vocab_size, max_sequences + 1, masks=False) == table.masks.nbytes


def stored_bytes(table: SlotTable) -> int:
    """Count the bytes of all tensors of the table; some are parts of one."""
    stored = [each.untyped_storage() for each in vars(table).values() if isinstance(each, torch.Tensor)]
    return sum({each.data_ptr(): each.nbytes() for each in stored}.values())


def test_a_step_on_paper():
    """tiny-llama: width 64, 4 query and 2 key-value heads of 24, an MLP of 160, 320 tokens."""
    assert (TINY.hidden_size, TINY.num_heads, TINY.intermediate_size, TINY.vocab_size) == (64, 4, 160, 320)
    row = (2 * 64 + 3 * 160) * 4 + 2 * 64 * 4
    assert step_bytes(TINY, 100, 7, itemsize=4) == 100 * row + 7 * 320 * 48
    wide = [LayerSizes(2, 24, 160)] * 3 + [LayerSizes(2, 24, 320)]
    assert step_bytes(replace(TINY, sizes=tuple(wide)), 100, 0, itemsize=4) == 100 * (row + 3 * 160 * 4)
    experts = replace(TINY, experts=(Experts(8, 2, 96),) * 4)
    chosen = 2 * (3 * 96 + 2 * 64) + 2 * 8  # gate, features, product, row and result of each, and the router's logits
    assert step_bytes(experts, 100, 0, itemsize=4) == 100 * (row + chosen * 4)
    narrow, inputs = (2 * 64 + 3 * 160) * 4, 4 * 8
    assert step_bytes(replace(TINY, per_layer_width=8), 100, 0, itemsize=4) == 100 * (narrow + inputs * 4 + 2 * 64 * 4)


@pytest.mark.usefixtures("prompts_are_not_raced")
def test_what_quantized_products_hold_beside_their_results_is_part_of_a_step(monkeypatch):
    """4 bits are made wide, and 8 bits of activations, with a scale per token; of few rows sums are shared."""
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    from gradus.kernels.fuse.quantized import scratch_bytes
    from gradus.kernels.quantized import tile_tables

    def scratch(quantize, rows, sampled, dtype=torch.bfloat16):
        config = SHAPES["llama-3.1-8b"]
        precision = resolve("bfloat16", quantize, CPU, config)
        model = create_model(config, dtype=dtype, device="meta", linear=precision.linear)
        return scratch_bytes(model, rows, sampled, dtype, CPU)

    monkeypatch.setattr(tile_tables, "multiprocessors", lambda device: 132)
    piece = 16384 * 4096 * 2  # 128 MiB of the 28672 rows of gate and up
    assert scratch("int4", 8192, 64) == piece
    assert scratch("int8", 8192, 64) == 8192 * (14336 + 4)
    assert scratch("int4", 1, 1) == 8 * 4096 * 4  # sums of the products with 4096 outputs, in eight parts
    assert scratch(None, 8192, 64) == 0
    monkeypatch.setattr(planning, "missing", lambda kind: None)
    with_kernels, without = (planned_in_4_bits(kernels) for kernels in (True, False))
    assert with_kernels.step_bytes - without.step_bytes == 2 * 160 * 64 * 4  # all of gate and up, in float32


def planned_in_4_bits(kernels):
    precision = resolve("float32", "int4", CPU, TINY)
    asked = options(kernels=kernels, token_budget=512)
    return memory_plan(TINY, asked, CPU, precision, memory=DeviceMemory(free=80 * MB))


def test_of_a_gpu_a_part_of_the_whole_may_be_in_use_whoever_uses_it():
    assert DeviceMemory(free=70, total=100).usable(0.9) == 60  # others hold 30
    assert DeviceMemory(free=5, total=100).usable(0.9) == 0
    assert DeviceMemory(free=70).usable(0.5) == 35  # a CPU: of what is free


def test_no_more_is_taken_than_all_sequences_can_fill():
    shown = plan(DeviceMemory(free=10**12), max_sequences=3, context=100)
    assert shown.pages.positions == 304 and shown.left_bytes > 10**11


def test_the_books_stay_small_unless_more_is_asked_for(monkeypatch):
    monkeypatch.setattr(planning, "MOST_PAGES", 13)
    assert plan(DeviceMemory(10**12)).pages.count == 13
    assert plan(DeviceMemory(10**12), "tiny-gemma3").pages.count == 12  # its blocks are of 2 pages
    assert plan(DeviceMemory(10**12), cache_tokens=4096).pages.count == 256


def test_an_explicit_cache_wins():
    shown = plan(DeviceMemory(free=10**12), cache_tokens=640)
    assert shown.pages.positions == 640 and not shown.sized
    assert plan(DeviceMemory(free=10 * MB), cache_tokens=10**6).fits is False  # and is not made smaller


@pytest.mark.parametrize("larger", [{"token_budget": 64}, {"token_budget": 64, "max_sequences": 64}])
def test_what_a_step_takes_the_cache_does_not_get(larger):
    """A budget of more tokens, and more rows with logits."""
    small = plan(DeviceMemory(free=8 * MB), token_budget=16, max_sequences=16, context=500)
    large = plan(DeviceMemory(free=8 * MB), **({"max_sequences": 16, "context": 500} | larger))
    assert large.step_bytes > small.step_bytes and large.pages.count < small.pages.count


def test_without_chunks_a_step_is_as_long_as_a_prompt():
    assert plan(DeviceMemory(free=10**9), chunked=False, context=400).step_tokens == 400
    assert plan(DeviceMemory(free=10**9), token_budget=32, context=400).step_tokens == 32


def test_graphs_are_planned_for_where_they_can_be_captured(monkeypatch):
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    monkeypatch.setattr(planning, "missing", lambda device: None)
    monkeypatch.setattr(planning, "graph_bytes", lambda *_: 2 * MB)
    gpu = torch.device("cuda")
    on = plan(DeviceMemory(8 * MB, 10 * MB), device=gpu, kernels=True, graphs=True, token_budget=64)
    off = plan(DeviceMemory(8 * MB, 10 * MB), device=gpu, kernels=True, token_budget=64)
    assert (on.graph_bytes, off.graph_bytes) == (2 * MB, 0)
    assert on.pages.positions < off.pages.positions


# -- what is too small -------------------------------------------------------------------------------------------------


def test_the_longest_request_is_what_the_cache_holds():
    shown = plan(None, cache_tokens=100, page_size=10)
    assert shown.context_length == 100 and shown.wanted_context == 512
    assert shown.notes == [
        "a request may have 100 tokens, not context_length's 512: the cache holds no more; raise cache_tokens, or "
        "lower context_length"
    ]
    applied = shown.applied(options(cache_tokens=100, page_size=10))
    assert (applied.limits.context_length, applied.cache_tokens) == (100, 100)
    assert plan(None, cache_tokens=100, page_size=10, context=100).notes == []


def test_a_cache_that_memory_made_small_says_so_too():
    room = plan(DeviceMemory(0)).beside_cache + 20 * 16 * TOKEN
    (note,) = plan(DeviceMemory(2 * room)).notes
    assert "raise memory_fraction" in note


@pytest.mark.parametrize("budget", [8, 64, 500])
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-mistral", "tiny-gemma3"])
def test_the_longest_request_is_the_longest_that_the_cache_manager_takes(shape, budget):
    """With windows it may be longer than the positions that all layers have room for."""
    shown = plan(None, shape, cache_tokens=160, page_size=8, token_budget=budget)
    windows = [group.window for group in layer_groups(SHAPES[shape])]
    cache, length = PagedCache(shown.pages.count, 8, windows), shown.context_length
    assert cache.fits(length, min(length, budget))
    assert length == shown.wanted_context or length == 512 or not cache.fits(length + 1, min(length + 1, budget))
    assert length >= 160


def test_where_nothing_is_left_it_is_one_line_that_says_where_it_went():
    shown = plan(DeviceMemory(free=MB))
    assert not shown.fits and not shown.notes and "does NOT fit" in render(shown)
    with pytest.raises(ConfigError, match=r"no memory is left for a cache on cpu: weights take .* memory_fraction 0.5"):
        shown.applied(options())


def test_a_cache_for_no_request_at_all_is_refused():
    with pytest.raises(ConfigError, match="a cache of 1 tokens holds no request"):
        plan(None, cache_tokens=1, page_size=1).applied(options(cache_tokens=1, page_size=1))


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, 90, float("nan"), True, "0.9"])
def test_a_fraction_is_a_part_of_the_whole(fraction):
    with pytest.raises(ConfigError, match="memory_fraction must be a number above 0 and at most 1, got"):
        options(memory_fraction=fraction)


@pytest.mark.parametrize("fraction", [1e-6, 0.5, 1, 1.0])
def test_all_of_it_is_a_part_too(fraction):
    assert options(memory_fraction=fraction).memory_fraction == fraction


# -- the engine is as planned ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])
def test_an_engine_built_by_itself_sizes_its_cache(shape, monkeypatch):
    model = create_model(SHAPES[shape])
    randomize(model)
    monkeypatch.setattr(memory, "free_memory", lambda device: 8 * MB)
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    expected = plan(DeviceMemory(8 * MB + weights), shape, max_sequences=64)  # as if it were still to be loaded
    engine = build(model, options(shape, max_sequences=64))
    storage: PagedStorage = engine.runner.attention.storage
    assert expected.sized and expected.pages.positions < 64 * 512
    assert engine.metrics().cache.pages == expected.pages.count
    assert storage.keys.nbytes + storage.values.nbytes == expected.pages.bytes


def test_without_a_fraction_nobody_looks_at_the_memory(monkeypatch):
    model = create_model(TINY)
    randomize(model)
    monkeypatch.setattr(memory, "free_memory", lambda device: 0)
    engine = build(model, options(memory_fraction=None, max_sequences=2))
    assert engine.metrics().cache.pages == 2 * 512 // 16


STANDS = replace(
    PAPER,
    device="cuda",
    free_bytes=900 * MB,
    total_bytes=1000 * MB,
    usable_bytes=800 * MB,
    sized=True,
    weight_bytes=300 * MB,
    graph_bytes=100 * MB,
    cache_bytes=200 * MB,
    step_bytes=200 * MB,
)


@pytest.mark.parametrize(
    ("free", "said", "refused"),
    [
        (300 * MB, "", ""),  # as planned: 900 less weights, graphs and cache
        (251 * MB, "", ""),
        (249 * MB, "took 51 MB more than was planned: a lower memory_fraction (now 0.9) leaves more", ""),
        (199 * MB, "", "199 MB are left on cuda .* may take 200 MB; start-up, .* took 101 MB more .*: lower memory_fr"),
    ],
)
def test_once_it_stands_its_largest_step_has_room_and_keeps_it(monkeypatch, caplog, free, said, refused):
    """A hundred MB are left unused by memory_fraction: half of them may go without a word."""
    kept, cuda = [], torch.device("cuda")
    monkeypatch.setattr(planning, "free_memory", lambda device: free)
    monkeypatch.setattr(planning, "keep", lambda size, device: kept.append((size, device)))
    STANDS.check_room(CPU)  # there, nothing can be said
    if refused:
        with pytest.raises(ConfigError, match=refused):
            STANDS.check_room(cuda)
    else:
        STANDS.check_room(cuda)
    assert kept == ([] if refused else [(200 * MB, cuda)])
    assert [said in record.message for record in caplog.records] == ([True] if said else [])


def test_both_renderings_hold_every_figure():
    shown = plan(DeviceMemory(8 * MB, 10 * MB))
    content = json.loads(json.dumps(as_dict(shown)))
    assert content["fits"] and content["cache_bytes"] == content["pages"]["bytes"] == shown.cache_bytes
    text = render(shown)
    assert "8 MB of 10 MB, of which 3 MB may be taken (memory_fraction 0.5)" in text
    assert f"{shown.pages.positions} tokens in all layers" in text and "which fits" in text


def test_both_renderings_of_a_phase_hold_every_figure():
    assert "sequences that fit  7 of full length (context 100 tokens)" in render(PAPER)
    assert "largest step" not in render(PAPER)  # what was not estimated is not shown
    assert json.loads(json.dumps(as_dict(PAPER)))["sequences"] == 3


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (538_060_032, "538.1 MB"), (5e12, "5 TB")])
def test_sizes_are_readable(size, text):
    assert readable(size) == text
