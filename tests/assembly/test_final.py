"""Where no phase is named the final engine runs: the same tokens, settings that mean something, an end that is told.

What its switches do to tokens is in tests/phases/test_final_engine.py; how its cache is sized, in test_memory_plan.py.
"""

import gc
import math
import sys

import pytest
import torch

from gradus import LLM, SamplingParams, phases
from gradus.assembly.guard import BrokenEngine
from gradus.config.options import SWITCHES
from gradus.config.settings import Settings
from gradus.device.threads import use
from gradus.engine.request import ModelLimits, Request
from gradus.errors import ConfigError, RequestError
from gradus.execution.memory.device_memory import OutOfMemory, free_memory, ran_out

LIMITS = ModelLimits(vocab_size=320, context_length=512)
SOME = SamplingParams(max_tokens=12, ignore_eos=True)
GB = 10**9


def tiny(**settings) -> LLM:
    return LLM("random:tiny-llama", device="cpu", dtype="float32", **settings)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return tiny()


# -- by default --------------------------------------------------------------------------------------------------------


def test_it_runs_where_no_phase_is_named(llm):
    assert llm.phase is None
    assert llm.settings == {
        "engine": "final",
        "max_sequences": 8,
        "page_size": 16,
        "cache_tokens": 8 * 512,
        "policy": "fcfs",
        "step_target": None,
        "slowdown": None,
        "kv_dtype": "auto",
        "activations": "float",
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "speculate": None,
        "draft_quantize": None,
        "drafts": None,
        "token_budget": 256,
        "threads": use(None),
        "memory_fraction": 0.5,
        "prefix_dir": None,
        "host_cache": None,
        "prefix_dir_size": None,
        "runner": None,
        "switches": {"prefix_cache": True, "chunked": True, "kernels": True, "graphs": False, "overlap": True},
    }


@pytest.mark.parametrize("phase", ["p00", "p06"])
def test_its_tokens_are_those_of_the_phases(llm, phase):
    params = [SOME, SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=3, n=2)]
    prompts = ["Once upon", "a time"]
    tokens = [[done.token_ids for done in one.generate(prompts, params)] for one in (llm, tiny(phase=phase))]
    assert tokens[0] == tokens[1]


def test_on_a_cpu_it_does_not_complain_of_what_a_cpu_has_not(caplog):
    tiny()
    assert not caplog.records


def test_it_does_not_need_the_course(monkeypatch):
    """As where only the wheel is installed."""
    monkeypatch.setattr(phases, "find_spec", lambda name: None)
    for name in [name for name in sys.modules if name.split(".")[0] == "phases"]:
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    done = tiny().generate("a", SOME)
    assert len(done[0].token_ids) == 12
    with pytest.raises(ConfigError, match="phases are not installed"):
        tiny(phase="p00")


@pytest.mark.gpu
def test_on_a_gpu_it_runs_with_everything_and_gives_the_cpus_tokens(llm):
    gpu = LLM("random:tiny-llama", device="cuda", dtype="float32", memory_fraction=0.3)
    _share_weights(llm, gpu)  # each device draws its own
    assert gpu.settings["max_sequences"] == 256 and all(gpu.settings["switches"].values())
    assert gpu.settings["cache_tokens"] == 256 * 512  # all that can run
    ours, cpus = (one.generate(["Once upon", "a time"], SOME) for one in (gpu, llm))
    assert [done.token_ids for done in ours] == [done.token_ids for done in cpus]


def model_of(llm: LLM):
    runner = llm.engine.runner
    return getattr(runner, "eager", runner).model


def _share_weights(one: LLM, other: LLM) -> None:
    with torch.inference_mode():
        for mine, theirs in zip(*(model_of(llm).parameters() for llm in (other, one)), strict=True):
            mine.copy_(theirs)


