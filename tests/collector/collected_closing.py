"""An engine's end: closed, or left to Python, it gives back all that it took."""

import gc
import threading
import weakref

import pytest
import torch

from gradus import LLM, SamplingParams
from gradus.assembly.guard import ClosedEngine, GuardedCore
from gradus.config.options import EngineConfig
from gradus.device import allocator
from gradus.engine.request import ModelLimits
from gradus.garbage import spare_what_stays

SHORT, LONG = SamplingParams(max_tokens=4, ignore_eos=True), SamplingParams(max_tokens=200, ignore_eos=True)
MB = 1 << 20


def tiny(phase=None, **settings) -> LLM:
    return LLM("random:tiny-llama", phase=phase, device="cpu", dtype="float32", **settings)


def parts(llm) -> list[weakref.ref]:
    """The parts that take memory."""
    outer = llm.engine.runner
    runner = getattr(outer, "runner", outer)  # behind the one that speculates
    return [weakref.ref(each) for each in (llm.engine, outer, runner.model, runner.attention)]


@pytest.mark.parametrize("phase", ["p01", "p06", None])
def test_a_closed_engine_is_gone_though_the_object_is_not(phase):
    llm = tiny(phase)
    llm.generate(["one", "two"], SHORT)
    seen = parts(llm)
    llm.close()
    assert [one() for one in seen] == [None] * len(seen)
    assert not llm.has_work


@pytest.mark.parametrize("phase", ["p01", "p06", None])
def test_so_is_one_that_nothing_refers_to_at_once_and_without_a_collection(phase):
    llm = tiny(phase)
    llm.generate(["one", "two"], SHORT)
    seen = parts(llm)
    gc.disable()
    try:
        del llm
        assert [one() for one in seen] == [None] * len(seen)
    finally:
        gc.enable()


@pytest.mark.parametrize("settings", [{}, {"speculate": "ngram"}, {"speculate": "draft:random:tiny-llama"}])
def test_and_one_that_drafts(settings):
    llm = tiny(**settings)
    llm.generate("one one one one", LONG)
    seen = parts(llm)
    del llm
    gc.collect()
    assert [one() for one in seen] == [None] * len(seen)


def test_a_block_closes_it():
    with tiny() as llm:
        (done,) = llm.generate("one", SHORT)
        assert len(done.token_ids) == 4
    with pytest.raises(ClosedEngine, match="load the model again"):
        llm.generate("one", SHORT)
    llm.close()  # does nothing more


def test_what_needs_the_engine_says_in_one_line_that_it_is_closed():
    llm = tiny(max_sequences=1)
    llm.close()
    calls = [
        lambda: llm.submit("one"),
        lambda: llm.step(),
        lambda: llm.metrics(),
        lambda: llm.check(),
        lambda: llm.settings,
        lambda: next(llm.stream("one")),
    ]
    for call in calls * 2:
        with pytest.raises(ClosedEngine, match="this engine is closed"):
            call()


def test_what_runs_is_dropped():
    llm = tiny()
    stream, queued = llm.stream("one", LONG), llm.submit("two", LONG)
    next(stream)
    llm.close()
    assert llm.cancel(queued) == []
    with pytest.raises(ClosedEngine):
        list(stream)


def test_freed_memory_goes_back_to_the_system_after_the_engine(monkeypatch):
    """However it ends."""
    gone = []
    for end in (LLM.close, lambda llm: None):
        llm = tiny(max_sequences=1)
        seen = weakref.ref(llm.engine.runner.model)
        with monkeypatch.context() as during:
            during.setattr(allocator, "give_back", lambda device, seen=seen: gone.append(seen() is None))
            end(llm)
            del llm
    assert all(gone) and len(gone) >= 2


class Cyclic:
    """A core that reference counts cannot free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("end", [GuardedCore.close, lambda core: None], ids=["closed", "dropped"])
def test_a_core_in_a_cycle_goes_too_though_the_heap_was_frozen(end):
    core = Cyclic()
    guarded, seen = GuardedCore(core, torch.device("cpu"), EngineConfig(ModelLimits(10, 10))), weakref.ref(core)
    del core
    try:
        spare_what_stays(guarded)
        end(guarded)
        del guarded
        assert seen() is None
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()


def test_memory_that_the_c_library_keeps_is_returned(process):
    """Blocks below its limit for mapping, freed behind one that is in use."""
    held = [bytearray(20 * 1024) for _ in range(20_000)]
    last = bytearray(20 * 1024)
    full = process.memory_info().rss
    del held
    allocator.give_back(torch.device("cpu"))
    assert full - process.memory_info().rss > 300 * MB
    assert len(last)


def test_ten_engines_in_a_row_leave_memory_threads_and_descriptors_flat(process):
    seen = []
    for _ in range(10):
        llm = tiny(max_sequences=2, threads=None)
        llm.generate(["one", "two"], SHORT)
        del llm  # what it leaves in cycles, the next one's collection frees
        seen.append((process.memory_info().rss, threading.active_count(), process.num_fds()))
    memory, threads, descriptors = zip(*seen, strict=True)
    assert memory[-1] - memory[1] < 2 * MB
    assert threads[-1] == threads[1] and descriptors[-1] == descriptors[1]


def test_a_second_engine_takes_the_place_of_the_first_in_one_variable():
    llm = tiny()
    first = weakref.ref(llm.engine)
    llm = tiny("p06")
    assert first() is None
    llm.generate("one", SHORT)
