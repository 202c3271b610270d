"""Defaults are lowered on a small or a shared GPU until a cache worth having is left; settings that were given are not.

No GPU is needed: the plan is arithmetic on a model without memory, and on what a GPU is said to have.
"""

import json
from dataclasses import replace

import pytest
import torch

from gradus.cli.memory import as_dict, render
from gradus.config.options import EngineConfig
from gradus.config.settings import Settings, stated
from gradus.device.capability import Assumed, Capability, assuming
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.execution.gpu.prompt_graphs import prompt_sizes
from gradus.execution.memory import plan as planning
from gradus.execution.memory.concessions import EACH, LADDER, LONG, Concession, conceded, descending, worth_having
from gradus.execution.memory.device_memory import DeviceMemory
from gradus.execution.memory.plan import MemoryPlan, memory_plan, sized, weight_bytes
from gradus.kernels.quantized import tile_tables
from gradus.models.create import create_model
from gradus.models.shapes import SHAPES
from gradus.quantization.precision import resolve
from gradus.scheduling.draft_shapes import DraftShapes, batch_sizes

CPU, GPU = torch.device("cpu"), torch.device("cuda:7")
GB = 10**9
ROOMY = DeviceMemory(79 * GB, 80 * GB)

pytestmark = pytest.mark.usefixtures("prompts_are_not_raced")