@pytest.mark.gpu
def test_on_a_gpu_no_more_is_in_use_than_was_allowed():
    free, total = torch.cuda.mem_get_info()
    fraction = (total - free + (4 << 30)) / total
    llm = LLM("random:smollm2-135m", device="cuda", dtype="bfloat16", memory_fraction=fraction)
    assert llm.settings["cache_tokens"] < 256 * 8192
    free, _ = torch.cuda.mem_get_info()
    del llm
    gc.collect()
    torch.cuda.empty_cache()
    # other tests may share the GPU: what counts is what this engine held, and theirs seldom changes within a moment
    assert 1 << 30 < torch.cuda.mem_get_info()[0] - free <= 4 << 30


@pytest.mark.gpu
def test_on_a_gpu_with_one_gigabyte_for_it_defaults_are_lowered_and_it_serves():
    device = torch.device("cuda")
    free, total = free_memory(device), torch.cuda.mem_get_info(device)[1]
    llm = LLM("random:smollm2-135m", device="cuda", dtype="bfloat16", memory_fraction=(total - free + GB) / total)
    assert llm.settings["token_budget"] < 8192 and llm.settings["max_sequences"] < 256
    done = llm.generate([[5] * (1 + 31 * number) for number in range(32)], SOME)
    assert {len(one.token_ids) for one in done} == {SOME.max_tokens}
    assert free - torch.cuda.mem_get_info()[0] <= 1.1 * GB


@pytest.mark.gpu
def test_an_engine_finds_the_memory_of_one_that_is_gone_free():
    caches = []
    for _ in range(2):
        llm = LLM("random:llama-3.2-1b", device="cuda", dtype="bfloat16", max_sequences=64)
        caches.append(llm.settings["cache_tokens"])
        del llm
        gc.collect()
    assert caches[1] > 0.95 * caches[0]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_every_setting_reaches_the_engine():
    llm = tiny(max_sequences=3, page_size=8, cache_tokens=160, policy="priority", token_budget=32, context_length=100)
    scheduler = llm.engine.scheduler
    assert (scheduler.max_sequences, scheduler.token_budget, scheduler.policy) == (3, 32, "priority")
    assert (scheduler.cache.page_size, scheduler.cache.pool.count) == (8, 20)
    assert llm.limits.context_length == 100


def test_a_short_prompt_passes_a_long_one_if_a_step_has_a_target():
    def steps_until_it_answers(llm: LLM) -> int:
        engine, one = llm.engine, SamplingParams(max_tokens=1)
        engine.submit(Request.create("long", [65 + number % 50 for number in range(400)], one, llm.limits))
        engine.step()
        engine.submit(Request.create("short", [66] * 5, one, llm.limits))
        for count in range(100):
            if any(output.request_id == "short" for output in engine.step()):
                return count
        raise AssertionError("it never answered")

    assert steps_until_it_answers(tiny(token_budget=16, step_target=60.0)) <= 3
    assert steps_until_it_answers(tiny(token_budget=16)) > 20
    assert tiny(step_target=0.0).engine.scheduler.target is None


def test_a_step_on_a_cpu_says_how_long_it_took(llm, monkeypatch):
    told = []
    learns = llm.engine.scheduler._commit_decodes
    monkeypatch.setattr(
        llm.engine.scheduler, "_commit_decodes", lambda *given: told.append(given[2].seconds) or learns(*given)
    )
    llm.generate([[65, 66]], SamplingParams(max_tokens=3))
    assert len(told) == 3 and all(0 < seconds < 60 for seconds in told)


def test_every_switch_is_one():
    llm = tiny(switch_off=["prefix_cache", "chunked", "overlap", "kernels"])
    assert llm.engine.scheduler.cache.index is None
    assert llm.engine.scheduler.token_budget is None
    assert llm.engine.lag == 0
    assert not any(llm.settings["switches"].values())
    on = tiny().engine
    assert on.scheduler.cache.index is not None and on.scheduler.token_budget == 256 and on.lag == 1


def test_a_gpu_gets_more_sequences_and_its_kernels():
    gpu = Settings().options(LIMITS, "cuda")
    assert gpu.max_sequences == 256 and gpu.memory_fraction == 0.9
    assert all(getattr(gpu, name) for name in SWITCHES)
    assert not Settings(switch_off=["graphs"]).options(LIMITS, "cuda").graphs
    with pytest.raises(ConfigError, match="graphs need kernels: switch both on, or graphs off"):
        Settings(switch_off=["kernels"]).options(LIMITS, "cuda")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"switch_off": ["graph"]}, "switch_off takes prefix_cache, chunked, kernels, graphs, overlap, got 'graph'"),
        ({"switch_off": ["chunked"], "token_budget": 8}, "token_budget does nothing with chunked switched off"),
        ({"switch_off": ["chunked"], "step_target": 0.1}, "step_target does nothing with chunked switched off"),
        ({"switch_off": ["chunked"], "slowdown": 1.5}, "slowdown does nothing with chunked switched off"),
        ({"slowdown": 1.5, "step_target": 0}, "slowdown does nothing without step_target: set step_target, or leave"),
        ({"slowdown": 1.5}, "slowdown does nothing without step_target: set step_target, or leave slowdown out"),
        ({"slowdown": 1, "step_target": 0.1}, "slowdown must be a number above 1, got 1"),
        ({"slowdown": math.inf, "step_target": 0.1}, "slowdown must be a number above 1, got inf"),
        ({"slowdown": math.nan, "step_target": 0.1}, "slowdown must be a number above 1, got nan"),
        ({"step_target": -1}, "step_target must be a number of seconds, 0 or more, got -1"),
        ({"memory_fraction": 0}, "memory_fraction must be a number above 0 and at most 1, got 0"),
        ({"memory_fractoin": 0.5}, "unknown setting 'memory_fractoin'; did you mean 'memory_fraction'?"),
        ({"zoom": 9}, "unknown setting 'zoom'; there are model, phase, impl, device, dtype, quantize, context_length"),
        ({"memory_fraction": 1e-9}, "no memory is left for a cache on cpu"),
        ({"speculate": "magic"}, "speculate must be ngram, draft:MODEL or heads:FOLDER, got 'magic'"),
        ({"speculate": "draft:"}, "speculate must be ngram, draft:MODEL or heads:FOLDER, got 'draft:'"),
        ({"drafts": 3}, "drafts does nothing without speculate: set speculate, or leave drafts out"),
        ({"draft_quantize": "int8"}, "draft_quantize does nothing without a draft model: set speculate to draft:MODEL"),
        ({"speculate": "ngram", "draft_quantize": "int8"}, "draft_quantize does nothing without a draft model"),
        ({"draft_quantize": "int8", "phase": "p07"}, "draft_quantize does nothing in phase p07, leave it out"),
        ({"speculate": "ngram", "drafts": 17}, "drafts must be a whole number between 1 and 16, got 17"),
        ({"speculate": "ngram", "phase": "p06"}, "speculate does nothing in phase p06, leave it out; .* final engine"),
        ({"policy": "fifo"}, "policy must be one of fcfs, priority, deadline, got 'fifo'"),
        ({"kv_dtype": "fp4"}, "kv_dtype must be one of auto, fp8, got 'fp4'"),
        ({"kv_dtype": "fp8", "phase": "p09"}, "kv_dtype does nothing in phase p09, leave it out; .* the final engine"),
        ({"max_sequences": 0}, "max_sequences must be a whole number, 1 or more, got 0"),
        ({"threads": 0}, "threads must be a whole number between 1 and 1024, got 0"),
        ({"threads": "all"}, "threads must be a whole number between 1 and 1024, got 'all'"),
        ({"page_size": 0}, "page_size must be a whole number, 1 or more, got 0"),
        (
            {"cache_tokens": 10**15},
            "not enough memory for the weights and a cache of 10{15} tokens: lower memory_fract",
        ),
        (
            {"memory_fraction": 0.5, "phase": "p06"},
            "memory_fraction does nothing in phase p06, leave it out; it is for",
        ),
        ({"switch_off": ["graphs"], "phase": "p09"}, "switch_off does nothing in phase p09, .* for the final engine"),
    ],
)
def test_what_cannot_be_is_one_line(settings, message):
    with pytest.raises(ConfigError, match=message) as refused:
        tiny(**settings)
    assert "\n" not in str(refused.value)