@pytest.fixture(autouse=True)
def a_gpu_that_runs_kernels(monkeypatch):
    monkeypatch.setattr(planning, "missing", lambda kind: None)
    monkeypatch.setattr(tile_tables, "table_of", lambda device: None)
    monkeypatch.setattr(tile_tables, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # a real one would be asked for its processes


def options(shape: str, **settings) -> EngineConfig:
    config = SHAPES[shape]
    limits = ModelLimits(config.vocab_size, settings.get("context_length") or config.context_length)
    return Settings.of(settings).options(limits, "cuda")


def plan(shape: str, found: DeviceMemory, quantize: str | None = None, **settings) -> MemoryPlan:
    precision = resolve("bfloat16", quantize, CPU, SHAPES[shape])
    return memory_plan(SHAPES[shape], options(shape, **settings), GPU, precision, memory=found)


def names(plan: MemoryPlan) -> list[str]:
    return [one.setting for one in plan.concessions]


# -- what starts -------------------------------------------------------------------------------------------------------

TARGETS = [
    ("smollm2-135m", None, 1 * GB),
    ("qwen3-0.6b", None, 3 * GB),
    ("llama-3.2-1b", None, int(4.5 * GB)),
    ("llama-3.1-8b", "int4", 8 * GB),
]


@pytest.mark.parametrize("total", [0, 80 * GB], ids=["small", "shared"])
@pytest.mark.parametrize(("shape", "quantize", "free"), TARGETS)
def test_it_starts_with_a_cache_worth_having(shape, quantize, free, total):
    """Alone on a GPU where CUDA takes half a gigabyte, or on a large one where others hold the rest."""
    found = DeviceMemory(free, total or free + GB // 2)
    shown = plan(shape, found, quantize)
    assert shown.fits and shown.beside_cache + shown.cache_bytes <= shown.usable_bytes <= 0.95 * free
    assert shown.pages.positions >= worth_having(shown.applied(options(shape)))
    assert shown.max_sequences >= 16 and "graphs" not in names(shown)
    assert replace(shown, concessions=()).notes != shown.notes and "instead of" in shown.notes[0]


@pytest.mark.parametrize(("shape", "quantize", "free"), TARGETS)
def test_a_gpu_with_memory_to_spare_gets_every_default(shape, quantize, free):
    shown = plan(shape, ROOMY, quantize)
    assert (shown.concessions, shown.max_sequences) == ((), 256) and shown.step_tokens >= 8192


def test_steps_are_longer_where_memory_is_plenty_and_nobody_waits_for_their_end():
    big, small = DeviceMemory(139 * GB, 140 * GB), DeviceMemory(23 * GB, 24 * GB)
    longer = plan("llama-3.2-1b", big)
    assert longer.step_tokens == 16384 and not longer.notes
    assert longer.applied(options("llama-3.2-1b")).token_budget == 16384
    shorter = plan("llama-3.2-1b", small)
    assert shorter.step_tokens == 8192, "half a gigabyte is too much of 24"
    assert shorter.applied(options("llama-3.2-1b")).token_budget == 8192
    for asked in ({"token_budget": 8192}, {"step_target": 0.1}):
        assert plan("llama-3.2-1b", big, **asked).step_tokens == 8192, asked


def test_longer_steps_leave_a_cache_worth_having():
    """They would take 8,448 of its 67,200 tokens, and leave fewer than the 65,536 that are worth having."""
    asked = {"context_length": 32768}
    shown = plan("llama-3.1-8b", DeviceMemory(37 * GB, 80 * GB), **asked)
    assert shown.pages.positions >= worth_having(options("llama-3.1-8b", **asked)) > shown.pages.positions - 8448
    assert (shown.step_tokens, shown.concessions) == (8192, ())
    assert plan("llama-3.1-8b", DeviceMemory(40 * GB, 80 * GB), **asked).step_tokens == 16384


def test_longer_steps_shorten_no_request():
    """Layers with a window hold a step's tokens as well, and the first cache has few pages. Memory has no room for the
    whole context in the second."""
    big = DeviceMemory(139 * GB, 140 * GB)
    shown = plan("gemma3-1b", big, cache_tokens=16384)
    assert (shown.context_length, shown.wanted_context, shown.step_tokens) == (32768, None, 8192)
    assert plan("gemma3-1b", big, cache_tokens=32768).step_tokens == 16384
    found = DeviceMemory(40 * GB, 80 * GB)
    asked = plan("llama-3.1-8b", found, token_budget=8192)
    assert plan("llama-3.1-8b", found).context_length == asked.context_length < 131_072


def test_a_budget_is_not_taken_from_the_number_of_sequences():
    """A step has at least a token for each."""
    asked = options("smollm2-135m", max_sequences=16384, step_target=0.1, cache_tokens=10**6)
    shown = plan("smollm2-135m", ROOMY, max_sequences=16384, step_target=0.1, cache_tokens=10**6)
    assert shown.step_tokens == 16384 and shown.applied(asked).token_budget == 8192


H200 = Assumed("NVIDIA H200", Capability(9, 0), 132)


@pytest.mark.parametrize(
    ("shape", "settings", "widened"),
    [
        ("llama-3.1-8b", {}, 8 * 128),
        ("llama-3.1-8b", {"page_size": 32}, 0),
        ("llama-3.2-3b", {}, 0),  # three heads per key head
        ("phi3.5-mini", {}, 0),  # heads of 96
        ("gpt-oss-20b", {}, 8 * 64),  # half of its layers have too narrow a window
        ("gemma4-12b", {}, 0),  # two kinds of heads
    ],
)
def test_what_long_prompts_widen_into_is_planned_where_a_layer_takes_the_hopper_kernel(shape, settings, widened):
    context = SHAPES[shape].context_length
    with assuming(H200):
        eight, sixteen = (
            plan(shape, ROOMY, context_length=context, kv_dtype=kind, **settings) for kind in ("fp8", "auto")
        )
    assert eight.table_bytes - sixteen.table_bytes == 2 * context * widened * 2
    with assuming(H200._replace(capability=Capability(10, 0))):
        assert plan(shape, ROOMY, kv_dtype="fp8", **settings).table_bytes == sixteen.table_bytes


def test_a_draft_widens_its_keys_and_values_too():
    config, draft = SHAPES["llama-3.1-8b"], SHAPES["llama-3.2-1b"]
    precision = resolve("bfloat16", None, CPU, config)
    with assuming(H200):
        eight, sixteen = (
            memory_plan(
                config,
                options("llama-3.1-8b", speculate="draft:llama-3.2-1b", kv_dtype=kind),
                GPU,
                precision,
                memory=ROOMY,
                draft=(draft, precision),
            )
            for kind in ("fp8", "auto")
        )
    assert eight.table_bytes - sixteen.table_bytes == 2 * 131_072 * (8 * 128 + 8 * 64) * 2


def test_what_is_left_over_is_said_in_one_line():
    shown = plan("qwen3-0.6b", DeviceMemory(int(11.5 * GB), 12 * GB))
    assert shown.notes == [
        "cuda:7 has 11.5 GB of 12 GB free: token_budget 2048 instead of 8192, max_sequences 128 instead of 256, to "
        "leave room for the cache"
    ]
    assert shown.notes[0] in render(shown)
    assert json.loads(json.dumps(as_dict(shown)))["concessions"] == [
        {"setting": "token_budget", "default": 8192, "became": 2048},
        {"setting": "max_sequences", "default": 256, "became": 128},
    ]


def test_the_engine_and_its_statistics_get_the_numbers_as_they_turned_out():
    asked, shown = options("qwen3-0.6b"), plan("qwen3-0.6b", DeviceMemory(3 * GB, 80 * GB))
    applied = shown.applied(asked)
    assert (applied.token_budget, applied.max_sequences, applied.memory_fraction) == (512, 16, shown.memory_fraction)
    assert applied.max_sequences == shown.max_sequences and applied.budget("cuda") == shown.step_tokens
    assert applied.yielding == frozenset() and not applied.sized  # so the engine is built as planned
    told = stated(None, applied, applied.budget("cuda"))
    assert (told["token_budget"], told["max_sequences"], told["cache_tokens"]) == (512, 16, shown.pages.positions)


# -- what gives way ----------------------------------------------------------------------------------------------------


def test_the_less_memory_the_further_down_the_ladder():
    asked = options("qwen3-0.6b")
    down = [(16384, 256), *((one.token_budget, one.max_sequences) for one in descending(asked, ROOMY))]
    plans = (plan("qwen3-0.6b", DeviceMemory(free * GB, free * GB + GB // 2)) for free in (24, 12, 6, 4, 3))
    places = [down.index((one.step_tokens, one.max_sequences)) for one in plans]
    assert places[0] == 0 and places == sorted(places) and len(set(places)) == len(places)


def test_the_ladder_goes_down():
    for name in dict(LADDER):
        values = [value for step, value in LADDER if step == name]
        assert values == sorted(values, reverse=True) and len(set(values)) == len(values)
    everything = list(descending(options("qwen3-0.6b"), DeviceMemory(GB, 2 * GB)))
    assert (everything[0], len(everything)) == (options("qwen3-0.6b"), 2 + len(LADDER))
    last = everything[-1]
    assert (last.token_budget, last.max_sequences, last.graphs) == (256, 8, False)


@pytest.mark.parametrize(
    "asked",
    [
        {"token_budget": 8192},
        {"max_sequences": 256},
        {"memory_fraction": 0.9},
        {"token_budget": 8192, "max_sequences": 8},
    ],
)
def test_what_was_set_does_not_change(asked):
    for found in (DeviceMemory(3 * GB, 4 * GB), DeviceMemory(2 * GB, 2 * GB)):
        shown = plan("qwen3-0.6b", found, **asked)
        assert not asked.keys() & set(names(shown))
        assert all(getattr(tried, name) == value for tried in descending(options("qwen3-0.6b", **asked), found)
                   for name, value in asked.items())  # fmt: skip


def test_a_budget_leaves_prompts_half_of_a_step():
    """256 sequences were asked for. Their decodes would fill a budget of 256 and leave no room for a prompt."""
    last = list(descending(options("qwen3-0.6b", max_sequences=256), DeviceMemory(GB, GB)))[-1]
    assert (last.max_sequences, last.token_budget) == (256, 512)


def test_prompts_that_are_not_cut_have_no_budget_to_concede():
    tried = descending(options("qwen3-0.6b", switch_off=["chunked"]), DeviceMemory(GB, GB))
    assert {one.token_budget for one in tried} == {8192}


def test_on_a_cpu_nothing_gives_way():
    limits = ModelLimits(320, 512)
    for free in (0, GB):
        assert len(list(descending(Settings().options(limits, "cpu"), DeviceMemory(free)))) == 1


@pytest.mark.parametrize(("sequences", "context", "worth"), [(1, 512, 512), (1, 8192, LONG), (256, 8192, 256 * EACH),
                                                              (4, 100, 400)])  # fmt: skip
def test_a_cache_is_worth_having(sequences, context, worth):
    asked = EngineConfig(ModelLimits(320, context), max_sequences=sequences)
    assert worth_having(asked) == worth


def test_a_cache_that_was_asked_for_gets_its_room_too():
    """The plan has to fit, since the cache cannot be made smaller."""
    shown = plan("qwen3-0.6b", DeviceMemory(3 * GB, int(3.5 * GB)), cache_tokens=8000, context_length=4096)
    assert shown.fits and shown.pages.positions == 8000 and "token_budget" in names(shown)


def test_nothing_is_conceded_for_pages_that_nobody_would_allocate(monkeypatch):
    """The books are full, and memory is left: a shorter step would not make the cache larger."""
    monkeypatch.setattr(planning, "MOST_PAGES", 100)
    shown = plan("gemma3-1b", ROOMY)
    assert shown.pages.positions < worth_having(options("gemma3-1b")) and shown.concessions == ()


def test_the_log_says_what_gave_way_once(caplog):
    shown = plan("smollm2-135m", DeviceMemory(GB, 2 * GB))
    assert not caplog.records
    shown.applied(options("smollm2-135m"))
    assert [record.message for record in caplog.records] == shown.notes != []


def test_graphs_of_a_drafts_prompts_are_planned_for():
    """Beside the memory of the largest pass, which all share: it is the larger model's, or the draft's longer one."""
    config, asked = SHAPES["llama-3.2-3b"], options("llama-3.2-3b", speculate="draft:llama-3.2-1b")
    precision = resolve("bfloat16", None, CPU, config)
    draft = (SHAPES["llama-3.2-1b"], precision)
    alone, both = (memory_plan(config, asked, GPU, precision, memory=ROOMY, draft=one) for one in (None, draft))
    sizes = prompt_sizes(SHAPES["llama-3.2-1b"], 8192)
    own = len(sizes) * planning.GRAPH_BYTES + sum(sizes) * 2048 * 2  # and hidden states, in bfloat16
    slots, most = asked.max_sequences, asked.most_drafts
    by_row, by_pass = (DraftShapes(most, slots, passes=passes) for passes in (False, True))
    steps = sum(len(by_pass.of(size)) - len(by_row.of(size)) for size in batch_sizes(slots))
    own += 2 * steps * planning.GRAPH_BYTES  # of each shape two graphs
    assert 0 <= both.graph_bytes - alone.graph_bytes - own < 0.5 * GB


# -- a GPU that others use ---------------------------------------------------------------------------------------------


def test_a_tenth_of_what_others_leave_stays_unused_not_a_tenth_of_the_whole():
    shown = plan("smollm2-135m", DeviceMemory(20 * GB, 80 * GB))
    assert shown.concessions == () and shown.usable_bytes == 12 * GB  # enough: then what was documented holds
    shown = plan("smollm2-135m", DeviceMemory(10 * GB, 80 * GB))
    assert shown.concessions == (Concession("memory_fraction", 0.9, 0.9875),) and shown.usable_bytes == 9 * GB


def test_others_that_hold_little_change_no_fraction():
    assert "memory_fraction" not in names(plan("qwen3-0.6b", DeviceMemory(int(5.6 * GB), 6 * GB)))


# -- a refusal ---------------------------------------------------------------------------------------------------------


def refusal(shape: str, found: DeviceMemory, **settings) -> str:
    with pytest.raises(ConfigError) as refused:
        plan(shape, found, **settings).applied(options(shape, **settings))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_refusal_names_what_was_set_and_can_be_lowered():
    found = DeviceMemory(GB, 2 * GB)
    told = refusal("qwen3-0.6b", found, token_budget=8192)
    assert "; lower token_budget, or take a smaller model" in told
    told = refusal("qwen3-0.6b", found, max_sequences=256, memory_fraction=0.9)
    assert "within memory_fraction 0.9; raise it, lower max_sequences, or take a smaller model" in told
    assert "; take a smaller model" in refusal("qwen3-0.6b", found)  # all that can give way has
    assert "; take a smaller model" in refusal("qwen3-0.6b", found, max_sequences=1)
    told = refusal("qwen3-0.6b", found, switch_off=["chunked"])
    assert "; lower context_length, or take a smaller model" in told  # a whole prompt is a step


def test_a_refusal_names_whose_memory_is_in_the_way(monkeypatch):
    found = DeviceMemory(GB, 80 * GB, own=20 * GB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        "gradus.execution.memory.device_memory.other_processes",
        lambda index: [(41, 50 * GB), (7, 8 * GB)] * (index == 7),
    )
    assert refusal("qwen3-0.6b", found).endswith(
        "; of 80 GB, this process holds 20 GB, and other processes and CUDA 59 GB (process 41 has 50 GB, "
        "process 7 has 8 GB)"
    )


def test_weights_that_are_loaded_are_in_nobodys_way(monkeypatch):
    """They count as free, so this process does not hold them in the engine's way."""
    model = create_model(SHAPES["tiny-llama"])
    found = DeviceMemory(free=0, total=GB, own=weight_bytes(model) + 5)
    monkeypatch.setattr(DeviceMemory, "of", lambda device: found)
    with pytest.raises(ConfigError, match=r"; of 1 GB, this process holds 5 B, and "):
        sized(model, EngineConfig(ModelLimits(320, 512), memory_fraction=0.5, kernels=False, graphs=False))


def test_conceded_is_what_became_of_it():
    asked = options("qwen3-0.6b")
    assert conceded(asked, asked) == ()
    (one,) = conceded(asked, replace(asked, graphs=False))
    assert str(one) == "no graphs"