def test_a_cache_for_less_than_a_context_shortens_the_context_and_says_so(caplog):
    llm = tiny(cache_tokens=64)
    assert llm.limits.context_length == 64
    (record,) = caplog.records
    assert "64 tokens, not context_length's 512" in record.getMessage() and "cache_tokens" in record.getMessage()
    with pytest.raises(RequestError, match="prompt must have at most 63 tokens"):
        llm.generate([[1] * 64], SOME)
    assert len(llm.generate([[1] * 63], SamplingParams(max_tokens=1))[0].token_ids) == 1


def test_capture_is_shown_like_loading():
    from gradus.assembly.checkpoint import _capturing

    seen = []

    class Screen:
        def begin(self, task, total):
            seen.append((task, total))

        def advance(self, amount):
            seen.append(amount)

    report = _capturing(Screen())
    for done in range(3):
        report(done, 2)
    assert seen == [("capturing CUDA graphs", 2), 1, 1]


# -- memory that runs out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to …"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_what_runs_out_is_recognized(error):
    assert ran_out(error)


def test_an_illegal_access_is_no_lack_of_memory():
    assert not ran_out(RuntimeError("CUDA error: an illegal memory access was encountered"))


class Exhausted:
    """A runner whose step finds no memory, after some that do."""

    def __init__(self, runner, after: int) -> None:
        self.runner, self.left = runner, after

    def __getattr__(self, name):
        return getattr(self.runner, name)

    def run(self, plan):
        self.left -= 1
        if self.left < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.runner.run(plan)


@pytest.mark.parametrize(("settings", "option"), [({}, "--memory-fraction (now 0.5)"), ({"phase": "p06"}, "--max-seq")])
def test_a_step_without_memory_ends_the_engine_with_a_line_that_says_what_to_do(settings, option):
    llm = tiny(**settings)
    llm.engine.runner = Exhausted(llm.engine.runner, after=3)
    with pytest.raises(OutOfMemory, match="a step found no memory on cpu: start again with a lower ") as ended:
        llm.generate(["a", "b"], SOME)
    assert option in str(ended.value) and "\n" not in str(ended.value)
    with pytest.raises(OutOfMemory):  # it does not pretend to go on
        llm.generate("a", SOME)
    with pytest.raises(OutOfMemory):
        llm.submit("a")


def test_other_errors_of_a_step_keep_their_traceback(monkeypatch):
    llm = tiny()
    monkeypatch.setattr(llm.engine, "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        llm.generate("a", SOME)


def test_an_engine_whose_step_ended_half_way_refuses_to_go_on(monkeypatch):
    """Its step is planned and never committed: the next request would wait for it for good."""
    llm = tiny()
    with monkeypatch.context() as during, pytest.raises(ZeroDivisionError):
        during.setattr(llm.engine.scheduler, "commit", lambda plan, result: 1 / 0)
        llm.generate("a", SOME)
    with pytest.raises(BrokenEngine, match=r"ZeroDivisionError ended a step .*: load the model again"):
        llm.generate("a", SOME)


def test_what_broke_a_step_shows_as_itself_however_broken_the_books_are(monkeypatch):
    llm = tiny()
    monkeypatch.setattr(llm.engine.scheduler, "schedule", lambda: 1 / 0)
    monkeypatch.setattr(llm.engine.scheduler, "cancel", lambda *_: [].remove("a sequence"))
    with pytest.raises(ZeroDivisionError):
        llm.generate("a", SOME)
    assert not llm.front_end.open_requests
